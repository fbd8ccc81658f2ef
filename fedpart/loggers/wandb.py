"""Weights & Biases: offline in the run's folder unless asked otherwise; ``wandb sync`` uploads it."""

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpart.checks import require
from fedpart.extras import need
from fedpart.loggers.base import LOGGERS, Line, Logger, RunInfo
from fedpart.loggers.lines import scalars, step_of


@LOGGERS.register("wandb")
class Wandb(Logger):
    """A run of wandb, with an id of its own that a resumed run keeps.

    Offline, a resumed run writes its file anew. Online, points that the server has already stay as they are.

    Args:
        mode: ``offline``: nothing leaves this machine; ``online``.
        project: of wandb.
        **options: of ``wandb.init``, e.g. ``entity``, ``group``, ``tags``.

    Raises:
        ImportError: wandb is not installed.
        ValueError: another mode.
    """

    def __init__(self, mode: str = "offline", project: str = "fedpart", **options: Any) -> None:
        require(mode in ("offline", "online"), f"The mode of wandb is offline or online, not {mode!r}.")
        self._offline = mode == "offline"
        if self._offline:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb = need("wandb", "The logger wandb", "wandb")
        self._options = {"mode": mode, "project": project, **options}
        self._run: Any = None
        self._first = 0

    def start(self, run: RunInfo) -> None:
        known = run.folder / "wandb.id"
        if not known.exists():
            known.write_text(uuid.uuid4().hex[:8])
        name = known.read_text()
        if self._offline:
            for old in (run.folder / "wandb").glob(f"offline-run-*-{name}"):
                shutil.rmtree(old, ignore_errors=True)
        quiet = self._wandb.Settings(silent=self._offline, console="off")
        self._run = self._wandb.init(
            **{
                "id": name,
                "name": run.name,
                "dir": str(run.folder),
                "config": dict(run.config),
                "resume": None if self._offline else "allow",
                "reinit": "create_new",  # a run that the caller has open stays
                "settings": quiet,
                **self._options,
            }
        )
        self._first = self._run.step
        for line in run.lines:
            self.log(line)

    def log(self, line: Line) -> None:
        step = step_of(line)
        if step >= self._first:
            self._run.log(scalars(line), step=step, commit=True)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update({f"summary/{name}": value for name, value in scalars(summary).items()})

    def show(self, pictures: Sequence[Path]) -> None:
        if pictures:
            self._run.log({f"pictures/{file.stem}": self._wandb.Image(str(file)) for file in pictures})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
