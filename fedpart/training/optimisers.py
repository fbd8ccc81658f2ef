"""Optimisers of flat vectors: torch's own, with one independent state per partition (App. I.1).

They are torch's functions: its classes import torch's compiler with the first of them, which takes seconds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedpart.checks import is_list, is_number, require
from fedpart.training.settings import Settings, documented, setting
from fedpart.trees import wide

DECAY_POWERS = {"reciprocal": 1.0, "square_root": 0.5, "none": 0.0}


@documented
@dataclass(frozen=True, kw_only=True)
class DecaySettings(Settings):
    """Weight decay of partitioned parameters."""

    weight_decay: float = setting(0.0, "of the last partition, which is trained on all chunks", ge=0)
    decay_scaling: Literal["reciprocal", "square_root", "none"] = setting(
        "reciprocal",
        "how weight decay grows with 1 / (share of chunks 1..k) for w_k: as it (I.1), its square root (I.4), "
        "or not at all",
    )

    def decays(self, shares: Sequence[float]) -> tuple[float, ...]:
        """Weight decay of w_1..w_C: stronger for w_k, which sees chunks 1..k only, of sizes u (App. I.1)."""
        power = DECAY_POWERS[self.decay_scaling]
        return tuple(self.weight_decay / sum(shares[:k]) ** power for k in range(1, len(shares) + 1))


@documented
@dataclass(frozen=True)
class SGDSettings(Settings):
    """Settings of torch's SGD."""

    learning_rate: float = setting(5e-2, "of the optimiser", gt=0)
    momentum: float = setting(0.0, "of sgd", ge=0, lt=1)

    @property
    def remembered(self) -> set[str]:
        """Names in the state of a slice that has been stepped."""
        return {"momentum_buffer"} if self.momentum else set()

    def step(
        self, vector: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float, weight_decay: float
    ) -> None:
        """One step of ``vector [n]``, in place, as ``state`` is; the decay is part of the gradient."""
        buffers = [state.get("momentum_buffer")]
        rates: dict[str, Any] = {"lr": rate, "weight_decay": weight_decay, "momentum": self.momentum}
        sgd([vector], [gradient], buffers, dampening=0.0, nesterov=False, maximize=False, **rates)
        if buffers[0] is not None:
            state["momentum_buffer"] = buffers[0]


def check_betas(betas: Any) -> None:
    """Refuse, with a ValueError, what is no pair of decays."""
    pair = is_list(betas) and len(betas) == 2
    if not (pair and all(is_number(beta) and 0 <= beta < 1 for beta in betas)):
        raise ValueError(f"betas are two numbers, at least 0 and below 1, got {betas!r}.")


@documented
@dataclass(frozen=True)
class AdamSettings(Settings):
    """Settings of torch's Adam, bias-corrected."""

    learning_rate: float = setting(1e-3, "of the optimiser", gt=0)
    eps: float = setting(1e-8, "Adam's epsilon", gt=0)
    betas: tuple[float, float] = setting((0.9, 0.999), "Adam's decay of the first and second moment")
    hypergradient: float = setting(
        0.0,
        "of psi alone: step on the logarithm of each component's learning rate, up where a gradient agrees "
        "with those before it, down where it does not; 0: the rate stays",
        ge=0,
    )

    remembered = frozenset({"step", "exp_avg", "exp_avg_sq"})
    _kind: ClassVar[Callable[..., None]] = staticmethod(adam)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_betas(self.betas)

    def step(
        self, vector: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float, weight_decay: float
    ) -> None:
        """One step of ``vector [n]``, in place, as ``state`` is; the decay is part of the gradient."""
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=vector.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(vector), torch.zeros_like(vector)
        first, second, steps = [state["exp_avg"]], [state["exp_avg_sq"]], [state["step"]]
        self._torch([vector], [gradient], first, second, [], steps, lr=rate, weight_decay=weight_decay)

    @cached_property
    def _torch(self) -> Callable[..., None]:
        """torch's function, which knows all but a step's own."""
        first, second = self.betas
        always = {"fused": True, "amsgrad": False, "maximize": False, "eps": self.eps}
        return partial(self._kind, beta1=first, beta2=second, **always)


@documented
@dataclass(frozen=True)
class AdamWSettings(AdamSettings):
    """Settings of torch's AdamW: Adam whose weight decay shrinks the parameter, apart from the gradient."""

    _kind = staticmethod(adamw)


