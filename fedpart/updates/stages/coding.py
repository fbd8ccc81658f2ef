"""Fewer bits: of weights that clients download, and of changes, whose losses are added to later ones."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.randomness.streams import generator
from fedpart.trees import as_made, version_of
from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.update import Round, Update


class Download(Stage):
    """Weights as they travel to clients, in fewer bits; the server's own are not rounded."""

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return settings.download is not None

    def start(self, round: Round) -> Round:
        return replace(round, w=round.w.to(self.run.download).to(round.w.dtype))


class UploadCodec(Stage):
    """Replaces changes by the numbers that the server will read, which is a function of client and round."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.codec = run.settings.codec()

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return settings.upload is not None

    @classmethod
    def check(cls, settings: Any) -> None:
        if settings.upload is not None:
            settings.codec()  # refuses
            return
        require(
            not settings.upload_options,
            f"upload_options are {dict(settings.upload_options)}, but there is no upload codec to take them; "
            f"set upload as well.",
        )
        fault = "error_feedback keeps what an upload codec loses, but there is none"
        require(not settings.error_feedback, f"{fault}; set upload as well, or leave error_feedback out.")

    def send(self, update: Update, client: int, round: Round) -> None:
        for j, delta in update.cells.items():
            rng = generator(self.run.settings.seed, "upload", client, round.number, j)
            version, n = version_of(delta), len(delta)
            update.encoded[j] = data = self.codec.encode(delta, rng)
            of, form = f"the codec {type(self.codec).__name__}", getattr(data, "shape", type(data).__name__)
            size = f"The encode() of {of} makes {form} of {n} numbers, where size() says {self.codec.size(n)}"
            fits = isinstance(data, Tensor) and (data.dtype, form) == (torch.uint8, (self.codec.size(n),))
            require(fits, f"{size}; have it return as many bytes, [size] uint8.")
            update.parts[j] = as_made(self.codec.decode(data, n, delta.dtype), delta, f"The decode() of {of}")
            writes = f"The encode() of {of} changes what it encodes; have it encode a copy."
            require(version_of(delta) == version, writes)
            if self.run.settings.error_feedback and round.kept is not None:
                update.kept[j] = (delta - update.parts[j]).cpu()


class Feedback(Stage):
    """Error feedback (Seide et al. 2014; Karimireddy et al. 2019): what codes have lost is sent later."""

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return bool(settings.error_feedback)

    def send(self, update: Update, client: int, round: Round) -> None:
        for j, lost in update.kept.items():
            if j in update.parts:
                update.parts[j] += lost.to(update.parts[j].device)
