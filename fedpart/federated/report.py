"""Reports: what a round tells, and where a cohort is too small for its defence to bear a hostile client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from fedpart.federated.cohorts import CohortSum, tally
from fedpart.federated.protocol import Protocol
from fedpart.federated.settings import LARGEST_COUNT
from fedpart.loggers.lines import in_words, metrics_line
from fedpart.nn.hyperparameters.base import HyperModule, told
from fedpart.updates.combining.base import spelled

if TYPE_CHECKING:
    from fedpart.federated.federation import Federation


@dataclass
class RoundReport:
    """What is known of a finished round; bytes are summed over the cohort.

    Attributes:
        round: 1..; seconds: wall-clock of the round; a runner that evaluates adds that.
        train_loss: mean over the cohort's examples, nats, through each client's largest subnetwork.
        lml: L_ML per example, nats: mean log-likelihood of the cohort's clients of chunks k >= 2 by
            subnetwork k-1, which has never seen them (Eq. 26), at the round's start; None: there were none.
        cohort: client numbers.
        psi: raw values by name, see :func:`.told`; physical: in units that a person reads.
        skipped: clients without an update, with category and reason, see :class:`.Refusal`.
        refused: how often each category occurred: of the skipped clients, and of messages that were left
            out besides.
        replies: how many updates were taken.
        stepped: whether they were enough for a step.
        epsilon: spent so far, at the settings' delta, of a run with privacy.
        examples: whose gradients the clients of the sum have computed, counted in every epoch and job.
        client_seconds: that these clients took to compute, summed; where they are computed together, the
            round's. Both None with privacy: clients do not tell.
        val_accuracy: fraction, on evaluation rounds where there are classes; val_nll: nats per example.
        client_accuracy, client_nll: the same on what clients hold out of training, where they evaluate: means
            over all their examples.
        client_accuracy_worst_decile, client_nll_worst_decile: means over the tenth of the clients, at least
            one, with the lowest accuracy, and with the highest nll.
        client_accuracy_chunks, client_nll_chunks: for each chunk 1..C the mean over its clients' examples;
            None: there are none.
        client_accuracy_caps, client_nll_caps: the same for each cap 1..C, of the subnetworks that these
            clients compute, where there are ``caps``.
        client_accuracy_each, client_nll_each: by client 0..N-1, without privacy and where all N score.
        val_accuracy_architectures, val_nll_architectures, client_accuracy_architectures,
            client_nll_architectures: by architecture, where there are ``architectures``; the others are of
            the whole network, and of all clients.
        evaluation_bytes: of the messages of the clients' evaluation, down and up.
        simulated_seconds: on the simulated clock of ``devices``, from the run's beginning to the round's end;
            without evaluations.
        clipped: clients with an update that was longer than its bound, where bounds follow the clients.
        psi_alarms: chunks whose clients' psi gradients were of another size than usual, see
            :attr:`.UsualNorms.alarms`; None: there was none.
        staleness: with a buffer, how many steps the server has made since a client of the cohort
            started, on average.
        factors, candidates: with ``halving`` of the candidate whose round it was what its rates are
            multiplied with, and how many took part; psi, scores and rates are of the best so far.
    """

    round: int
    seconds: float
    train_loss: float | None
    lml: float | None
    cohort: list[int]
    upload_bytes: int
    download_bytes: int
    psi: dict[str, list[float] | dict[str, float]]
    physical: dict[str, float]
    skipped: list[dict[str, Any]] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    replies: int = 0
    stepped: bool = True
    epsilon: float | None = None
    examples: int | None = None
    client_seconds: float | None = None
    val_accuracy: float | None = None
    val_nll: float | None = None
    val_accuracy_architectures: list[float | None] | None = None
    val_nll_architectures: list[float] | None = None
    client_accuracy: float | None = None
    client_nll: float | None = None
    client_accuracy_worst_decile: float | None = None
    client_accuracy_chunks: list[float | None] | None = None
    client_accuracy_caps: list[float | None] | None = None
    client_accuracy_each: list[float | None] | None = None
    client_accuracy_architectures: list[float | None] | None = None
    client_nll_worst_decile: float | None = None
    client_nll_chunks: list[float | None] | None = None
    client_nll_caps: list[float | None] | None = None
    client_nll_each: list[float | None] | None = None
    client_nll_architectures: list[float | None] | None = None
    evaluation_bytes: int | None = None
    simulated_seconds: float | None = None
    staleness: float | None = None
    clipped: list[int] | None = None
    psi_alarms: list[dict[str, Any]] | None = None
    factors: dict[str, float] | None = None
    candidates: int | None = None

    def __str__(self) -> str:
        return f"round {self.round}: {in_words(metrics_line(self))}"

    @classmethod
    def of(
        cls, state: Federation, answers: CohortSum, seconds: float, download: int, refused: Sequence[str] = ()
    ) -> RoundReport:
        """That of the round which ``state`` has just finished with ``answers``, in so many seconds;
        ``refused``: categories of messages that were left out, beside those of the skipped clients.
        """
        psi, number = state.psi.cpu(), state.completed  # read once, not number by number
        fields = answers.told(seconds) | {"stepped": state.stepped}
        fields["refused"] = tally(answers.skipped, refused)
        fields["psi"] = {name: told(value) for name, value in state.task.psi_tensors(psi).items()}
        fields["physical"] = state.task.physical(psi)
        report = cls(round=number, seconds=seconds, download_bytes=download, **fields)
        for part in state.remembering:
            vars(report).update(part.report(number))
        return report


def contributors(protocol: Protocol) -> dict[str, float]:
    """How many clients of a cohort send each partition, as ``w_j``, and ``psi``'s gradient, on average."""
    counts: dict[str, float] = {}
    for client, count in protocol.kinds.values():
        jobs = protocol.plan(client, 1)
        sent = [f"w_{job.partition}" for job in jobs if job.partition is not None]
        sent += ["psi"] if any(job.psi for job in jobs) else []
        for name in sent:
            more = protocol.settings.cohort * count / protocol.settings.clients
            counts[name] = counts.get(name, 0.0) + more
    return dict(sorted(counts.items()))


