"""CSV and Parquet files as columns."""

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpart.data.images.files import PARTS
from fedpart.data.names import plain
from fedpart.data.reading import USUAL, Limits, refuse_twice, regular
from fedpart.extras import need

Columns = Mapping[str, Sequence[Any]]
"""Values by the name of their column, all of one length; text in CSV files, numbers or text in others."""

KINDS = ("csv", "parquet")
_ROWS = 2**14  # of a Parquet file at a time
_LAYOUT = "set data_dir to a .csv or .parquet file, or a folder with train.csv and test.csv"


def table_files(data_dir: str | Path | None) -> dict[str, Path]:
    """The files of the parts train, validation and test, as far as there are any.

    Args:
        data_dir: the training file, ``.csv`` or ``.parquet``; or a folder with files ``train``,
            ``validation`` and ``test``, or with a single file, the training file.

    Raises:
        FileNotFoundError: none is there.
        ValueError: a file of another kind, two for one part, one for two, files with other names, or what
            is no regular file.
    """
    if data_dir is None:
        raise FileNotFoundError(f"The data set 'table' needs a file: {_LAYOUT}.")
    root = Path(data_dir).expanduser()
    if root.is_file():
        if _kind(root) not in KINDS:
            raise ValueError(f"{root} is neither a CSV nor a Parquet file by its name; {_LAYOUT}.")
        return {"train": root}
    found = sorted(file for file in root.glob("*") if _kind(file) in KINDS) if root.is_dir() else []
    if not found:
        raise FileNotFoundError(f"There is no table at {root}; {_LAYOUT}.")
    named: dict[str, Path] = {}
    seen: dict[str, str] = {}
    for part, names in PARTS.items():
        own = [file for file in found if file.stem.casefold() in names]
        if len(own) > 1:
            raise ValueError(
                f"{root} has {own[0].name} and {own[1].name} for one part, {part}; move one of them away."
            )
        if own:
            regular(own[0])
            refuse_twice(own[0], os.path.realpath(own[0]), seen)
            named[part] = own[0]
    if "train" in named:
        return named
    if len(found) == 1:
        regular(found[0])
        return {"train": found[0]}
    raise ValueError(
        f"None of the {len(found)} tables in {root} is called train; rename it, or set data_dir to it."
    )


def read_table(file: Path, delimiter: str = ",", limits: Limits = USUAL) -> Columns:
    """The columns of a table, see :func:`read_csv` (``delimiter`` is its) and :func:`read_parquet`."""
    limits.file_size(file)
    return read_csv(file, delimiter) if _kind(file) == "csv" else read_parquet(file, limits)


def read_csv(file: Path, delimiter: str = ",") -> Columns:
    """The columns of a CSV file whose first row names them, in UTF-8; empty lines do not count.

    Raises:
        ValueError: no rows, two columns of one name, a row of another length than the first, or no CSV.
    """
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
    """The columns of a Parquet file, unpacked in parts until they are too many.

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: no rows, two columns of one name, no Parquet file, or more than ``limits.total``.
    """
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


def column_names(given: Sequence[str], file: str) -> list[str]:
    """Names as they look, see ``plain``."""
    names = [plain(name) for name in given]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{file} has two columns {twice!r}; give each a name of its own.")
    return names


def _kind(file: Path) -> str:
    return file.suffix.casefold().removeprefix(".")
