"""Examples in a table: a CSV or Parquet file with a column to predict, and one that says whose a row is."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedpart.data.dataset import Dataset, Splits
from fedpart.data.loading import DATASETS
from fedpart.data.reading import Limits
from fedpart.data.splitting.hold_out import ClientHoldOut, HoldOut
from fedpart.data.tables.columns import Part, Roles, matrix, splits_of, standardised
from fedpart.data.tables.files import Columns, read_table, table_files


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

    All columns but the target, the client's and those to ignore are inputs and hold numbers. Classes and
    clients are numbered in ascending order, whole numbers by value and others as text. What has no file is
    held out from the training rows: the test set first, then the validation set.

    Args:
        data_dir: the file or the folder, see :func:`.table_files`.
        target: the column to predict.
        client: the column that says whose a row is; the data set then knows its clients.
        ignore: columns that are left out.
        standardise: whether inputs are brought to mean 0 and deviation 1, see :func:`.standardised`.
        delimiter: one character between the cells of a CSV file.
        validation, test: how many rows to hold out where there is no file: a number, or a share below 1; with
            ``client`` a share.
        hold_out: which rows, see :func:`.divide`; with ``client``, see :func:`.divide_clients`.
        real_targets: whether the target is a number to predict, and no class.
        limits: of what files may take, see :class:`.Limits`.
        data_seed: of ``hold_out``.

    Returns:
        Splits of inputs [n, columns] float32, and targets [n]: int64 classes, or float32.

    Raises:
        FileNotFoundError: no file.
        ImportError: a Parquet file without pyarrow.
        ValueError: a column is missing, holds something else than numbers (the row is named), more than
            ``limits``, or see :func:`.read_csv`, ``read_parquet``, ``targets_of``, ``divide`` and
            ``divide_clients``.
    """
    files = table_files(data_dir)
    most = Limits.of(limits)
    most.file_sizes(files.values())
    tables = {part: read_table(file, delimiter, most) for part, file in files.items()}
    roles = Roles(target, client, ignore)
    target, client = roles.target, roles.client
    inputs = roles.inputs(tables["train"], str(files["train"]))

    def part(columns: Columns, file: str) -> Part:
        roles.inputs(columns, file)

        def dataset(targets: Tensor, clients: Tensor | None) -> Dataset:
            return Dataset(matrix(columns, inputs, file, standardise), targets, clients=clients)

        return Part(file, columns[target], None if client is None else columns[client], dataset)

    parts = {name: part(columns, str(files[name])) for name, columns in tables.items()}
    shares = {"test": test, "validation": validation}
    splits = splits_of(parts, target, client, real_targets, shares, hold_out, data_seed)
    return standardised(splits) if standardise else splits
