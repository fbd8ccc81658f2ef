"""FedPart: a Flower strategy for every fedpart method."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from logging import INFO, WARNING, getLogger
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpart.checks import require
from fedpart.federated.cohorts import CohortSum, expected_upload_ratio, sum_cohort
from fedpart.federated.evaluation import ClientScores, evaluation_cohort, is_due
from fedpart.federated.federation import Federation
from fedpart.federated.report import RoundReport
from fedpart.flower import messages
from fedpart.flower.nodes import Nodes
from fedpart.flower.workarounds import guarded, is_deployed
from fedpart.flower.workarounds.objects import message_bytes
from fedpart.partition.partition import Partition
from fedpart.updates.errors import ClientError, Refusal
from fedpart.updates.stages.privacy import refuse_seeded
from fedpart.updates.update import Round, Update

log = getLogger("flwr").log
REST_OF_REPLY = 2**20  # bytes, beyond its numbers; ours have about 2,000, and an error quotes a traceback


class FedPart(Strategy):
    """Federated learning with the method of a :class:`fedpart.Federation`: any of them, or your own.

    The federation holds the state and knows the round. In a ServerApp's main::

        FedPart(Federation(Protocol(task, settings))).run(grid, rounds=100)

    Clients are drawn by number, never by node id, and updates are summed in a fixed order, so that the result
    is the same to the bit whatever the runtime, the node ids and the order of replies.

    Args:
        federation: the state; continued from where it is.
        on_round: called with the report of every round; bytes are those of the serialised messages.
        late: whether clients with numbers of N or more may join later, with ``on_client_error: skip``; not
            with privacy where clients have caps or architectures.
        evaluate_every: rounds between evaluations by the N clients, if the settings say that they evaluate.

    Raises:
        ClientError: while it runs, a client failed, did not answer in time or sent an update that was
            refused, and the settings say ``on_client_error: fail``; with ``skip`` the report lists it.
        NodesError: too few nodes, or nodes that do not belong to the run.
        ValueError: the settings simulate the time that clients take, see :class:`.PacedFedPart`; over a grid
            to a SuperLink, privacy is simulated, see :func:`.refuse_seeded`.
    """

    def __init__(
        self, federation: Federation, *, on_round: Callable[[RoundReport], None] | None = None,
        late: bool = True, evaluate_every: int = 10,
    ) -> None:  # fmt: skip
        self.federation, self.on_round = federation, on_round
        settings = federation.protocol.settings
        self._check_pace()
        self._cohort: list[int] = []
        self._skip = settings.on_client_error == "skip"
        late = late and self._skip and not settings.noise_by_kind
        self._nodes = Nodes(settings.clients, settings.node_timeout, lenient=self._skip, late=late)
        self._met_all = False
        self._states: dict[
            tuple[bool, int, Partition], ArrayRecord
        ] = {}  # by the round that starts from them
        self._sent: dict[int, Message] = {}  # by client, in the order of the sum
        self._started = 0.0
        self._relay: Any = None  # of a grid whose hosts sum what they have computed
        self._evaluate_every, self._last = evaluate_every, 0
        self.told: dict[str, str] = {}  # beside the rest in every message to a client
        self._report: RoundReport | None = None  # of a round that clients still evaluate

    def _check_pace(self) -> None:
        self.federation.protocol.settings.check_real()

    def _draw(self, start: Round, available: Sequence[int] | None) -> list[tuple[Round, list[int]]]:
        """Whom this round asks, and what each has started from, in the order of the sum."""
        self._cohort = self.federation.cohort(start.number, available)
        return [(start, self._cohort)]

    def _sum(self, start: Round, sum_of: Callable[[Round, Sequence[int]], CohortSum]) -> CohortSum:
        """The sum of the round's answers."""
        return sum_of(start, self._cohort)

    def _download(self) -> int:
        """Bytes that the round's clients were sent."""
        return sum(map(message_bytes, self._sent.values()))

    def run(self, grid: Grid, rounds: int) -> Result:
        """Run until ``rounds`` rounds are complete; :meth:`start` with what it needs.

        A client that has not answered after the settings' ``round_timeout`` is missing in that round; it is
        drawn again in later ones like any other. A round begins when there are nodes to write to: those that
        are missing are waited for before the first one, and later only if nobody is there.

        Args:
            grid: Flower's, or any other.
            rounds: counted from the first of the federation.

        Returns:
            Flower's, of the rounds that were run; its arrays are ``w`` and ``psi``.
        """
        self._states.clear()  # the federation's values may be others by now
        missing = rounds - self.federation.round
        if missing <= 0:
            return Result(arrays=self.initial_arrays())
        timeout = self.federation.protocol.settings.round_timeout
        return self.start(grid, self.initial_arrays(), num_rounds=missing, timeout=timeout)

    def start(self, grid: Grid, *args: Any, **options: Any) -> Result:
        """Flower's loop over the rounds; over its grid to a SuperLink, no reply can end it or hold it up."""
        if is_deployed(grid):
            refuse_seeded(self.federation.protocol.settings.privacy)
        w, psi = self.federation.w, self.federation.psi
        rounds = options["num_rounds"] if "num_rounds" in options else args[1] if len(args) > 1 else 3
        self._last = self.federation.round + rounds
        self._relay = getattr(grid, "relay", None)
        largest = w.numel() * w.element_size() + psi.numel() * psi.element_size() + REST_OF_REPLY
        return super().start(guarded(grid, largest), *args, **options)

    def initial_arrays(self) -> ArrayRecord:
        """w and psi of the federation, for :meth:`start`."""
        return self._state(self._values(), self.federation.partition)

    def _state(self, values: Round, partition: Partition, of_next: bool = True) -> ArrayRecord:
        key = of_next, values.number, partition
        if key not in self._states:
            self._states[key] = messages.state_record(values, self.federation.protocol, partition)
        return self._states[key]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw the cohort of the federation's next round, and write to it."""
        way = "pass strategy.initial_arrays() to start(), and load other values into the federation."
        begins = f"FedPart starts from the state of its federation; {way}"
        require(arrays is self.initial_arrays(), begins)
        federation, protocol = self.federation, self.federation.protocol
        everyone, nodes = range(protocol.settings.clients), dict[int, int]()
        if not self._met_all:
            nodes = self._nodes.wait_for(grid, everyone)
            self._met_all = True
        elif self._skip:
            nodes = self._nodes.present(grid) or self._nodes.wait_for(grid)
        lacking = self._skip and nodes.keys() != set(everyone)
        values = self._values()
        groups = self._draw(values, sorted(nodes) if lacking else None)
        if not nodes:
            nodes = self._nodes.wait_for(grid, [client for _, clients in groups for client in clients])
        self._started = time.perf_counter()  # the round begins when there are nodes to write to
        self._sent = {}
        for begun, clients in groups:
            for client in filter(nodes.__contains__, clients):
                state = self._state(begun, protocol.partition_of(client))
                tried = {"local_rate": begun.local_rate, "trial": begun.trial} if federation.race else None
                more = nodes[client], state, values.kept, MessageType.TRAIN, tried
                self._sent[client] = messages.instruction(protocol, begun.number, client, *more)
        return self._messages()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, sum them in the cohort's order as they come, and step the federation."""
        federation, protocol = self.federation, self.federation.protocol
        start, whole = self._values(), federation.pace is None and protocol.settings.defence is None
        relay, written = self._relay if whole else None, [*self._sent.values()]
        relayed = relay and relay(written, protocol, start, protocol.settings.round_timeout)
        incoming = messages.Incoming(() if relayed else replies, self._sent)

        def sum_of(begun: Round, clients: Sequence[int]) -> CohortSum:
            def answer(client: int) -> Update:
                read = partial(messages.read_reply, limit=begun.limit)
                return messages.blaming(read, protocol, begun.number, client, incoming.take(client))

            return sum_cohort(protocol, begun, clients, answer)

        total = relayed or self._sum(start, sum_of)
        for skip in (skip for skip in total.skipped if skip["category"] != "late"):
            log(WARNING, "Client %s is left out: %s", skip["client"], skip["reason"])
        more = self._refused(incoming, start.number)  # first answers are in the sum
        total.upload_bytes, download = total.upload_bytes if relayed else incoming.bytes, self._download()
        federation.step(total)
        self._states.clear()
        report = RoundReport.of(federation, total, time.perf_counter() - self._started, download, more)
        if not report.stepped:
            few = "Round %s has %s replies of the %s that it needs, and does not step."
            log(WARNING, few, report.round, report.replies, protocol.settings.min_replies)
        if is_due(protocol.settings, report.round, self._evaluate_every, self._last):
            self._report = report
        elif self.on_round is not None:
            self.on_round(report)
        names = ("train_loss", "lml", "upload_bytes", "download_bytes", "replies", "epsilon")
        counts = {"skipped": len(report.skipped), "refused": sum(report.refused.values())}
        return self.initial_arrays(), _metrics(report, *names, **counts, **_psi_of(report))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask clients for their scores, where that is due; else nothing."""
        self._sent = {}
        if self._report is None:
            return []
        protocol, round = self.federation.protocol, self.federation.round
        cohort = evaluation_cohort(protocol.settings, round)
        nodes = self._nodes.present(grid) if self._skip else self._nodes.wait_for(grid, cohort)
        self._started, values = time.perf_counter(), self.federation.start(round)
        for client in (client for client in cohort if client in nodes):
            state = self._state(values, protocol.partition_of(client), of_next=False)
            more = nodes[client], state, values.kept
            self._sent[client] = messages.instruction(protocol, round, client, *more, MessageType.EVALUATE)
        return self._messages()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Complete the report of the round with the scores, checked and in the order of the clients."""
        if self._report is None:
            return None
        report, self._report = self._report, None
        incoming = messages.Incoming(replies, self._sent)
        protocol = self.federation.protocol
        trial = (race := self.federation.race) is not None and len(race.left) > 1
        scores = ClientScores(protocol, list(self._sent), trial)
        of_round = messages.read_score, protocol, report.round
        scores.gather(lambda client: messages.blaming(*of_round, client, incoming.take(client)))
        scores.write(report, self._refused(incoming, report.round))
        sent = sum(message_bytes(message) for message in self._sent.values())
        report.evaluation_bytes = sent + incoming.bytes
        report.seconds += time.perf_counter() - self._started
        if self.on_round is not None:
            self.on_round(report)
        return _metrics(report, "client_accuracy", "client_nll")

    def summary(self) -> None:
        """Log what the run consists of."""
        protocol, settings = self.federation.protocol, self.federation.protocol.settings
        log(INFO, "\t├── Method: %s, chunks %s", settings.method, protocol.chunks)
        log(INFO, "\t├── Clients: %s, %s per round", settings.clients, settings.cohort)
        counts = [protocol.task.counts[name] for name in ("trained", "psi", "frozen")]
        log(INFO, "\t├── Weights: %s, psi: %s, frozen: %s", *counts)
        if settings.clip is not None:
            log(INFO, "\t├── Clip: %s", settings.clip)
        log(INFO, "\t└── Upload: %.3f of FedAvg's, expected", expected_upload_ratio(protocol))

    def _messages(self) -> list[Message]:
        """What is sent, with all that is told."""
        for message in self._sent.values():
            cast(ConfigRecord, message.content["config"]).update(self.told)
        return list(self._sent.values())

    def _refused(self, incoming: messages.Incoming, round: int) -> list[str]:
        """A word for each reply that is in no sum, or a ClientError, where a client has answered twice."""
        repeated = incoming.repeated()
        for client in repeated:
            if not self._skip:
                raise ClientError.refused(client, round, Refusal("repeated", "it came more than once"))
            log(WARNING, "Client %s has answered more than once; the first answer counts.", client)
        return ["repeated"] * len(repeated) + ["late"] * incoming.late

    def _values(self) -> Round:
        """What the clients that begin now begin with."""
        return self.federation.start(self.federation.round + 1)


def _psi_of(report: RoundReport) -> dict[str, Any]:
    """``psi/affine.angle_max [deg]``, as loggers have it, and raw values, ``psi-raw/affine.range``: lists."""
    record: dict[str, Any] = {f"psi/{name}": value for name, value in report.physical.items()}
    for name, raw in report.psi.items():
        parts = {f"/{key}": value for key, value in raw.items()} if isinstance(raw, dict) else {"": raw}
        record |= {f"psi-raw/{name}{key}": value for key, value in parts.items()}
    return record


def _metrics(report: RoundReport, *names: str, **more: Any) -> MetricRecord:
    """What a report says of these, as far as it does, and more."""
    said = {name.replace("_", "-"): getattr(report, name) for name in names}
    return MetricRecord({**{name: value for name, value in said.items() if value is not None}, **more})
