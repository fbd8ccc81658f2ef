"""FedEx (Khodak et al. 2021): clients try settings, and a distribution over these follows their scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedpart.checks import require
from fedpart.methods.arms import DROPOUT, Arm, Grid, Near, grids_of
from fedpart.methods.base import METHODS, ClientView, FederatedMethod
from fedpart.methods.plain import Plain
from fedpart.nn.hyperparameters import ConcreteDropout, HyperModule
from fedpart.partition.sharing import within
from fedpart.randomness.streams import generator
from fedpart.task.gradients import Job
from fedpart.task.held_out import HeldOutScore
from fedpart.task.task import Task
from fedpart.training.local import LocalSettings
from fedpart.training.state import ModelState
from fedpart.updates.update import PSI, Update

SCHEDULES = ("aggressive", "adaptive", "auto", "constant", "scale")
DROP_RATES: Mapping[str, Sequence[float]] = {DROPOUT: (0.025, 0.05, 0.1, 0.2, 0.4)}


class Arms(HyperModule):
    """FedEx's state on its way with psi; as a transform it leaves the inputs as they are.

    Parameters: ``log_probabilities [A]`` of the arms, grid after grid; ``baseline [2]``: sum of the rounds'
    mean scores and number of rounds, both discounted; ``scale [G]``: what the schedule has gathered, by grid.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("log_probabilities", "baseline", "scale")

    def __init__(self, grids: Sequence[Grid]) -> None:
        super().__init__()
        self.labels = [label for grid in grids for label in grid.labels]
        uniform = [torch.full((len(grid),), -math.log(len(grid))) for grid in grids]
        self.log_probabilities = nn.Parameter(torch.cat(uniform))
        self.baseline = nn.Parameter(torch.zeros(2))
        self.scale = nn.Parameter(torch.zeros(len(grids)))

    def forward(self, x: Tensor) -> Tensor:
        return x

    def physical(self) -> dict[str, float]:
        chances = (100 * self.log_probabilities.detach().exp()).tolist()
        return {f"probability[{label}] [%]": p for label, p in zip(self.labels, chances, strict=True)}

    def extra_repr(self) -> str:
        return f"arms={self.labels}"


