"""FedEx (Khodak et al. 2021): clients try drop rates, and a distribution over these follows their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedpart.hyperparameters import ConcreteDropout, HyperModule
from fedpart.methods.base import METHODS
from fedpart.methods.plain import Plain
from fedpart.methods.views import ClientView
from fedpart.randomness.streams import generator
from fedpart.task.held_out import HeldOutScore
from fedpart.task.jobs import Job
from fedpart.task.task import Task
from fedpart.training.state import ModelState
from fedpart.updates.update import Update

SCHEDULES = ("aggressive", "adaptive", "auto", "constant")


class Arms(HyperModule):
    """FedEx's state on its way with psi; as a transform it leaves the inputs as they are.

    Parameters: ``log_probabilities [A]`` of the drop rates; ``baseline [2]``: sum of the rounds' mean scores
    and number of rounds, both discounted; ``scale [1]``: what the schedule has gathered.

    Args:
        rates: A drop rates.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("log_probabilities", "baseline", "scale")

    def __init__(self, rates: Sequence[float]) -> None:
        super().__init__()
        self.rates = tuple(rates)
        self.log_probabilities = nn.Parameter(torch.full((len(rates),), -math.log(len(rates))))
        self.baseline = nn.Parameter(torch.zeros(2))
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x

    def physical(self) -> dict[str, float]:
        chances = (100 * self.log_probabilities.detach().exp()).tolist()
        named = zip(self.rates, chances, strict=True)
        return {f"probability[{100 * rate:g}%] [%]": chance for rate, chance in named}

    def extra_repr(self) -> str:
        return f"rates={self.rates}"


