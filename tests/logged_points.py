"""What loggers have written, read back with their libraries: the points of curves, by name and step."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedpart.loggers.lines import scalars, step_of

Point = tuple[str, int, float]


def in_lines(lines: list[dict[str, Any]]) -> list[Point]:
    """The points that lines of metrics.jsonl amount to, sorted."""
    return sorted((name, step_of(line), float(x)) for line in lines for name, x in scalars(line).items())


def written(kind: str, folder: Path) -> list[Point]:
    """The points that a logger has, sorted, with doubles; those of the final table apart."""
    found = {"tensorboard": _events, "wandb": _history, "mlflow": _metrics}[kind](folder)
    return sorted(point for point in found if not point[0].startswith(("summary/", "pictures/", "_")))


def _events(folder: Path) -> Iterator[Point]:
    """Of all events, also of those that TensorBoard would take for out of date."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    for file in sorted((folder / "tensorboard").glob("events*")):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name in ("scalars", "") and value.tensor.dtype == 1:
                    yield value.tag, event.step, float(make_ndarray(value.tensor))


def wandb_records(folder: Path) -> list[Any]:
    """The records of the one offline run, once wandb's own process has written the last one."""
    (file,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    for _ in range(300):
        records = list(_records(file.read_bytes()))
        if records and records[-1].HasField("exit"):
            return records
        time.sleep(0.1)
    raise TimeoutError(f"{file} has no end.")


def _records(data: bytes) -> Iterator[Any]:
    """A log in blocks of 32 KiB, as LevelDB writes it."""
    from wandb.proto.wandb_internal_pb2 import Record

    place, record = 7, b""
    while place + 7 <= len(data):
        if (left := 2**15 - place % 2**15) < 7:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield Record.FromString(record)
            record = b""


def _history(folder: Path) -> Iterator[Point]:
    for record in wandb_records(folder):
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            value = json.loads(item.value_json)
            if isinstance(value, bool | int | float):
                yield name, record.history.step.num, float(value)


def mlflow_client(folder: Path) -> tuple[Any, str]:
    """A client of the folder's data base, and the one run that is not deleted."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder.absolute()}/mlflow.db")
    experiment = client.get_experiment_by_name("fedpart")
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run.info.run_id


def _metrics(folder: Path) -> Iterator[Point]:
    client, run = mlflow_client(folder)
    for name in client.get_run(run).data.metrics:
        for one in client.get_metric_history(run, name):
            yield name, one.step, one.value


def as_kept_by(kind: str, points: list[Point]) -> list[Point]:
    """MLflow takes no brackets and no percent sign, and TensorBoard's numbers are in single precision."""
    plain = str.maketrans({"[": "", "]": "", "%": "percent"} if kind == "mlflow" else {})
    exact = np.float32 if kind == "tensorboard" else float
    return sorted((name.translate(plain), step, float(exact(value))) for name, step, value in points)
