"""TensorBoard: event files in the folder ``tensorboard`` of the run."""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedpart.extras import need
from fedpart.loggers.base import LOGGERS, Line, Logger, RunInfo
from fedpart.loggers.lines import scalars, step_of


@LOGGERS.register("tensorboard")
class TensorBoard(Logger):
    """Writes event files, with numbers in single precision: TensorBoard's data server shows no others.

    A resumed run writes them anew, for every program that reads such files to find each point once.

    Raises:
        ImportError: tensorboard is not installed.
    """

    def __init__(self) -> None:
        need("tensorboard", "The logger tensorboard", "tensorboard")
        self._open = import_module("torch.utils.tensorboard").SummaryWriter
        self._writer: Any = None
        self._config: Mapping[str, Any] = {}
        self._step = 0

    def start(self, run: RunInfo) -> None:
        folder = run.folder / "tensorboard"
        for file in folder.glob("events.out.tfevents.*"):
            file.unlink()
        self._config = run.config
        self._writer = self._open(str(folder), purge_step=0)  # a TensorBoard that looks on forgets the rest
        for line in run.lines:
            self._add(line)
        self._writer.flush()

    def log(self, line: Line) -> None:
        self._add(line)
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        table = {f"summary/{name}": value for name, value in scalars(summary).items()}
        self._writer.add_hparams(dict(self._config), table, run_name=".", global_step=self._step)
        text = json.dumps(summary, indent=2, default=str)
        self._writer.add_text("summary", f"```\n{text}\n```", self._step)
        self._writer.flush()

    def show(self, pictures: Sequence[Path]) -> None:
        from PIL import Image

        for file in pictures:
            with Image.open(file) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            self._writer.add_image(file.stem, pixels, self._step, dataformats="HWC")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _add(self, line: Line) -> None:
        self._step = step_of(line)
        for name, value in scalars(line).items():
            self._writer.add_scalar(name, value, self._step)
