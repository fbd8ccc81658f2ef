"""Turns: whom the server asks in a round, and whose answers it steps with, by simulated time."""

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from fedpart.federated.pace.devices import Fleet
from fedpart.federated.pace.settings import PaceSettings

Values = tuple[Tensor, Tensor]  # w [size] and psi [P]
Seconds = Callable[[int], float]  # that a client takes if it starts in this round
Draw = Callable[..., list[int]]  # draws clients, as Federation.cohort does


@dataclass(frozen=True)
class Group:
    """Clients of one step that have started from the same values."""

    round: int  # in which they have started
    clients: list[int]  # ascending
    scale: float = 1.0  # of their changes, in a mean that is divided as if they were not scaled


@dataclass(frozen=True)
class Turn:
    """A round, before anything of it is computed."""

    cohort: list[int]  # asked for the step; with a buffer those that it takes
    groups: list[Group]  # whose answers are in the step, ascending by the round in which they started
    ends: float  # simulated seconds since the run began, when the server steps
    asked: list[int]  # who have got the server's values
    late: list[tuple[int, float]] = field(default_factory=list)  # left out, with the seconds they would take
    staleness: float | None = None  # mean number of steps since the clients of `groups` started
    state: Any = None  # what the pace remembers of it


class Synchronous:
    """Rounds that wait for their cohort: for all of it, for the first to answer, or until a deadline.

    ``now``: simulated seconds since the run began."""

    def __init__(self, settings: PaceSettings, cohort: int, fleet: Fleet) -> None:
        self.now, self.fleet, self._cohort = 0.0, fleet, cohort
        self._asks = math.ceil(settings.overselect * cohort - 1e-9)
        self._deadline = math.inf if settings.deadline is None else settings.deadline

    def turn(self, round: int, draw: Draw, seconds: Seconds) -> Turn:
        """Round ``round`` (1..); nothing is changed before it is committed."""
        cohort = draw(round, self.fleet.available(round), size=self._asks)
        times = {client: seconds(client) for client in cohort}
        first = sorted(cohort, key=lambda client: (times[client], client))[: self._cohort]
        kept = sorted(client for client in first if times[client] <= self._deadline)
        late = [(client, times[client]) for client in cohort if client not in set(kept)]
        waits = late and len(kept) < self._cohort  # in vain: for the deadline
        took = self._deadline if waits else max((times[client] for client in kept), default=0.0)
        groups = [Group(round, kept)] if kept else []
        return Turn(cohort, groups, self.now + took, cohort, late)

    def commit(self, turn: Turn, w: Tensor, psi: Tensor) -> None:
        """Go on from the end of ``turn``; ``w``, ``psi``: the server's values in it, before its step."""
        self.now = turn.ends

    def values(self, round: int) -> Values | None:
        """What clients that started in an earlier round started from; None: the server's own values."""
        return None

    def report(self, round: int) -> dict[str, Any]:
        """Fields of the report on the round that is completed."""
        return {"simulated_seconds": self.now}

    def state_dict(self) -> dict[str, Any]:
        """What decides how it goes on, by its key in checkpoints."""
        return {"pace": {"now": self.now}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`, from the state of the whole run."""
        self.now = state.get("pace", {}).get("now", 0.0)


class Start(NamedTuple):
    """A client under way: when it will have answered, its number, and the round in which it started."""

    arrives: float
    client: int
    round: int


class Buffered:
    """M clients train at a time, each from the server's values when it started; K answers make a step.

    A client that has answered makes room for another, drawn from those that neither train nor wait in the
    buffer; so a client starts at most once from the same values. Answers that come at the same moment are
    taken by client number, and before anybody starts at that moment. Where nobody takes any time and K, M and
    the cohort are the same number, a step's clients are then the cohort of a synchronous round.

    A client is computed when it has answered, which needs the values that clients under way have started
    from: up to M copies, fewer if several started from the same. Its answer counts where it failed, too.
    """

    staleness: float | None = None  # of the last turn

    def __init__(self, settings: PaceSettings, cohort: int, fleet: Fleet | None) -> None:
        self.now, self.fleet = 0.0, fleet
        self._buffer = settings.buffer or cohort
        self._concurrency = settings.concurrency or cohort
        self._damped = settings.staleness == "sqrt"
        self._under_way: list[Start] = []  # a heap
        self._values: dict[int, Values] = {}  # by the round that started from them

    def turn(self, round: int, draw: Draw, seconds: Seconds) -> Turn:
        """The step ``round`` (1..); nothing is changed before it is committed.

        It takes fewer than K answers where too few clients are there."""
        now, under_way, taken = self.now, list(self._under_way), list[Start]()
        available = None if self.fleet is None else self.fleet.available(round)
        asked, fills = list[int](), 0
        while len(taken) < self._buffer:
            if not under_way or under_way[0].arrives > now:
                busy = {start.client for start in (*under_way, *taken)}
                free = self._concurrency - len(under_way)
                started = draw(round, available, size=free, without=busy, turn=fills) if free else []
                for client in started:
                    heapq.heappush(under_way, Start(now + seconds(client), client, round))
                asked, fills = asked + started, fills + bool(free)
                if not under_way:
                    break
                if started:
                    continue
                now = under_way[0].arrives
            taken.append(heapq.heappop(under_way))
        groups = []
        for begun in sorted({start.round for start in taken}):
            clients = sorted(start.client for start in taken if start.round == begun)
            groups.append(Group(begun, clients, (1 + round - begun) ** -0.5 if self._damped else 1.0))
        stale = sum(round - start.round for start in taken) / max(1, len(taken))
        cohort = sorted(start.client for start in taken)
        return Turn(cohort, groups, now, asked, staleness=stale, state=(round, under_way))

    def commit(self, turn: Turn, w: Tensor, psi: Tensor) -> None:
        """See :meth:`Synchronous.commit`."""
        self.now, self.staleness, (round, self._under_way) = turn.ends, turn.staleness, turn.state
        needed = {start.round for start in self._under_way}
        self._values = {begun: values for begun, values in self._values.items() if begun in needed}
        if round in needed:
            self._values[round] = w.clone(), psi.clone()

    def values(self, round: int) -> Values | None:
        """See :meth:`Synchronous.values`."""
        return self._values.get(round)

    def report(self, round: int) -> dict[str, Any]:
        """Fields of the report on the round that is completed."""
        return {"simulated_seconds": None if self.fleet is None else self.now, "staleness": self.staleness}

    def state_dict(self) -> dict[str, Any]:
        """What decides how it goes on: the clock, who is under way, and from which values."""
        under_way = [tuple(start) for start in self._under_way]
        return {"pace": {"now": self.now, "under_way": under_way, "values": dict(self._values)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`, from the state of the whole run."""
        state = state["pace"]
        self.now = state["now"]
        self._under_way = [Start(*start) for start in state["under_way"]]
        self._values = {begun: (w, psi) for begun, (w, psi) in state["values"].items()}


Pace = Synchronous | Buffered


def pace_of(settings: Any) -> Pace | None:
    """The pace of a run with these :class:`.FederationSettings`; None: nobody takes any time."""
    devices = settings.devices
    fleet = None if devices is None else Fleet(devices, settings.clients, settings.seed)
    if settings.buffer is not None:
        return Buffered(settings, settings.cohort, fleet)
    return None if fleet is None else Synchronous(settings, settings.cohort, fleet)
