"""How long clients take on their simulated devices, known before they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpart.data.dataset import Dataset
from fedpart.engines.batches import count_visited
from fedpart.federated.federation import Federation
from fedpart.federated.round import Round
from fedpart.updates.errors import ClientError, skipped

DOWNLOAD_HEADER = 710  # bytes of a Flower message besides its numbers, about; nothing is sent here


class ClientTimes:
    """The clients' times on the devices of a federation's fleet; without one, nobody takes any.

    Args:
        federation: of the run.
        shards: ``shards[client]`` is the client's data.

    Attributes:
        download: bytes that a client is sent.
    """

    def __init__(self, federation: Federation, shards: Sequence[Dataset]) -> None:
        self._protocol, self._fleet, self._shards = federation.protocol, federation.fleet, shards
        numbers = len(federation.w) + len(federation.psi)
        self.download = numbers * federation.w.element_size() + DOWNLOAD_HEADER

    def seconds(self, round: Round, client: int) -> float:
        """Simulated seconds from asking ``client`` in ``round`` to its answer.

        ``download / bandwidth + visited / speed + upload / bandwidth``; one whose data cannot be read visits
        nothing, and says so when it is computed.
        """
        if self._fleet is None:
            return 0.0
        protocol, jobs = self._protocol, self._protocol.plan(client, round.number)
        local = protocol.method.local_settings(protocol.view(client, round.number, round.psi))
        try:
            examples = len(self._shards[client])
        except Exception:
            examples = 0
        visited = sum(count_visited(protocol, local, examples, job) for job in jobs) if examples else 0
        upload = protocol.upload_bytes(client, jobs)
        return self._fleet.device(client).seconds(self.download, visited, upload)


def too_late(client: int, seconds: float, round: int) -> dict[str, Any]:
    """A client that the server has not waited for, as a report lists it."""
    error = ClientError(f"Client {client} was not waited for in round {round}: it takes {seconds:.4g} s.")
    error.category = "late"
    return skipped(client, error)