@documented
@dataclass(frozen=True)
class AdagradSettings(Settings):
    """Settings of FedAdagrad's step (Reddi et al. 2021, Algorithm 2, with beta_1 = 0 and v = 0 at first)."""

    learning_rate: float = setting(1e-2, "of the optimiser", gt=0)
    eps: float = setting(1e-3, "the paper's tau, added to the root of v", gt=0)
    remembered = frozenset({"exp_avg_sq"})

    def step(
        self, vector: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float, weight_decay: float
    ) -> None:
        """One step of ``vector [n]``, in place, as ``state`` is; the decay is part of the gradient."""
        if weight_decay:
            gradient = gradient.add(vector, alpha=weight_decay)
        for name in self.remembered - state.keys():
            state[name] = torch.zeros_like(vector)
        first = self._moments(gradient, state)
        vector.addcdiv_(first, state["exp_avg_sq"].sqrt().add_(self.eps), value=-rate)

    def _moments(self, gradient: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """The step's direction; v is brought up to date in place."""
        state["exp_avg_sq"].addcmul_(gradient, gradient)
        return gradient


@documented
@dataclass(frozen=True)
class YogiSettings(AdagradSettings):
    """Settings of FedYogi's step (Reddi et al. 2021, Algorithm 2, with m = v = 0 at first)."""

    betas: tuple[float, float] = setting((0.9, 0.99), "decay of the first and second moment")
    remembered = frozenset({"exp_avg", "exp_avg_sq"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_betas(self.betas)

    def _moments(self, gradient: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        square, second = gradient.square(), state["exp_avg_sq"]
        second.addcmul_(square, torch.sign(second - square), value=self.betas[1] - 1)
        return state["exp_avg"].lerp_(gradient, 1 - self.betas[0])


OptimiserSettings = SGDSettings | AdamSettings
ServerSettings = OptimiserSettings | AdagradSettings


class SlicedOptimiser:
    """An optimiser of slices of one flat vector ``[N]``, in place; each slice has a state and a step count.

    There is a weight decay for each slice. ``slow`` has, per slice, the places ``[m]`` of numbers that step
    at ``scalars`` times the rate, decay included. With a ``hypergradient`` every number learns its rate."""

    def __init__(
        self, vector: Tensor, slices: Sequence[slice], settings: ServerSettings,
        weight_decays: Sequence[float] | None = None, slow: Sequence[Tensor] | None = None,
        scalars: float = 1.0,
    ) -> None:  # fmt: skip
        self._slices = [vector[s] for s in slices]
        self._slow, self._scalars = slow, scalars
        self._decays = weight_decays or [0.0] * len(self._slices)
        count, decays = len(self._slices), len(self._decays)
        require(count == decays, f"{count} slices need as many weight decays, got {decays}.")
        self._states: list[dict[str, Tensor]] = [{} for _ in self._slices]
        self._settings = settings
        self._scaled = slow is not None or (isinstance(settings, AdamSettings) and settings.hypergradient > 0)

    def step(self, index: int, gradient: Tensor, rate: float = 1.0) -> None:
        """One step of slice ``index``."""
        values = self._slices[index]
        if (gradient.shape, gradient.dtype) != (values.shape, values.dtype):  # torch's kernels do not look
            needs = f"A step takes a gradient {list(values.shape)} of {values.dtype}"
            raise ValueError(f"{needs}, as the slice is, got {list(gradient.shape)} of {gradient.dtype}.")
        with torch.no_grad():
            step = self._scaled_step if self._scaled else self._plain_step
            step(index, gradient.to(values.device), rate * self._settings.learning_rate)

    def _plain_step(self, index: int, gradient: Tensor, rate: float) -> None:
        self._settings.step(self._slices[index], gradient, self._states[index], rate, self._decays[index])

    def _scaled_step(self, index: int, gradient: Tensor, rate: float) -> None:
        """A step is proportional to its rate."""
        values, state = self._slices[index], self._states[index]
        if isinstance(self._settings, AdamSettings) and self._settings.hypergradient:
            _learn_rates(state, self._settings, gradient)
        learned = state.get("log_rate")
        places = slice(None) if self._slow is None else self._slow[index]
        before = values[places].clone()
        self._plain_step(index, gradient, rate)
        share = self._scalars if learned is None else learned.exp().to(values.dtype)
        values[places] = torch.lerp(before, values[places], share)

    def scale(self, factor: float) -> None:
        """From now on, step at so many times the settings' rate."""
        self._settings = replace(self._settings, learning_rate=factor * self._settings.learning_rate)

    def state_dict(self) -> list[dict[str, Tensor]]:
        """Per slice torch's state, not copied; empty if it was never stepped.

        With a ``hypergradient`` it also has ``log_rate``: the logarithm of the rate over the settings'.
        """
        return [dict(state) for state in self._states]

    def load_state_dict(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Inverse of :meth:`state_dict`."""
        for values, current, state in zip(self._slices, self._states, states, strict=True):
            if state and state.keys() - {"log_rate"} != self._settings.remembered:
                raise ValueError(f"a {type(self._settings).__name__} does not remember {sorted(state)}")
            numbers = {"step": torch.zeros(()), "log_rate": values.to(wide(values.device))}
            self._scaled = self._scaled or "log_rate" in state
            for key, value in state.items():
                refuse_other_form(value, numbers.get(key, values))
            current.clear()
            current.update({key: value.to(values.device, copy=True) for key, value in state.items()})


def refuse_other_form(value: Tensor, like: Tensor) -> None:
    """Refuse, with a ValueError, a tensor of another shape or type, which ``copy_`` would fit."""
    if (value.shape, value.dtype) != (like.shape, like.dtype):
        form, expected = ((list(tensor.shape), tensor.dtype) for tensor in (value, like))
        raise ValueError(f"a tensor {form} is in the place of one {expected}")


_FASTEST = math.log(30)  # over and under the settings' rate, for that of each number


def _learn_rates(state: dict[str, Tensor], settings: AdamSettings, gradient: Tensor) -> None:
    """Step the learning rate of every number before the vector is: ``log_rate`` of Adam's state, in place.

    It grows by ``g m / v`` in [-1, 1], with the moments m and v: on average the signal's share of the square
    of a gradient that stays, 0 of one that is noise, and below 0 where steps are too long (after Baydin et
    al. 2018).
    """
    if not state:
        return  # no step yet
    first, second = (1 - beta ** state["step"].item() for beta in settings.betas)  # the moments' bias
    agree = gradient.to(wide(gradient.device)) * state["exp_avg"] / state["exp_avg_sq"] * (second / first)
    agree = agree.nan_to_num(0.0).clamp(-1, 1)  # where no gradient was: no numbers
    learned = state.get("log_rate", torch.zeros_like(agree)) + settings.hypergradient * agree
    state["log_rate"] = learned.clamp_(-_FASTEST, _FASTEST)
