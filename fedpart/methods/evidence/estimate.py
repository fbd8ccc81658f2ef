"""Estimates of the log marginal likelihood that psi can follow: functions of sums over examples."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedpart.checks import require
from fedpart.nn.hyperparameters.base import HyperModule
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.task.task import Batch, Task

Tensors = Mapping[str, Tensor]


class Calls(TorchFunctionMode):
    """Keeps what linear layers and convolutions take and return, by their functions: some layers pool after.

    ``seen`` has, by layer, its inputs ``[rows, places, inputs]`` (patches of a convolution, or one place),
    and what it returned."""

    def __init__(self, weights: Tensors) -> None:
        super().__init__()
        self._names = {id(weight): name for name, weight in weights.items()}
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is F.linear or func is F.conv2d:
            arguments = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
            if (name := self._names.get(id(arguments["weight"]))) is not None:
                if name in self.seen:
                    fault = f"The layer {name} is used more than once in a pass,"
                    raise ValueError(f"{fault} for which there is no Kronecker factor; use layers once each.")
                self.seen[name] = _rows(arguments), out
        return out


_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def _rows(given: Mapping[str, Any]) -> Tensor:
    x, weight = given["input"], given["weight"]
    if weight.ndim == 2:
        return x.reshape(len(x), -1, x.shape[-1])  # type: ignore[no-any-return]
    if given.get("groups", 1) != 1 or isinstance(given.get("padding", 0), str):
        fault = "There are Kronecker factors of convolutions in one group whose padding is a number"
        raise ValueError(f"{fault}; change the layer's groups or padding.")
    how = {key: given.get(key, default) for key, default in (("dilation", 1), ("padding", 0), ("stride", 1))}
    return F.unfold(x, weight.shape[2:], **how).transpose(1, 2)


def mean_inputs(rows: Tensor, examples: int, bias: bool) -> Tensor:
    """Inputs of a layer averaged over the samples, ``[B, places, inputs]``; a last input of 1 for a bias."""
    mean = rows.reshape(examples, -1, *rows.shape[1:]).mean(1)
    return F.pad(mean, (0, 1), value=1.0) if bias else mean


def layers_of(task: Task) -> list[str]:
    """Names of the Linear and Conv2d layers whose weights are trained, in the order of the network."""
    trained = {entry.name for entry in task.parameter_space(1).entries}
    kinds = (nn.Linear, nn.Conv2d)
    named = [name for name, layer in task.module.named_modules() if isinstance(layer, kinds)]
    layers = [name for name in named if _of(name, "weight") in trained]
    if not layers:
        fault = "This evidence is over the weights of nn.Linear and nn.Conv2d layers, and the network trains"
        raise ValueError(f"{fault} none of these; use another method.")
    return layers


def parts_of(w: Tensors, layer: str) -> Sequence[Tensor]:
    """Weight and, where it is trained, bias of a layer among named tensors."""
    return [w[name] for name in (_of(layer, "weight"), _of(layer, "bias")) if name in w]


def _of(layer: str, part: str) -> str:
    return f"{layer}.{part}" if layer else part


Sums = tuple[Tensor, ...]
Draws = Callable[[], Iterator[tuple[Batch, NoiseKey]]]


class Total(NamedTuple):
    """What :meth:`Estimate.total` returns."""

    sums: Sums  # over the examples
    reduced: Sums  # what is needed of them
    w: Tensors  # in double precision
    examples: int  # how many


class Estimate(ABC):
    """log p(D | psi), up to an approximation, as a function of sums over the examples.

    So its gradient needs one batch in memory at a time: the function is differentiated by the sums, once, and
    the sums of each batch by psi (:meth:`gradient`). It is of averaged logits, in double precision.
    """

    own: dict[str, float]  # hyperparameters of the estimate, such as prior precisions, and their first values

    def __init__(self, task: Task) -> None:
        if task.average != "logits":
            raise ValueError(f"This evidence is of averaged logits, not {task.average}; set average: logits.")
        # Kernels can be differentiated once, and there are none for this.
        self.task = task.replace(precision="fp64", channels_last=False)

    @abstractmethod
    def sums(self, w: Tensors, psi: Tensor, batch: Batch, key: NoiseKey, graph: bool = False) -> Sums:
        """What is summed over the examples of a batch, in double precision; ``key`` is of its noise.

        ``graph``: whether the result is differentiable by psi."""

    def reduced(self, sums: Sums) -> Sums:
        """What :meth:`evidence` needs of the sums, without the own hyperparameters; differentiable."""
        return sums

    @abstractmethod
    def evidence(self, reduced: Sums, w: Tensors, own: Tensor, examples: int) -> Tensor:
        """log p(D | psi), a scalar in nats, differentiable by ``reduced`` and ``own``.

        ``own [len(self.own)]``: logarithms of the estimate's own hyperparameters."""

    def penalty(self, w: Tensors, own: Tensor) -> Tensor | float:
        """-log of the prior of the weights without its constant: what training adds to N mean losses."""
        return 0.0

    def outputs(self, w: Tensors, psi: Tensor, batch: Batch, key: NoiseKey) -> Tensor:
        """Outputs averaged over the samples ``[B, ...]``, twice differentiable; dropout is on, as in L_ML."""
        return self.task.outputs(w, psi, batch.inputs, Smooth(key, psi.device, psi.dtype))

    def total(self, w: Tensors, psi: Tensor, batches: Draws) -> Total:
        """The sums over all batches, which have the same noise each time; ``w``, ``psi`` in any precision."""
        sums: Sums = ()
        examples, w = 0, {name: value.detach().double().requires_grad_() for name, value in w.items()}
        for batch, key in batches():
            new = [part.detach() for part in self.sums(w, psi.detach().double(), batch, key)]
            sums = tuple(a + b for a, b in zip(sums, new, strict=True)) if examples else tuple(new)
            examples += batch.examples
        require(examples, "An evidence needs data; give at least one example.")
        return Total(sums, self.reduced(sums), w, examples)

    def value(self, total: Total, own: Tensor) -> Tensor:
        """log p(D | psi), a scalar in nats; ``own``: see :meth:`evidence`."""
        return self.evidence(total.reduced, total.w, own.double(), total.examples)

    def own_gradient(self, total: Total, own: Tensor) -> Tensor:
        """Derivative of :meth:`value` by ``own``, of its shape."""
        own = own.detach().requires_grad_()
        return torch.autograd.grad(self.value(total, own), own)[0]

    def gradient(self, total: Total, psi: Tensor, own: Tensor, batches: Draws) -> Tensor:
        """Derivative of log p(D | psi) by psi through the sums ``[P]``, by the chain rule.

        ``total`` is over all data, at ``psi``. ``batches`` of a part are scaled to all, for an estimate.
        """
        sums = tuple(part.detach().requires_grad_() for part in total.sums)
        value = self.evidence(self.reduced(sums), total.w, own.detach().double(), total.examples)
        slopes = torch.autograd.grad(value, sums, allow_unused=True, materialize_grads=True)
        at = psi.detach().double().requires_grad_()
        total_gradient, covered = torch.zeros_like(at), 0
        for batch, key in batches():
            parts = self.sums(total.w, at, batch, key, graph=True)
            change = torch.stack([(a * b).sum() for a, b in zip(slopes, parts, strict=True)]).sum()
            (new,) = torch.autograd.grad(change, at, allow_unused=True, materialize_grads=True)
            total_gradient, covered = total_gradient + new, covered + batch.examples
        return (total_gradient * (total.examples / covered)).to(psi.dtype)


class Smooth(Noise):
    """Noise for second derivatives: masks that are looked up by bits can be differentiated once."""

    def bits(self, shape: tuple[int, ...] | torch.Size) -> None:
        """None: the numbers are not made from bits."""


class Own(HyperModule):
    """Hyperparameters of an estimate, on a logarithmic scale, in psi by a transform that changes nothing."""

    hyperparameters = ("log",)
    part = "*"

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__()
        self.names = tuple(values)
        self.log = nn.Parameter(torch.tensor([*values.values()]).log())

    def forward(self, x: Any) -> Any:
        return x

    def physical(self) -> dict[str, float]:
        return dict(zip(self.names, self.log.detach().exp().tolist(), strict=True))
