"""Kept: what clients keep from one round for their next ones, in files of theirs."""

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpart.updates.client_state import ClientState
from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.update import Round, Update


class Kept(Stage):
    """The clients' files, by cell: what their codes lose, and, by minus the cell, their variates."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._residuals: ClientState | None = None

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return bool(settings.keeps)

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

    def begin(self, update: Update, client: int, round: Round) -> None:
        """Read what the client has kept; nothing if that is gone, and clients may come and go."""
        if round.kept is None:
            return
        try:
            update.kept = round.kept.read(client)
        except ValueError as error:
            if self.run.settings.on_client_error == "fail":
                raise
            warnings.warn(f"Client {client} begins with nothing kept: {error}.", RuntimeWarning, stacklevel=3)

    def sent(self, update: Update, client: int, round: Round) -> None:
        if round.kept is not None:
            round.kept.write(client, round.number, update.kept)
            update.kept = {}

    def accept(self, total: Update, round: int, clients: Sequence[int]) -> None:
        self.residuals.take(round, clients)

    def state_dict(self) -> dict[str, Any]:
        return {"residuals": self.residuals.versions}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.residuals.versions = dict(state["residuals"])
        self.residuals.saved()

    def saved(self) -> None:
        self.residuals.saved()
