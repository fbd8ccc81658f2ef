"""ClientState: what a client keeps from one round for its next ones, by client and round, on every engine."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.training.files import read_tensors, replace

NONE = (0, 0, 0)  # versions of a client of which nothing has been taken


class ClientState:
    """Files of tensors, one for each client and round that has left one.

    A client writes what its round leaves before anybody knows whether its update will be taken. So the server
    says from which round's file it begins: of the last round in which it has taken the client's update. After
    a reply that was not taken that is an older one, and so it is in a run that was killed and goes on from a
    checkpoint. When a client writes a file it removes those before it that no checkpoint can ask for.

    versions: by client, the round whose file it begins from, and those in the last two checkpoints; 0: none.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.folder, self.run = folder, run
        self.versions: dict[int, tuple[int, ...]] = {}

    def of(self, clients: Iterable[int]) -> "ClientState":
        """For these clients alone, to be sent to whoever computes them."""
        some = ClientState(self.folder, self.run)
        some.versions = {client: self.versions.get(client, NONE) for client in clients}
        return some

    def take(self, round: int, clients: Iterable[int]) -> None:
        """The updates of ``clients`` are in the weights that came out of ``round``."""
        for client in clients:
            self.versions[client] = (round, *self.versions.get(client, NONE)[1:])

    def saved(self) -> None:
        """The versions are those of a checkpoint, which takes the place of the one before."""
        self.versions = {client: (now, now, last) for client, (now, last, _) in self.versions.items()}

    def read(self, client: int) -> dict[int, Tensor]:
        """What the client begins from, tensors as in :attr:`.Update.kept`; empty: nothing is."""
        round = self.versions.get(client, NONE)[0]
        if round == 0:
            return {}
        file, wanted = self._file(client, round), [client, round]
        try:
            content: dict[Any, Any] = read_tensors(file)
            require(content.pop("of", wanted) == wanted, "it is of another client or round")
        except Exception as error:  # a torn or foreign file raises anything
            reason = " ".join(str(error).split())
            fault = f"what the client has kept of round {round} cannot be read"
            raise ValueError(f"{fault} ({reason}); put {file} back, or start the run anew") from error
        return content

    def write(self, client: int, round: int, left: dict[int, Tensor]) -> None:
        """Keep what ``round`` leaves, in the form of :meth:`read`."""
        file = self._file(client, round)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self.folder, file.parent.parent, file.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        content: dict[Any, Any] = {**left, "of": [client, round]}
        replace(file, lambda into: torch.save(content, into))
        for other in file.parent.glob("*.pt"):
            if int(other.stem) < round and int(other.stem) not in self.versions.get(client, NONE):
                other.unlink(missing_ok=True)

    def _file(self, client: int, round: int) -> Path:
        return self.folder / self.run / str(client) / f"{round}.pt"
