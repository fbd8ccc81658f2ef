"""Updates: what a client sends back, its norms, its sum over a cohort, and the step that follows."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedpart.training.state import ModelState
from fedpart.trees import read, wide
from fedpart.updates.client_state import ClientState
from fedpart.updates.errors import Refusal

LARGEST = 1e15  # weighted by a billion examples, and squared by Adam, such values are still finite in fp32
REACH = 1000.0  # times the largest weight: no change of a weight in one round is honest beyond
PSI = 0  # stands for psi among the parts; the others are the cells 1..
TINY = 1e-30  # what is no longer stays as it is: it may be denormal, and cannot be brought to a length of 1
SUMMED = ("examples", "loss", "unseen_loss", "unseen_examples", "visited", "seconds", "clients")
CLAIMS = (  # of an update, and the least that each may be
    ("loss", -LARGEST, "loss"),
    ("unseen_loss", -LARGEST, "loss"),
    ("visited", 0.0, "malformed"),
    ("seconds", 0.0, "malformed"),
)


@dataclass
class Update:
    """One client's upload, or a weighted sum of several.

    Attributes:
        parts: by number what was trained: of each cell (1.., :attr:`.Partition.cells`; w_j where clients
            have one network) its change, ``[size]``; as :data:`PSI` the gradient of the mean negative
            log-likelihood with respect to psi, ``[P]``.
        weights: of each part: of psi's gradient its examples, since L_ML is a sum over them (Eq. 26), or 1
            where clients weigh the same, for privacy or a defence.
        shares: of each cell that only some of the client's local steps have trained, their share of all.
        examples: number of examples behind ``loss``.
        loss: mean training loss through the largest subnetwork, nats (a sum weighted by examples in a sum);
            while a round is computed it and the next may be tensors, see :meth:`.CohortSum.settle`.
        unseen_loss: minus the client's term of L_ML per example, nats (a sum in a sum, as ``loss``).
        unseen_examples: number of examples behind ``unseen_loss``; 0: the client was not asked for it.
        visited, seconds: examples whose gradients were taken, each time, and how long all took; 0: not told.
        clients: how many clients are in the sum.
        encoded: per cell the bytes whose numbers its change is, with an upload codec; not of a sum.
        kept: while a client makes its update, what it keeps for its next ones: by cell what these bytes leave
            out, with error feedback; by minus the cell its variate, or its own weights, see
            :class:`.Combination`.
    """

    parts: dict[int, Tensor] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    examples: int = 0
    loss: float = 0.0
    unseen_loss: float = 0.0
    unseen_examples: int = 0
    visited: int = 0
    seconds: float = 0.0
    clients: int = 1
    encoded: dict[int, Tensor] = field(default_factory=dict)
    kept: dict[int, Tensor] = field(default_factory=dict)

    @property
    def psi(self) -> Tensor | None:
        """psi's gradient, if there is any."""
        return self.parts.get(PSI)

    @property
    def lml(self) -> float | None:
        """L_ML per example, nats; None: nobody was asked for it."""
        return -self.unseen_loss / self.unseen_examples if self.unseen_examples else None

    @property
    def cells(self) -> dict[int, Tensor]:
        """The changes of cells, without psi's gradient, and without what is averaged beside them."""
        return {part: tensor for part, tensor in self.parts.items() if part > PSI}

    def weigh(self, weight: float, psi_weight: float | None = None) -> "Update":
        """Turn a client's update into a term of the sum, in place."""
        self.encoded.clear()
        of_psi = float(self.examples) if psi_weight is None else psi_weight
        for part, tensor in self.parts.items():
            self.weights[part] = of_psi if part == PSI else weight * self.shares.get(part, 1.0)
            tensor.mul_(self.weights[part])
        self.loss = self.loss * self.examples  # it may be a tensor, which others have too
        self.unseen_loss = self.unseen_loss * self.unseen_examples
        return self

    def add(self, other: "Update") -> "Update":
        """Add another weighted update, in place; takes over its tensors where this one has none."""
        for part, tensor in other.parts.items():
            held = self.parts.get(part)
            self.parts[part] = tensor if held is None else held.add_(tensor)
            self.weights[part] = self.weights.get(part, 0.0) + other.weights[part]
        for name in SUMMED:  # besides tensors and their weights
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


def descend(state: ModelState, total: Update) -> None:
    """Step the server on whatever has a contributor: a cell, and psi; the sum's deltas are used up.

    Each cell, which is w_j where clients have one network, moves along its mean change, which stands for
    minus a gradient, psi against its mean gradient."""
    for part in sorted(total.parts):
        tensor, weight = total.parts.pop(part), total.weights[part]
        if part == PSI:
            state.optimiser_psi.step(0, tensor.div_(weight))
        else:
            state.optimiser.step(part - 1, tensor.div_(-weight))


@dataclass(frozen=True)
class Bound:
    """The L2 norm to which what is longer is scaled down; None: nothing is. ``measured``: whether the norm
    that a part had is waited for; ``unit``: ``norm`` is 1 because nobody knows yet what is usual.
    """

    norm: float | None = None
    measured: bool = True
    unit: bool = False

    def shorten(self, tensor: Tensor) -> float:
        """Scale down what is longer, in place, and say how long it was."""
        norm = length(tensor)
        if self.norm is not None and norm > (TINY if self.unit else self.norm):
            tensor.mul_(self.norm / norm)
        return norm


