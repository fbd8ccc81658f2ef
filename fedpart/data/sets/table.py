"""Examples in a table: a CSV or Parquet file with a column to predict, and one that says whose a row is."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedpart.data.columns import Columns, Part, Roles, column_names, matrix, splits_of, standardised
from fedpart.data.dataset import Dataset, Splits
from fedpart.data.image_files import PARTS
from fedpart.data.loading import DATASETS
from fedpart.data.reading import USUAL, Limits, check_files, real_place, refuse_twice, regular
from fedpart.data.splitting.hold_out import ClientHoldOut, HoldOut
from fedpart.extras import need

KINDS = ("csv", "parquet")
_ROWS = 2**14  # of a Parquet file at a time
_LAYOUT = "set data_dir to a .csv or .parquet file, or a folder with train.csv and test.csv"


def table_files(data_dir: str | Path | None) -> dict[str, Path]:
    """The files of the parts train, validation and test, as far as there are any: of a folder, or the one
    file, which is then the training file."""
    if data_dir is None:
        raise FileNotFoundError(f"The data set 'table' needs a file: {_LAYOUT}.")
    root = Path(data_dir).expanduser()
    if root.is_file():
        if _kind(root) not in KINDS:
            raise ValueError(f"{root} is neither a CSV nor a Parquet file by its name; {_LAYOUT}.")
        return {"train": root}
    tables = sorted(file for file in root.glob("*") if _kind(file) in KINDS) if root.is_dir() else []
    if not tables:
        raise FileNotFoundError(f"There is no table at {root}; {_LAYOUT}.")
    named: dict[str, Path] = {}
    seen: dict[str, str] = {}
    for part, names in PARTS.items():
        fitting = [file for file in tables if file.stem.casefold() in names]
        if len(fitting) > 1:
            both = f"{fitting[0].name} and {fitting[1].name}"
            raise ValueError(f"{root} has {both} for one part, {part}; move one away.")
        for file in fitting:
            regular(file)
            refuse_twice(file, real_place(file), seen)
            named[part] = file
    if "train" in named:
        return named
    if len(tables) == 1:
        regular(tables[0])
        return {"train": tables[0]}
    raise ValueError(
        f"None of the {len(tables)} tables in {root} is called train; rename it, or set data_dir to it."
    )


def read_table(file: Path, delimiter: str = ",", limits: Limits = USUAL) -> Columns:
    """The columns of a table, see :func:`read_csv` (``delimiter`` is its) and :func:`read_parquet`."""
    limits.file_size(file)
    return read_csv(file, delimiter) if _kind(file) == "csv" else read_parquet(file, limits)


def read_csv(file: Path, delimiter: str = ",") -> Columns:
    """The columns of a CSV file whose first row names them, in UTF-8; empty lines do not count."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.reader(opened, delimiter=delimiter, strict=True)
            names = next(reader, [])
            rows = []
            for row in reader:
                if row and len(row) != len(names):
                    raise ValueError(
                        f"Line {reader.line_num} of {file} has {len(row)} cells, but the first line names "
                        f"{len(names)} columns; repair it, or set data_options.delimiter."
                    )
                if row:
                    rows.append(row)
    except (csv.Error, UnicodeDecodeError, TypeError) as error:
        raise ValueError(
            f"{file} cannot be read as CSV in UTF-8 ({str(error).rstrip('.')}); save it anew, or set "
            f"data_options.delimiter."
        ) from error
    if not rows:
        raise ValueError(f"{file} has no rows below its first line, the names of the columns; add some.")
    return dict(zip(column_names(names, str(file)), zip(*rows, strict=True), strict=True))


def read_parquet(file: Path, limits: Limits = USUAL) -> Columns:
    """The columns of a Parquet file, unpacked in parts until they are too many."""
    pyarrow = need("pyarrow", "A Parquet file", "parquet")
    parquet = need("pyarrow.parquet", "A Parquet file", "parquet")
    try:
        batches, size = [], 0
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(_ROWS):
                size += max(batch.nbytes, 8 * batch.num_rows * batch.num_columns)
                limits.check("total", size, str(file))
                batches.append(batch)
            table = pyarrow.Table.from_batches(batches, opened.schema_arrow)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"{file} cannot be read as Parquet ({reason}); write it anew.") from error
    if not table.num_rows:
        raise ValueError(f"{file} has no rows; add some.")
    values = (column.to_numpy() for column in table.itercolumns())
    return dict(zip(column_names(table.column_names, str(file)), values, strict=True))


def _kind(file: Path) -> str:
    return file.suffix.casefold().removeprefix(".")


@DATASETS.register("table")
def load_table(
    data_dir: str | None = None,
    *,
    target: str,
    client: str | None = None,
    ignore: Sequence[Any] = (),
    standardise: bool = False,
    delimiter: str = ",",
    validation: float = 0.1,
    test: float = 0.2,
    hold_out: HoldOut | ClientHoldOut = "random",
    real_targets: bool = False,
    limits: Mapping[str, int] | None = None,
    data_seed: int = 0,
) -> Splits:
    """A CSV or Parquet file, or ``train.csv`` and ``test.csv`` in a folder.

    All columns but the target, the client's and those to ignore are inputs and hold numbers, [n, columns]
    float32. Classes and clients are numbered in ascending order, whole numbers by value and others as text.
    What has no file is held out from the training rows: the test set first, then the validation set.

    Args:
        data_dir: the file or the folder, see :func:`.table_files`.
        target: the column to predict.
        client: the column that says whose a row is; the data set then knows its clients.
        ignore: columns that are left out.
        standardise: whether inputs are brought to mean 0 and deviation 1, see :func:`.standardised`.
        delimiter: one character between the cells of a CSV file.
        real_targets: whether the target is a number to predict, float32, and no class, int64.
        validation, test, hold_out, limits, data_seed: see :data:`.Loader`.
    """
    files = table_files(data_dir)
    most = Limits.of(limits)
    check_files(files.values(), most, f"What is in {data_dir}")
    tables = {part: read_table(file, delimiter, most) for part, file in files.items()}
    roles = Roles(target, client, ignore)
    inputs = roles.inputs(tables["train"], str(files["train"]))

    def part(columns: Columns, file: str) -> Part:
        def dataset(targets: Tensor, clients: Tensor | None) -> Dataset:
            return Dataset(matrix(columns, inputs, file, standardise), targets, clients=clients)

        return roles.part(columns, file, dataset)

    parts = {name: part(columns, str(files[name])) for name, columns in tables.items()}
    shares = {"test": test, "validation": validation}
    splits = splits_of(parts, roles, real_targets, shares, hold_out, data_seed)
    return standardised(splits, inputs) if standardise else splits
