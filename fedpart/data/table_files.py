"""Tables: CSV and Parquet files, and data frames, as columns."""

import csv
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from fedpart.checks import require
from fedpart.data.cells import Pointed
from fedpart.data.columns import Columns, column_names
from fedpart.data.image_files import PARTS
from fedpart.data.reading import USUAL, Limits, real_place, refuse_twice, regular
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
        require(_kind(root) in KINDS, f"{root} is neither a CSV nor a Parquet file by its name; {_LAYOUT}.")
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
    remedy = "rename it, or set data_dir to it"
    raise ValueError(f"None of the {len(tables)} tables in {root} is called train; {remedy}.")


Signs = Mapping[str, str | None]
"""``delimiter`` and ``decimal`` of CSV files, see :func:`read_csv`."""


def read_table(
    file: Path, signs: Signs = MappingProxyType({}), limits: Limits = USUAL
) -> tuple[Columns, Signs]:
    """The columns of a table, see :func:`read_csv` and :func:`read_parquet`, and the signs of a CSV file as
    they were given or recognised."""
    limits.file_size(file)
    return read_csv(file, **signs) if _kind(file) == "csv" else (read_parquet(file, limits), signs)


def read_csv(file: Path, delimiter: str | None = None, decimal: str | None = None) -> tuple[Columns, Signs]:
    """The columns of a CSV file in UTF-8, whose first row names them, and its signs; empty lines do not
    count.

    Args:
        file: the file.
        delimiter: one character between cells; None: a comma, unless the first lines have more cells, and the
            same number each, by a semicolon, a tab or a bar.
        decimal: the sign in numbers, ``.`` or ``,``; None: a comma, if cells are not divided by commas, some
            have one between digits, and none has a point there, or at least none in a column of numbers. It
            has to be given where some numbers have commas and others points.
    """
    if decimal not in (None, ".", ","):
        raise ValueError(f"data_options.decimal is a point or a comma, in quotes, got {decimal!r}.")
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            likely = _delimiter(opened)
            delimiter = likely if delimiter is None else delimiter
            opened.seek(0)
            reader = csv.reader(opened, delimiter=delimiter, strict=True)
            names = next(reader, [])
            told = f"{likely!r}, and not {delimiter!r} as data_options.delimiter or the training data say"
            fits = likely == delimiter or len(names) != 1
            require(fits, f"The cells of {file} are divided by {told}; save it anew, or correct that.")
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
        fault = f"{file} cannot be read as CSV in UTF-8 ({str(error).rstrip('.')})"
        coded = isinstance(error, UnicodeError)
        remedy = "as UTF-8 (Excel: CSV UTF-8)" if coded else "anew, or set data_options.delimiter"
        raise ValueError(f"{fault}; save it {remedy}.") from error
    require(rows, f"{file} has no rows below its first line, the names of the columns; add some.")
    if decimal is None:
        decimal = "," if delimiter != "," and _has_commas(rows) else "."
    if decimal == ",":
        rows = [[*map(_with_point, row)] for row in rows]
    columns = dict(zip(column_names(names, str(file)), zip(*rows, strict=True), strict=True))
    return columns, {"delimiter": delimiter, "decimal": decimal}


_COMMA, _POINT, _NUMBER = (
    re.compile(rf"\s*[+-]?\d*{sign}\d+([eE][+-]?\d+)?\s*") for sign in (",", r"\.", "[.,]?")
)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


def _with_point(cell: str) -> str:
    """A cell of a file with decimal commas, a number as Python writes it."""
    if _COMMA.fullmatch(cell):
        return cell.replace(",", ".")
    return Pointed(cell) if _POINT.fullmatch(cell) else cell