@METHODS.register("fedex")
class FedEx(Plain, FederatedMethod):
    """FedAvg whose clients each train with settings drawn from theta, a distribution over configurations.

    A client holds examples out, trains on the others with what it has drawn, and scores its network on those
    held out. Where client i, with n_i of the cohort's n held-out examples, drew arm a_i and scored s_i, and b
    is the discounted mean of earlier rounds' mean scores, the server steps

        g_a = sum over i with a_i = a of (n_i / n) (s_i - b) / theta_a
        theta_a <- theta_a exp(-eta g_a), normalised; eta = sqrt(2 log A) / the schedule's scale

    psi holds the likeliest drop rate after every round. Its weights are averaged as FedAvg's.

    Args:
        arms: what is tried, of learning_rate, momentum, weight_decay, epochs, batch_size and dropout (one
            rate for all layers). A mapping from keys to lists of values: a distribution for each key, drawn
            and stepped apart. A list of mappings: one distribution over these configurations. A number A: the
            run's own settings, and A - 1 that are drawn around them.
        space: for a number of arms, the keys that are drawn, as ``[low, high]`` or ``{log: [low, high]}``;
            None: the ranges of the published code.
        eps: for a number of arms, how far from the run's own they lie at most, as a share of the range.
        arms_seed: for a number of arms, of the draws.
        held_out: share of each client's examples that it never trains on; rounded up, but never all of them.
        score: ``error``: share of wrong classes; ``loss``: mean negative log-likelihood, nats.
        difference: score by the change of that in local training, instead of its value afterwards.
        schedule: scale of the step: ``aggressive``: the largest absolute g_a; ``adaptive``: the root of the
            sum of its squares over rounds; ``auto``: the root of the number of rounds; ``constant``: 1;
            ``scale``: 1 / sqrt(2 log A).
        discount: weight of a round's mean score in the baseline, relative to that of the round after it; 0:
            the last round alone, 1: the mean of all.
        cutoff: once theta's entropy, in nats, is below it, every client takes the likeliest arm.
        augment: see :class:`.Plain`.

    Raises:
        ValueError: an option out of its range.
    """

    def __init__(
        self, arms: Mapping[str, Sequence[float]] | Sequence[Mapping[str, float]] | int = DROP_RATES,
        space: Mapping[str, Any] | None = None, eps: float = 0.1, arms_seed: int = 0, held_out: float = 0.2,
        score: Literal["error", "loss"] = "error", difference: bool = False,
        schedule: Literal["aggressive", "adaptive", "auto", "constant", "scale"] = "aggressive",
        discount: float = 0.5, cutoff: float = 1e-4, augment: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(augment)
        self.grids = grids_of(arms, space, eps, arms_seed)
        schedules = ", ".join(SCHEDULES)
        entropy = sum(math.log(len(grid)) for grid in self.grids)
        require(0 < held_out < 1, f"FedEx's held_out lies strictly between 0 and 1, got {held_out}.")
        require(score in ("error", "loss"), f"FedEx's score is error or loss, got {score!r}.")
        require(schedule in SCHEDULES, f"FedEx's schedule is one of {schedules}, got {schedule!r}.")
        require(0 <= discount <= 1, f"FedEx's discount lies between 0 and 1, got {discount}.")
        require(
            cutoff >= 0 and (entropy == 0 or cutoff < entropy),
            f"FedEx's cutoff is at least 0 and below {entropy:.3g}, the entropy of the arms to begin with, "
            f"got {cutoff}.",
        )
        self.held_out, self.score, self.difference = held_out, score, difference
        self.schedule, self.discount, self.cutoff = schedule, discount, cutoff

    def prepare(self, task: Task) -> Task:
        fault = "FedEx counts wrong classes, but the targets are none"
        remedy = "set its score to loss"
        require(self.score == "loss" or task.likelihood_name == "classification", f"{fault}; {remedy}.")
        task = super().prepare(task)
        require(
            _logits(task) or not any(DROPOUT in arm for grid in self.grids for arm in grid.arms),
            "FedEx chooses among drop rates, but the network has no ConcreteDropout layer; add one (in a "
            "configuration: hyperparameters.dropout), or leave dropout out of its arms or their space.",
        )
        return task.replace(transforms={**task.transforms, "arms": Arms(self.grids)})

    def trained_psi(self, task: Task) -> Sequence[str]:
        return task.psi_names

    def plan(self, client: ClientView) -> list[Job]:
        return [Job(subnetwork=1, partition=1, psi=True)]

    def local_psi(self, client: ClientView) -> Tensor:
        return self._with_rate(client.task, client.server_psi(), self.configuration(client))

    def local_settings(self, client: ClientView) -> LocalSettings:
        changes: dict[str, Any] = {
            key: value.at(getattr(client.local, key)) if isinstance(value, Near) else value
            for key, value in self.configuration(client).items()
            if key != DROPOUT
        }
        return replace(client.local, **changes)

    def configuration(self, client: ClientView) -> Arm:
        """What a client tries in a round."""
        return self._chosen(self.drawn(client))

    def drawn(self, client: ClientView) -> list[int]:
        """Index of the arm of each grid that a client tries in a round."""
        thetas = self._thetas(_state(client.task, client.server_psi()))
        if self._stopped(thetas):
            return [int(theta.argmax()) for theta in thetas]
        rng = generator(client.seed, "arm", client.number, client.round)
        return [int(rng.choice(len(theta), p=(theta / theta.sum()).numpy())) for theta in thetas]

    def feedback(self, client: ClientView, before: HeldOutScore, after: HeldOutScore) -> Tensor:
        """In the place of theta's logarithms ``n_i (s_i - b) / theta_a`` at each grid's arm a, in the
        baseline's n_i s_i and n_i; zeros elsewhere."""
        psi = client.server_psi()
        state, feedback = _state(client.task, psi), torch.zeros_like(psi)
        sums, total = _state(client.task, feedback), self._total(after)
        if self.difference:
            total -= self._total(before)
        scores, rounds = state["baseline"].double().tolist()
        mean = scores / rounds if rounds else 0.0  # before the first
        parts = self._split(sums["log_probabilities"]), self._thetas(state), self.drawn(client)
        for part, theta, arm in zip(*parts, strict=True):
            part[arm] += (total - mean * after.examples) / theta[arm].item()
        sums["baseline"].copy_(torch.tensor([total, after.examples]))
        return feedback

    def combine(self, state: ModelState, total: Update) -> None:
        feedback = total.parts.pop(PSI, None)  # no gradient for the server's Adam
        super().combine(state, total)
        if feedback is not None:
            state.psi.copy_(self.stepped(state.task, state.psi, feedback))

    def stepped(self, task: Task, psi: Tensor, found: Tensor) -> Tensor:
        """psi ``[P]`` after a round, from that before it and the sum of the cohort's :meth:`feedback`."""
        psi = psi.clone()
        state, sums = _state(task, psi), _state(task, found.to(psi.device))
        scores, examples = sums["baseline"].double().tolist()
        if not examples:  # nobody has held anything out
            return psi
        if not self._stopped(self._thetas(state)):
            parts = self._split(state["log_probabilities"]), self._split(sums["log_probabilities"])
            for part, summed, gathered in zip(*parts, state["scale"], strict=True):
                gradient = summed.double() / examples
                eta = math.sqrt(2 * math.log(len(part))) / self._scale(gathered, gradient)
                part.copy_((part.double() - eta * gradient).log_softmax(0))
        state["baseline"].mul_(self.discount).add_(psi.new_tensor([scores / examples, 1.0]))
        likeliest = [int(part.argmax()) for part in self._split(state["log_probabilities"])]
        return self._with_rate(task, psi, self._chosen(likeliest))

    def _scale(self, gathered: Tensor, gradient: Tensor) -> float:
        """What divides the step; ``gathered []`` is added to, in place."""
        largest = gradient.abs().max().item()
        if self.schedule == "aggressive":
            return largest or 1.0
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "scale":
            return 1 / math.sqrt(2 * math.log(max(2, len(gradient))))  # one arm has a step of 0
        gathered += largest**2 if self.schedule == "adaptive" else 1.0
        return math.sqrt(gathered.item()) or 1.0

    def _split(self, of_arms: Tensor) -> tuple[Tensor, ...]:
        """What there is for each arm, by grid, as views."""
        return torch.split(of_arms, [len(grid) for grid in self.grids])

    def _thetas(self, state: Mapping[str, Tensor]) -> list[Tensor]:
        """Probabilities of each grid's arms, float64 on the CPU."""
        return [part.cpu().double().exp() for part in self._split(state["log_probabilities"])]

    def _stopped(self, thetas: Sequence[Tensor]) -> bool:
        return bool(-sum(torch.special.xlogy(theta, theta).sum() for theta in thetas) < self.cutoff)

    def _chosen(self, arms: Sequence[int]) -> Arm:
        """The configuration that an arm of each grid gives."""
        chosen: dict[str, float | Near] = {}
        for grid, arm in zip(self.grids, arms, strict=True):
            chosen |= grid.arms[arm]
        return chosen

    def _total(self, score: HeldOutScore) -> float:
        return score.nll if self.score == "loss" or score.errors is None else float(score.errors)

    def _with_rate(self, task: Task, psi: Tensor, chosen: Arm) -> Tensor:
        """A copy of psi with a configuration's drop rate in all dropout layers, or the run's own."""
        psi, initial = psi.clone(), task.psi_tensors(task.psi_space.initial())
        named, rate = task.psi_tensors(psi), chosen.get(DROPOUT)
        for name in _logits(task):
            logit = initial[name]
            if rate is not None:
                p = rate.at(logit.sigmoid().item()) if isinstance(rate, Near) else rate
                logit = logit.new_tensor(math.log(p / (1 - p)))
            named[name].copy_(logit)
        return psi


def _state(task: Task, psi: Tensor) -> dict[str, Tensor]:
    """Views of the parameters of :class:`Arms`."""
    named = task.psi_tensors(psi)
    return {name: named[f"arms.{name}"] for name in Arms.hyperparameters}


def _logits(task: Task) -> list[str]:
    """Names of the drop rates' logits in psi."""
    layers = within(task.module).named_modules()
    names = (f"{path}.logit" for path, layer in layers if isinstance(layer, ConcreteDropout))
    return [name for name in names if name in task.psi_names]
