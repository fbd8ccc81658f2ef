"""Examples in a table: a CSV or Parquet file with a column to predict, and one that says whose a row is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedpart.checks import require
from fedpart.data.columns import Roles, splits_of
from fedpart.data.dataset import Splits
from fedpart.data.loading import DATASETS
from fedpart.data.preprocessing.fitting import Categorical, Missing, numbers_of_rows, prepared
from fedpart.data.preprocessing.sites import splits_of_clients
from fedpart.data.reading import Limits, check_files
from fedpart.data.splitting.hold_out import ClientHoldOut, HoldOut
from fedpart.data.table_files import Signs, columns_of, read_table, table_files


@DATASETS.register("table")
def load_table(
    data_dir: Any = None, *, target: str, client: str | None = None, ignore: Sequence[Any] = (),
    standardise: bool = False, standardise_target: bool = True, categorical: Categorical = None,
    missing: Missing = "refuse", statistics: Literal["pooled", "federated"] | Mapping[str, Any] = "pooled",
    delimiter: str | None = None, decimal: str | None = None, validation: float = 0.1, test: float = 0.2,
    hold_out: HoldOut | ClientHoldOut = "random", real_targets: bool = False,
    limits: Mapping[str, int] | None = None, data_seed: int = 0,
) -> Splits:  # fmt: skip
    """A CSV or Parquet file, or ``train.csv`` and ``test.csv`` in a folder; in Python also a data frame.

    All columns but the target, the client's and those to ignore are inputs, [n, features] float32. Classes
    and clients are numbered in ascending order, whole numbers by value and others as text. What has no file
    is held out from the training rows: the test set first, then the validation set.

    Args:
        data_dir: the file or the folder, see :func:`.table_files`; or see :func:`.columns_of`.
        target: the column to predict.
        client: the column that says whose a row is; the data set then knows its clients.
        ignore: columns that are left out.
        standardise, categorical, missing: see :func:`.fitted`.
        statistics: what the preprocessing is made from: all training rows, or ``federated``: sums that each
            client has of its own, from which it holds out ``test`` and ``validation``; or what was made.
        standardise_target: whether a network learns a number as deviations from its mean over training rows;
            predictions, exports and errors are in its own units all the same. Of ``likelihood: gaussian``.
        delimiter, decimal: of a CSV file, see :func:`.read_csv`.
        real_targets: whether the target is a number to predict, float32, and no class, int64.
        validation, test, hold_out, limits, data_seed: see :data:`.Loader`.
    """
    most = Limits.of(limits)
    read: Signs = {"delimiter": delimiter, "decimal": decimal}
    if data_dir is None or isinstance(data_dir, (str, Path)):
        files = table_files(data_dir)
        check_files(files.values(), most, f"What is in {data_dir}")
        tables = {}
        for part, file in files.items():  # the training file first, whose signs the others have
            columns, read = read_table(file, read, most)
            tables[part] = columns, str(file)
    else:
        tables = {"train": columns_of(data_dir, read)}
    roles = Roles(target, client, ignore)
    options: dict[str, Any] = {"standardise": standardise, "categorical": categorical, "missing": missing}
    options |= {"read": read, "standardise_target": standardise_target}
    shares = {"test": test, "validation": validation}
    if statistics != "pooled":
        whose = "joins what each client says of its own rows; name the column of clients: data_options.client"
        require(client is not None, f"statistics: federated {whose}.")
        divided = {"shares": shares, "hold_out": hold_out, "data_seed": data_seed}
        return splits_of_clients(tables, roles, real_targets, divided, options | {"statistics": statistics})
    inputs = roles.inputs(*tables["train"])
    parts = {name: roles.part(*table, numbers_of_rows(table[0])) for name, table in tables.items()}
    splits = splits_of(parts, roles, real_targets, shares, hold_out, data_seed)
    return prepared(splits, tables, inputs, **options)