def _has_commas(rows: list[list[str]]) -> bool:
    """Whether numbers have decimal commas; where there are points, too, columns that hold numbers decide."""
    commas = [cell.strip() for row in rows for cell in row if _COMMA.fullmatch(cell)]
    if not commas:
        return False
    if any(_POINT.fullmatch(cell) for row in rows for cell in row):
        numbers = [[c for c in column if _NUMBER.fullmatch(c)] for column in zip(*rows, strict=True)]
        cells = [cell.strip() for column in numbers if 2 * len(column) > len(rows) for cell in column]
        commas, points = ([*filter(sign.fullmatch, cells)] for sign in (_COMMA, _POINT))
        both = f"Numbers have commas ({commas[:1]}) and points ({points[:1]})"
        require(not (commas and points), f"{both}; set data_options.decimal to the sign of numbers.")
        return bool(commas)
    example = f"{commas[0]!r} may be a number of thousands or have a decimal comma; set data_options.decimal"
    require(not all(map(_THOUSANDS.fullmatch, commas)), f"{example} to ',' or '.', or write no commas.")
    return True


def _filled(row: list[str]) -> bool:
    return any(map(str.strip, row))


def _delimiter(opened: TextIO) -> str:
    best, most = ",", 1
    for delimiter in (",", ";", "\t", "|"):
        opened.seek(0)
        try:
            sizes = {len(row) for row in islice(filter(_filled, csv.reader(opened, delimiter=delimiter)), 20)}
        except csv.Error:
            continue
        if len(sizes) == 1 and (cells := sizes.pop()) > most:
            best, most = delimiter, cells
    return best


def columns_of(given: Any, signs: Signs = MappingProxyType({})) -> tuple[Columns, str]:
    """The columns of a table, and its name for messages.

    Args:
        given: a CSV or Parquet file, a dict of columns or of one row's cells, a list of such dicts of cells,
            or a data frame that narwhals knows (pandas, Polars, PyArrow, ...).
        signs: of CSV files.

    Raises:
        ValueError: it is none of these, or cannot be read.
    """
    if isinstance(given, (str, Path)):
        file = Path(given)
        require(file.exists(), f"There is no file {file}; name a CSV or Parquet file.")
        fits = file.is_file() and _kind(file) in KINDS
        require(fits, f"{file} is no CSV or Parquet file by its name; name one, or save it as one.")
        regular(file)
        return read_table(file, signs)[0], str(file)
    name = f"the {type(given).__name__}"
    if isinstance(given, (list, tuple)):  # of dicts, of which the first one tells the columns
        alike = all(isinstance(row, Mapping) for row in given)
        require(alike, "Some rows are dicts, and others are not; give dicts of cells alone, or lists.")
        columns = {str(key): [row.get(key) for row in given] for key in given[0]}
    elif isinstance(given, Mapping):
        columns = {str(key): _cells(column) for key, column in given.items()}
        if len({len(cells) for cells in columns.values()}) != 1:
            raise ValueError("The columns of a table have one length; give every column a cell for each row.")
    else:
        try:
            frame = need("narwhals", "A data frame", "parquet").from_native(given, eager_only=True)
        except TypeError as error:
            kinds = "a CSV or Parquet file, a data frame or a dict of columns"
            raise ValueError(f"Rows of a table are {kinds}, got {name}; give one.") from error
        columns = {str(key): frame.get_column(key).to_list() for key in frame.columns}
    return dict(zip(column_names(list(columns), name), columns.values(), strict=True)), name


def _cells(column: Any) -> list[Any]:
    """A column's cells, or its only one."""
    alone = isinstance(column, (str, bytes)) or not hasattr(column, "__len__")
    return [column] if alone else list(column)


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
    require(table.num_rows, f"{file} has no rows; add some.")
    whole = pyarrow.types.is_integer  # of which numpy has none that may be missing
    values = (c.to_pylist() if whole(c.type) and c.null_count else c.to_numpy() for c in table.itercolumns())
    return dict(zip(column_names(table.column_names, str(file)), values, strict=True))


def _kind(file: Path) -> str:
    return file.suffix.casefold().removeprefix(".")