def untaught(protocol: Protocol) -> str:
    """A sentence on why a run of partitioned networks learns no hyperparameter; empty: it learns some."""
    task, settings = protocol.task, protocol.settings
    if spelled(settings.method)[0] != "partitioned":
        return ""
    if not task.psi_space.size:
        way = "put in a ConcreteDropout layer, or transforms=[AffineAugmentation()]"
        if any(type(layer) is nn.Dropout for layer in task.module.modules()):
            way = "Task(network, learn_dropout=True) learns the rate of each nn.Dropout"
        layers = (layer for of in (task.module, *task.transforms.values()) for layer in of.modules())
        if any(isinstance(layer, HyperModule) and layer.hyperparameters for layer in layers):
            way = "call requires_grad_() on those that it has, for they are frozen"
        return f"Only the network is learned, for it has no hyperparameters to learn: {way}."
    why = "hyperparameters learn from chunks that a subnetwork has not seen, and no client has one"
    told = f"Only the network is learned, for {why}: give chunks two shares or more."
    return "" if "psi" in contributors(protocol) else told


def nothing_learnt(lines: Sequence[Mapping[str, Any]], needed: int) -> str:
    """Why no round has stepped on an update, of which a step takes ``needed``: the commonest category of
    refusal, and its last example. ``lines``: rounds by their fields; empty: one has, or none was run."""
    if not lines or any(line.get("stepped", True) and line.get("replies", 1) for line in lines):
        return ""
    skips = [skip for line in lines for skip in line["skipped"]]
    fault = f"none of {len(lines)} rounds had the updates that a step takes, {needed} or more"
    said = f"Nothing is learnt: {fault}."
    if not skips:
        return f"{said} There were too few clients; start more of them, or lower min_replies."
    category, count = Counter(skip["category"] for skip in skips).most_common(1)[0]
    reasons = {skip["category"]: skip["reason"] for skip in skips}
    return f"{said} Most often ({count} times) because of {category}, for instance: {reasons[category]}"


def unsteady(protocol: Protocol) -> str:
    """A sentence on SCAFFOLD's variates, which may grow; empty: there are none, or clients take one step."""
    settings = protocol.settings
    steps = settings.local.epochs * -(-settings.max_examples // settings.local.batch_size)
    if not settings.combination.sends or steps == 1 or settings.max_examples == LARGEST_COUNT:
        return ""
    return (
        f"With {settings.method} a client's variate is the mean gradient of its last steps, here up to "
        f"{steps} a round, and may grow where these lead far: if the loss rises at a rate at which fedavg "
        f"learns, divide local.learning_rate by about {steps}."
    )


def exposed(protocol: Protocol) -> str:
    """A sentence on what one hostile client of a usual cohort can move; empty: nothing, or no defence."""
    if protocol.settings.defence is None:
        return ""
    defended, few = protocol.settings.defend(), contributors(protocol)
    named = {name: n for name, n in few.items() if defended.bears(round(n)) == 0}
    if not named:
        return ""
    numbers = ", ".join(f"{name} from {n:.3g}" for name, n in named.items())
    return (
        f"A round has {numbers} clients on average, of whom the defence bears no hostile one: ask for a "
        f"larger cohort."
    )
