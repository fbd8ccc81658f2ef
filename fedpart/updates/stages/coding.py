"""Upload codec: clients send changes in fewer bits, and what these lose is added to their next ones."""

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedpart.checks import require
from fedpart.randomness.streams import generator
from fedpart.updates.client_state import ClientState
from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.update import Round, Update


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
        require(
            not settings.error_feedback,
            "error_feedback keeps what an upload codec loses, but there is none; set upload as well, or "
            "leave error_feedback out.",
        )

    def send(self, update: Update, client: int, round: Round) -> None:
        for j, delta in update.cells.items():
            rng = generator(self.run.settings.seed, "upload", client, round.number, j)
            update.encoded[j] = data = self.codec.encode(delta, rng)
            update.parts[j] = self.codec.decode(data, len(delta), delta.dtype)
            if round.kept is not None:
                update.lost[j] = (delta - update.parts[j]).cpu()


class Feedback(Stage):
    """Error feedback (Seide et al. 2014; Karimireddy et al. 2019), in files of the clients."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._residuals: ClientState | None = None

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return bool(settings.error_feedback)

    @property
    def residuals(self) -> ClientState:
        """What the server knows of the clients' files."""
        if self._residuals is None:
            folder = tempfile.mkdtemp(prefix="fedpart-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._residuals = ClientState(Path(folder), self.run.fingerprint)
        return self._residuals

    def keep_in(self, residuals: Path, releases: Path, run: str) -> None:
        self._residuals = self._residuals or ClientState(residuals, self.run.fingerprint)
        self._residuals.folder = residuals

    def start(self, round: Round) -> Round:
        return replace(round, kept=self.residuals)

    def send(self, update: Update, client: int, round: Round) -> None:
        for j, lost in self._left(client, round).items():
            if j in update.parts:
                update.parts[j] += lost.to(update.parts[j].device)
            update.lost[j] = lost

    def sent(self, update: Update, client: int, round: Round) -> None:
        if round.kept is not None:
            round.kept.write(client, round.number, update.lost)
            update.lost = {}

    def _left(self, client: int, round: Round) -> dict[int, Tensor]:
        """What codes have lost of the client; nothing if that is gone, and clients may come and go."""
        if round.kept is None:
            return {}
        try:
            return round.kept.read(client)
        except ValueError as error:
            if self.run.settings.on_client_error == "fail":
                raise
            warnings.warn(f"Client {client} begins with nothing kept: {error}.", RuntimeWarning, stacklevel=3)
            return {}

    def accept(self, total: Update, round: int, clients: Sequence[int]) -> None:
        self.residuals.take(round, clients)

    def state_dict(self) -> dict[str, Any]:
        return {"residuals": self.residuals.versions}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.residuals.versions = dict(state["residuals"])
        self.residuals.saved()

    def saved(self) -> None:
        self.residuals.saved()
