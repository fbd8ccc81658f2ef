"""Scores: who scores a round's network and what that amounts to; what each architecture is worth."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.federated.cohorts import tally
from fedpart.federated.federation import Federation
from fedpart.federated.protocol import Protocol
from fedpart.federated.report import RoundReport
from fedpart.federated.settings import FederationSettings
from fedpart.randomness.streams import generator
from fedpart.task.held_out import HeldOutScore
from fedpart.task.task import Batch
from fedpart.training.plain import multiply_adds
from fedpart.updates.errors import ClientError, Refusal, skipped
from fedpart.updates.update import LARGEST

DECILE = 10  # the worst clients are one in so many
Sums = Mapping[int, tuple[float, int]]  # by client: a sum, and over how many examples


def is_due(settings: FederationSettings, round: int, every: int, last: int) -> bool:
    """Whether clients score the network after ``round``: every so many rounds, and after the last one."""
    return settings.evaluation == "clients" and (round % every == 0 or round >= last)


def evaluation_cohort(settings: FederationSettings, round: int) -> list[int]:
    """Clients that score the network after ``round`` (1..), ascending: all, or a sample of so many."""
    if settings.clients <= settings.evaluation_clients:
        return list(range(settings.clients))
    rng = generator(settings.seed, "evaluation cohort", round)
    return sorted(rng.choice(settings.clients, settings.evaluation_clients, replace=False).tolist())


def check_score(score: HeldOutScore, hits: bool | None, max_examples: int) -> None:
    """Check what a client makes of the network."""
    if not 0 <= score.examples <= max_examples:
        claims = f"it claims {score.examples} examples where max_examples is {max_examples}"
        raise Refusal("examples", claims)
    if not math.isfinite(score.nll) or abs(score.nll) > LARGEST:
        raise Refusal("loss", f"its loss is {score.nll:g}, not finite or beyond {LARGEST:g}")
    if score.examples == 0 and score.nll != 0:
        raise Refusal("loss", "it has a loss without any example")
    if hits is not None and hits != (score.correct is not None):
        raise Refusal("malformed", f"a count of correct classes was {'' if hits else 'not '}asked for")
    if score.correct is not None and not 0 <= score.correct <= score.examples:
        raise Refusal("examples", f"it claims {score.correct} correct of {score.examples} examples")


@dataclass
class ClientScores:
    """The clients' scores of one round's network, gathered in the order of their numbers."""

    protocol: Protocol
    cohort: Sequence[int]  # who is asked
    trial: bool = False  # see Round
    found: dict[int, HeldOutScore] = field(default_factory=dict)  # by client
    failed: list[dict[str, Any]] = field(default_factory=list)  # as `skipped` lists them

    def gather(self, score_of: Callable[[int], HeldOutScore]) -> None:
        """Ask for every client's score; a ClientError leaves it out in a trial, or with ``skip``."""
        for client in self.cohort:
            try:
                self.found[client] = score_of(client)
            except ClientError as error:
                if self.protocol.settings.on_client_error == "fail" and not self.trial:
                    raise
                self.failed.append(skipped(client, error))

    def write(self, report: RoundReport, refused: Sequence[str] = ()) -> None:
        """Add to a report what the scores amount to, and those that are missing or were ``refused``."""
        before = (name for name, count in report.refused.items() for _ in range(count))
        report.refused = tally(self.failed, [*before, *refused])
        scores = {client: score for client, score in self.found.items() if score.examples}
        if not scores:
            return
        losses = {c: (score.nll, score.examples) for c, score in scores.items()}
        right = {c: (s.correct, s.examples) for c, s in scores.items() if s.correct is not None}
        report.client_nll = _mean(list(losses.values()))
        report.client_nll_worst_decile = _worst(losses, largest=True)
        self._by_kind(report, "client_nll", losses)
        if right:
            report.client_accuracy = _mean(list(right.values()))
            report.client_accuracy_worst_decile = _worst(right, largest=False)
            self._by_kind(report, "client_accuracy", right)

    def _by_kind(self, report: RoundReport, name: str, sums: Sums) -> None:
        """The means over the examples of each chunk's clients, each cap's, each architecture's, or each."""
        protocol, numbers = self.protocol, range(1, len(self.protocol.chunks) + 1)
        kinds: dict[str, tuple[Callable[[int], int], range]] = {"chunks": (protocol.chunk, numbers)}
        if protocol.settings.caps is not None:
            kinds["caps"] = protocol.cap, numbers
        if protocol.settings.architectures is not None:
            kinds["architectures"] = protocol.architectures.__getitem__, range(len(protocol.partitions))
        if protocol.settings.clients <= protocol.settings.evaluation_clients and not protocol.private:
            kinds["each"] = int, range(protocol.settings.clients)
        for kind, (number, all_numbers) in kinds.items():
            theirs = ([pair for client, pair in sums.items() if number(client) == k] for k in all_numbers)
            setattr(report, f"{name}_{kind}", [*map(_mean, theirs)])


def _worst(sums: Sums, largest: bool) -> float:
    """Mean over the tenth of the clients, at least one, whose means are the largest, or the smallest."""
    means = sorted((value / examples for value, examples in sums.values()), reverse=largest)
    means = means[: max(1, len(means) // DECILE)]
    return sum(means) / len(means)


def _mean(sums: Sequence[tuple[float, int]]) -> float | None:
    """Of sums and their numbers of examples; None: there are no examples."""
    count = sum(examples for _, examples in sums)
    return sum(value for value, _ in sums) / count if count else None


def by_architecture(
    federation: Federation, dataset: Dataset | None, samples: int | None = None
) -> list[dict[str, Any]]:
    """Of each of ``settings.architectures``: its clients, ``model_options``, size, and scores on data.

    ``multiply_adds`` are of one example's pass in one sample, input transforms included; convolutions and
    matrix products alone."""
    protocol, rows = federation.protocol, []
    for index, architecture in enumerate(protocol.settings.architectures or ()):
        state = federation.of_architecture(index)
        clients = sum(count for kind, (_, count) in protocol.kinds.items() if kind.architecture == index)
        row = {
            "share": architecture["share"],
            "clients": clients,
            "model_options": dict(architecture["model_options"]),
            "parameters": state.partition.space.size,
        }
        if dataset is not None:
            scores = state.evaluate(dataset, samples=samples)
            row["multiply_adds"] = _multiply_adds(state, dataset)
            row |= {"accuracy": scores.get("accuracy"), "nll": scores["nll"]}
        rows.append(row)
    return rows


def ensemble(federation: Federation, dataset: Dataset, samples: int | None = None) -> dict[str, float]:
    """All architectures of classes together, their probabilities averaged: ``accuracy`` and ``nll``, nats."""
    states = map(federation.of_architecture, range(len(federation.protocol.partitions)))
    outputs = [torch.cat(list(state.predict(dataset.inputs, samples=samples))) for state in states]
    total = sum(of_state.double().softmax(1) for of_state in outputs)
    assert isinstance(total, Tensor)
    targets = dataset.targets.to(total.device)
    chosen = (total / len(outputs)).gather(1, targets[:, None]).log()
    right = (total.argmax(1) == targets).double().mean()
    return {"accuracy": right.item(), "nll": -chosen.mean().item()}


def _multiply_adds(state: Federation, dataset: Dataset) -> int:
    task, named = state.task.with_samples(1), state.tensors()

    def compute(examples: int) -> None:
        places = torch.zeros(examples, dtype=torch.int64)
        task.predict(named, state.psi, Batch(*dataset.batch(places, state.w.device)), None)

    return multiply_adds(compute)