@METHODS.register("fedex")
class FedEx(Plain):
    """FedAvg whose clients each train with a drop rate drawn from theta, a distribution over a grid.

    A client holds examples out, trains on the others with its rate in all dropout layers, and scores its
    network on those held out. Where client i, with n_i of the cohort's n held-out examples, drew arm a_i and
    scored s_i, and b is the discounted mean of earlier rounds' mean scores, the server steps

        g_a = sum over i with a_i = a of (n_i / n) (s_i - b) / theta_a
        theta_a <- theta_a exp(-eta g_a), normalised; eta = sqrt(2 log A) / the schedule's scale

    psi holds the likeliest rate after every round. Its weights are averaged as FedAvg's.

    Args:
        rates: the grid, A drop rates strictly between 0 and 1.
        held_out: share of each client's examples that it never trains on; rounded up, but never all of them.
        score: ``error``: share of wrong classes; ``loss``: mean negative log-likelihood, nats.
        difference: score by the change of that in local training, instead of its value afterwards.
        schedule: scale of the step: ``aggressive``: the largest absolute g_a; ``adaptive``: the root of the
            sum of its squares over rounds; ``auto``: the root of the number of rounds; ``constant``: 1.
        discount: weight of a round's mean score in the baseline, relative to that of the round after it; 0:
            the last round alone, 1: the mean of all.
        cutoff: once theta's entropy, in nats, is below it, every client takes the likeliest rate.

    Raises:
        ValueError: an option out of its range.
    """

    def __init__(
        self,
        rates: Sequence[float] = (0.025, 0.05, 0.1, 0.2, 0.4),
        held_out: float = 0.2,
        score: Literal["error", "loss"] = "error",
        difference: bool = False,
        schedule: Literal["aggressive", "adaptive", "auto", "constant"] = "aggressive",
        discount: float = 0.5,
        cutoff: float = 1e-4,
    ) -> None:
        super().__init__()
        if not rates or len(set(rates)) < len(rates) or not all(0 < rate < 1 for rate in rates):
            raise ValueError(
                f"FedEx's rates are different numbers strictly between 0 and 1, at least one, got {rates}."
            )
        if not 0 < held_out < 1:
            raise ValueError(f"FedEx's held_out lies strictly between 0 and 1, got {held_out}.")
        if score not in ("error", "loss"):
            raise ValueError(f"FedEx's score is error or loss, got {score!r}.")
        if schedule not in SCHEDULES:
            raise ValueError(f"FedEx's schedule is one of {', '.join(SCHEDULES)}, got {schedule!r}.")
        if not 0 <= discount <= 1:
            raise ValueError(f"FedEx's discount lies between 0 and 1, got {discount}.")
        if not (cutoff >= 0 and (len(rates) == 1 or cutoff < math.log(len(rates)))):
            raise ValueError(
                f"FedEx's cutoff is at least 0 and below log({len(rates)}) = {math.log(len(rates)):.3g}, the "
                f"entropy of {len(rates)} rates to begin with, got {cutoff}."
            )
        self.rates, self.held_out, self.score, self.difference = tuple(rates), held_out, score, difference
        self.schedule, self.discount, self.cutoff = schedule, discount, cutoff

    def prepare(self, task: Task) -> Task:
        if self.score == "error" and task.likelihood_name != "classification":
            raise ValueError("FedEx counts wrong classes, but the targets are none; set its score to loss.")
        task = super().prepare(task)
        if not _logits(task):
            raise ValueError(
                "FedEx chooses among drop rates, but the network has no ConcreteDropout layer; add one (in a "
                "configuration: hyperparameters.dropout), or use another method."
            )
        return task.replace(transforms={**task.transforms, "arms": Arms(self.rates)})

    def trained_psi(self, task: Task) -> Sequence[str]:
        return task.psi_names

    def plan(self, client: ClientView) -> list[Job]:
        return [Job(subnetwork=1, partition=1, psi=True)]

    def local_psi(self, client: ClientView) -> Tensor:
        return self._with_rate(client.task, client.server_psi(), self.arm(client))

    def arm(self, client: ClientView) -> int:
        """Index of the drop rate that a client tries in a round."""
        theta = _state(client.task, client.server_psi())["log_probabilities"].double().exp().cpu()
        if self._stopped(theta):
            return int(theta.argmax())
        rng = generator(client.seed, "arm", client.number, client.round)
        return int(rng.choice(len(theta), p=(theta / theta.sum()).numpy()))

    def feedback(self, client: ClientView, before: HeldOutScore, after: HeldOutScore) -> Tensor:
        """In the place of theta's logarithms ``n_i (s_i - b) / theta_a`` at arm a, in the baseline's n_i s_i
        and n_i; zeros elsewhere."""
        psi = client.server_psi()
        state, found = _state(client.task, psi), torch.zeros_like(psi)
        sums = _state(client.task, found)
        arm, total = self.arm(client), self._total(after)
        if self.difference:
            total -= self._total(before)
        theta = state["log_probabilities"][arm].double().exp().item()
        scores, rounds = state["baseline"].double().tolist()
        mean = scores / rounds if rounds else 0.0  # before the first
        sums["log_probabilities"][arm] = (total - mean * after.examples) / theta
        sums["baseline"].copy_(torch.tensor([total, after.examples]))
        return found

    def combine(self, state: ModelState, total: Update) -> None:
        found, total.psi = total.psi, None  # no gradient for the server's Adam
        super().combine(state, total)
        if found is not None:
            state.psi.copy_(self.stepped(state.task, state.psi, found))

    def stepped(self, task: Task, psi: Tensor, found: Tensor) -> Tensor:
        """psi after a round, ``[P]``.

        Args:
            task: as prepared.
            psi: before the round, ``[P]``.
            found: sum of the cohort's :meth:`feedback`, ``[P]``; nobody may have held anything out.
        """
        psi = psi.clone()
        state, sums = _state(task, psi), _state(task, found.to(psi.device))
        scores, examples = sums["baseline"].double().tolist()
        if not examples:
            return psi
        z = state["log_probabilities"].double()
        if not self._stopped(z.exp()):
            gradient = sums["log_probabilities"].double() / examples
            eta = math.sqrt(2 * math.log(len(z))) / self._scale(state["scale"], gradient)
            z = (z - eta * gradient).log_softmax(0)
            state["log_probabilities"].copy_(z)
        state["baseline"].mul_(self.discount).add_(psi.new_tensor([scores / examples, 1.0]))
        return self._with_rate(task, psi, int(state["log_probabilities"].argmax()))

    def _scale(self, gathered: Tensor, gradient: Tensor) -> float:
        """What divides the step; ``gathered [1]`` is added to, in place."""
        largest = gradient.abs().max().item()
        if self.schedule == "aggressive":
            return largest or 1.0
        if self.schedule == "constant":
            return 1.0
        gathered += largest**2 if self.schedule == "adaptive" else 1.0
        return math.sqrt(gathered.item()) or 1.0

    def _stopped(self, theta: Tensor) -> bool:
        return bool(-torch.special.xlogy(theta, theta).sum() < self.cutoff)

    def _total(self, score: HeldOutScore) -> float:
        return score.nll if self.score == "loss" or score.errors is None else float(score.errors)

    def _with_rate(self, task: Task, psi: Tensor, arm: int) -> Tensor:
        """psi with the arm's rate in all dropout layers, a copy."""
        psi, rate = psi.clone(), self.rates[arm]
        named = task.psi_tensors(psi)
        for name in _logits(task):
            named[name].fill_(math.log(rate / (1 - rate)))
        return psi


def _state(task: Task, psi: Tensor) -> dict[str, Tensor]:
    """Views of the parameters of :class:`Arms`."""
    named = task.psi_tensors(psi)
    return {name: named[f"arms.{name}"] for name in Arms.hyperparameters}


def _logits(task: Task) -> list[str]:
    """Names of the drop rates' logits in psi."""
    layers = [path for path, layer in task.module.named_modules() if isinstance(layer, ConcreteDropout)]
    return [name for name in (f"{path}.logit" for path in layers) if name in task.psi_names]
