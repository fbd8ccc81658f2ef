"""What makes a number a hyperparameter: a module says which of its parameters are psi."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from fedpart.checks import require
from fedpart.registry import Registry

Bound = float | Tensor
RARE = math.log(1e-6 / (1 - 1e-6))  # the logit of what happens once in a million times
MOST = 1000  # numbers of one tensor of psi that are told one by one


def told(values: Tensor) -> list[float] | dict[str, float]:
    """A tensor of psi as reports and lines of metrics have it: its numbers in order; of more than 1,000, such
    as weights of layers, ``{"norm": .., "numbers": ..}``, the Euclidean norm, and how many they are."""
    flat = values.detach().flatten()
    if len(flat) > MOST:
        return {"norm": flat.norm().item(), "numbers": len(flat)}
    return flat.tolist()


class HyperModule(nn.Module):
    """A layer or input transform some of whose parameters are hyperparameters (psi), learned by L_ML.

    Subclass it, create ``nn.Parameter``s, name those that are psi in ``hyperparameters``, and draw noise with
    :func:`fedpart.randomness.noise.uniform`. Put the module inside your network (a layer), or hand it to
    ``Task(transforms=[...])`` (an input transform: it receives inputs of shape ``[B*S, ...]``, one row per
    example and sample, and returns the transformed rows)."""

    hyperparameters: ClassVar[tuple[str, ...]] = ()
    fixed: ClassVar[tuple[str, ...]] = ()
    """Names of attributes that are no hyperparameters, on which server, clients and checkpoints agree."""
    limits: ClassVar[Mapping[str, tuple[Bound, Bound]]] = {}
    part: str | int | None = None

    def on(self, part: str | int) -> Self:
        """As an input transform, act on one part of inputs that are a dict or a tuple: its key or place, or
        ``"*"``, which takes and returns all inputs; returns itself."""
        self.part = part
        return self

    def physical(self) -> dict[str, float]:
        """The current psi in units that a person reads, e.g. ``{"rate [%]": 10.0}``; see :func:`.told`."""
        values: dict[str, float] = {}
        for name in self.hyperparameters:
            numbers = told(self.get_parameter(name))
            if isinstance(numbers, dict):
                values[f"{name}.norm"] = numbers["norm"]
            else:
                values |= {f"{name}[{i}]" if len(numbers) > 1 else name: v for i, v in enumerate(numbers)}
        return values

    def remarks(self, physical: Mapping[str, float]) -> list[str]:
        """What a person should know of such values of :meth:`physical`, a sentence each; often nothing."""
        return []

    def bounds(self) -> Mapping[str, tuple[Bound, Bound]]:
        """The least and the largest values that can mean something, of parameters in ``hyperparameters``.

        In the parameters' own units, one number or one per place. A server holds psi there, whatever clients'
        gradients ask for. Choose them so wide that no honest run comes near: where nothing is left of an
        input, or nothing changes any more. What is not named has none. Constants may stand in ``limits``.
        """
        return self.limits

    def widths(self) -> Tensor | None:
        """Widths of the distributions that psi spans, for regularisers that reward them (Augerino)."""
        return None

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.fixed)


def check_images(x: Tensor, who: str) -> None:
    """Refuse what are no images."""
    if x.ndim != 4:
        raise ValueError(f"{who} takes images [rows, channels, height, width], got {tuple(x.shape)}.")


def started(value: float, what: str) -> nn.Parameter:
    """A hyperparameter that starts from a finite number, or from a ValueError about ``what``."""
    require(math.isfinite(value), f"The {what}, got {value}.")
    return nn.Parameter(torch.tensor(float(value)))


def logit_of(share: float, temperature: float, what: str, certain: str) -> float:
    """The logit of a probability in (0, 1), of ``what``, that is relaxed at a temperature > 0."""
    require(0 < share < 1, f"{what} lies strictly between 0 and 1, got {share}; {certain}.")
    require(0 < temperature < math.inf, f"The temperature of a relaxation is positive, got {temperature}.")
    return math.log(share / (1 - share))


def concrete(logit: Tensor, u: Tensor, temperature: float) -> Tensor:
    """A relaxed Bernoulli variable (Maddison et al. 2016), given noise in (0, 1)."""
    return torch.sigmoid((logit + torch.logit(u)) / temperature)


def soft_box(length: int, centre: Tensor, width: Tensor, softness: float) -> Tensor:
    """About 1 inside of an interval and 0 outside, ``[rows, length]``: a difference of two sigmoids, odd in
    the width; an edge rises from 10% to 90% within 4.4 ``softness`` places. ``centre`` and ``width`` are
    fractions of the axis."""
    places = (torch.arange(length, device=centre.device, dtype=centre.dtype) + 0.5) / length
    offset, scale = places - centre, length / softness
    return torch.sigmoid(scale * (offset + width / 2)) - torch.sigmoid(scale * (offset - width / 2))


def check_softness(softness: float) -> None:
    """Refuse a softness that is not positive and finite."""
    remedy = "0.5 is about two places from in to out"
    require(0 < softness < math.inf, f"The softness of an edge is positive, got {softness}; {remedy}.")


TRANSFORMS: Registry[Any] = Registry("transform", makes=(HyperModule,))
"""Input transforms that a configuration names; what it names returns a :class:`HyperModule`."""