FREE = Bound(measured=False)  # there is none
MEASURED = Bound()  # there is none, but the norm is wanted
UNIT = Bound(1.0, unit=True)

Bounds = Sequence[Bound]
"""By part."""
Norms = Mapping[int, float | Tensor]
"""By part the L2 norm, which may still be on its way from a device."""


def clip(update: Update, bounds: Bounds) -> Norms:
    """Scale down, in place, whatever is longer than its bound; the norms that measured parts had."""
    parts = update.parts.items()
    return {part: bounds[part].shorten(tensor) for part, tensor in parts if bounds[part].measured}


def length(tensor: Tensor) -> float:
    """The L2 norm."""
    return float(torch.linalg.vector_norm(tensor, dtype=wide(tensor.device)))


def usual(norms: Iterable[float]) -> float:
    """The lower median, which a minority moves no further than the others lie; 0 of fewer than two."""
    ordered = sorted(norms)
    return ordered[(len(ordered) - 1) // 2] if len(ordered) > 1 else 0.0


def known(norms: Mapping[int, Norms]) -> dict[int, dict[int, float]]:
    """The norms of clients, waited for."""
    told = iter(read([norm for of_client in norms.values() for norm in of_client.values()]))
    return {client: {part: next(told) for part in of_client} for client, of_client in norms.items()}


OfAll = Callable[[Sequence[Update]], Update | None]
"""What takes the place of the sum: from all updates of a cohort at once, see :meth:`.RobustSum.sum`."""


@dataclass(frozen=True, eq=False)
class Round:
    """What every client of a round starts from, and what becomes of their updates.

    Attributes:
        number: 1..
        w: ``[size]`` in partition order.
        psi: ``[P]``.
        kept: what clients have kept of earlier rounds, where they do.
        variates: the mean of the clients' variates, ``[size]`` in partition order; None: none is sent along.
        bounds: to which the server clips, where they follow the clients; None: those of the settings.
        norms: that the parts without a usual norm have had so far, where bounds follow the clients.
        of_all: what takes the place of the sum of the clients' updates, with a ``defence``; None: the sum.
        shared: the server's ``w``, where ``w`` is of a client's second network; else None.
        local_rate: what the clients' learning rate is multiplied with.
        trial: whether numbers that are not finite cost the round, and not the run: its rates are tried.
    """

    number: int
    w: Tensor
    psi: Tensor
    kept: ClientState | None = None
    variates: Tensor | None = None
    bounds: Bounds | None = None
    norms: Mapping[int, Sequence[float]] = field(default_factory=dict)
    of_all: OfAll | None = None
    shared: Tensor | None = None
    local_rate: float = 1.0
    trial: bool = False

    def to(self, device: torch.device) -> "Round":
        """With its values on a device; psi is a copy."""
        variates = None if self.variates is None else self.variates.to(device)
        return replace(self, w=self.w.to(device), psi=self.psi.to(device, copy=True), variates=variates)

    @cached_property
    def limit(self) -> float:
        """The largest change of a weight that is taken: who follows the clients' norms trusts none."""
        return LARGEST if self.bounds is None else largest_change(self.w)


def largest_change(w: Tensor) -> float:
    """The largest change of a weight that a stranger may send: 1,000 times the largest of ``w``, or of 1."""
    low, high = (bound.item() for bound in torch.aminmax(w))
    return min(LARGEST, REACH * max(1.0, -low, high))


def validate(update: Update, max_examples: int, limit: float = LARGEST) -> None:
    """Check the numbers of a client's update, whose parts are those that it was asked for."""
    squares = read(torch.dot(tensor, tensor) for tensor in update.parts.values())
    for (part, tensor), square in zip(update.parts.items(), squares, strict=True):
        largest = LARGEST if part == PSI else limit
        if square <= largest**2:
            continue  # the norm bounds every value
        name, (low, high) = named(part), (bound.item() for bound in torch.aminmax(tensor))
        if not (math.isfinite(low) and math.isfinite(high)):
            lower = "lower local.learning_rate if training diverges"
            raise Refusal("not_finite", f"{name} has values that are not finite; {lower}")
        if max(-low, high) > largest:
            raise Refusal("too_large", f"{name} has values beyond {largest:g}, the most that is taken")
    if not 1 <= update.examples <= max_examples:
        claims = f"it claims {update.examples} examples where max_examples is {max_examples}"
        raise Refusal("examples", claims)
    for name, least, category in CLAIMS:
        if not least <= (claim := getattr(update, name)) <= LARGEST:
            lower = "; lower local.learning_rate if training diverges" if name == "loss" else ""
            raise Refusal(category, f"its {name} is {claim!r}, not between {least:g} and {LARGEST:g}{lower}")


def named(part: int) -> str:
    """What a part is called in messages."""
    return "the psi gradient" if part == PSI else f"w_{part}"


def check_form(name: str, shape: tuple[int, ...], dtype: object, size: int, expected: object) -> None:
    """Refuse an array that is not ``[size]`` of the expected dtype, with a :class:`.Refusal`."""
    if shape != (size,):
        raise Refusal("size", f"{name} has shape {tuple(shape)} where {(size,)} is expected")
    if dtype != expected:
        raise Refusal("dtype", f"{name} has dtype {dtype} where {expected} is expected")
