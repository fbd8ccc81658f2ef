"""PacedFedPart: the strategy where clients' time is simulated, by the devices that the settings describe."""

from collections.abc import Callable, Sequence
from typing import Any

from fedpart.data.given import Examples, Shards
from fedpart.engines.paced import Turns
from fedpart.federated.cohorts import CohortSum, download_bytes
from fedpart.federated.federation import Federation
from fedpart.federated.pace.turns import Turn
from fedpart.flower.strategy import FedPart
from fedpart.flower.workarounds.objects import message_bytes
from fedpart.updates.update import Round


def strategy_of(federation: Federation, shards: Sequence[Examples] | None, **options: Any) -> FedPart:
    """The strategy for a federation: paced where its time is simulated, and the shards are known."""
    if federation.pace is None or shards is None:
        return FedPart(federation, **options)
    return PacedFedPart(federation, shards, **options)


class PacedFedPart(FedPart):
    """A :class:`FedPart` of a federation with a pace; nobody may join later.

    ``shards[client]`` has as many examples as the client's data."""

    def __init__(self, federation: Federation, shards: Sequence[Examples], **options: Any) -> None:
        super().__init__(federation, **{**options, "late": False})
        self._turns, self._turn = Turns(federation, Shards(shards)), Turn([], [], 0.0, [])

    def _check_pace(self) -> None:
        """Time may be simulated here."""

    def _draw(self, start: Round, available: Sequence[int] | None) -> list[tuple[Round, list[int]]]:
        self._turn = self._turns.next(start, available)
        return [(self._turns.begun(group, start), group.clients) for group in self._turn.groups]

    def _sum(self, start: Round, sum_of: Callable[[Round, Sequence[int]], CohortSum]) -> CohortSum:
        summed = self._turns.sum(self._turn, start, sum_of)
        self._turns.pace.commit(self._turn, start.w, start.psi)
        return summed

    def _download(self) -> int:
        """Who is asked in simulated time is written to later."""
        sent, protocol = self._sent, self.federation.protocol
        return sum(
            message_bytes(sent[client]) if client in sent else download_bytes(protocol, client)
            for client in self._turn.asked
        )
