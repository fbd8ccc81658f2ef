"""MLflow: a data base in the run's folder, or a tracking server."""

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpart.extras import need
from fedpart.loggers.base import LOGGERS, Line, Logger, RunInfo
from fedpart.loggers.lines import scalars, step_of

_AT_ONCE = {"metrics": 1000, "params": 100}  # that MLflow takes in one message


@LOGGERS.register("mlflow")
class Mlflow(Logger):
    """A run of MLflow.

    A run that is resumed goes on in it, if it has just the points of what is done. If a process that died had
    logged more, the run is deleted (to MLflow's trash), and a new one gets all points.

    Args:
        tracking_uri: of a server or store; None: ``MLFLOW_TRACKING_URI``, or else ``mlflow.db`` in the run's
            folder.
        experiment: its name; it is made if there is none.

    Raises:
        ImportError: mlflow is not installed.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str = "fedpart") -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._mlflow = need("mlflow", "The logger mlflow", "mlflow")
        self._uri, self._experiment = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"), experiment
        self._client: Any = None
        self._run, self._step, self._finished = "", 0, False

    def start(self, run: RunInfo) -> None:
        folder = run.folder.absolute()
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # tells of every table
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri or f"sqlite:///{folder}/mlflow.db")
        self._step = step_of(run.lines[-1]) if run.lines else 0
        known = folder / "mlflow.id"
        if known.exists():
            self._run = known.read_text()
            wanted = {(key, metric.step) for line in run.lines for key, metric in self._metrics(line).items()}
            if self._held() != wanted:
                self._client.delete_run(self._run)
                self._run = ""
        if self._run:
            self._client.update_run(self._run, status="RUNNING")
        else:
            files = None if self._uri else (folder / "mlflow-files").as_uri()
            known_as = self._client.get_experiment_by_name(self._experiment)
            id = known_as and known_as.experiment_id
            id = id or self._client.create_experiment(self._experiment, artifact_location=files)
            self._run = self._client.create_run(str(id), run_name=run.name).info.run_id
            known.write_text(self._run)
            params = [self._mlflow.entities.Param(name, str(value)) for name, value in run.config.items()]
            self._send("params", params)
            self._send("metrics", [metric for line in run.lines for metric in self._metrics(line).values()])

    def log(self, line: Line) -> None:
        self._step = step_of(line)
        self._send("metrics", list(self._metrics(line).values()))

    def finish(self, summary: Mapping[str, Any]) -> None:
        table = {f"summary/{name}": value for name, value in scalars(summary).items()}
        self._send("metrics", [self._metric(name, value, self._step) for name, value in table.items()])
        self._client.log_dict(self._run, dict(summary), "summary.json")
        self._client.set_terminated(self._run, "FINISHED")
        self._finished = True

    def show(self, pictures: Sequence[Path]) -> None:
        for file in pictures:
            self._client.log_artifact(self._run, str(file))

    def close(self) -> None:
        if self._run and not self._finished:
            self._client.set_terminated(self._run, "FAILED")

    def _held(self) -> Any:
        """The points that the run has, by name and step; a list if one is there twice."""
        names = self._client.get_run(self._run).data.metrics
        points = [
            (name, point.step)
            for name in names
            if not name.startswith("summary/")  # of an end that was not the last
            for point in self._client.get_metric_history(self._run, name)
        ]
        return set(points) if len(set(points)) == len(points) else points

    def _metrics(self, line: Line) -> dict[str, Any]:
        metrics = (self._metric(name, value, step_of(line)) for name, value in scalars(line).items())
        return {metric.key: metric for metric in metrics}

    def _metric(self, name: str, value: float, step: int) -> Any:
        """Names have no brackets and no percent sign in MLflow: ``psi/affine.angle_max deg``."""
        key = re.sub(r"[^\w\-./ ]", "", name.replace("%", "percent"))
        return self._mlflow.entities.Metric(key, float(value), int(1000 * time.time()), step)

    def _send(self, kind: str, items: Sequence[Any]) -> None:
        size = _AT_ONCE[kind]
        for start in range(0, len(items), size):
            self._client.log_batch(self._run, **{kind: items[start : start + size]})
