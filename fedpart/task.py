"""Task: a module, its hyperparameters and a likelihood as one function of (w, psi, batch, noise)."""

from __future__ import annotations

import copy
import fnmatch
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpart.hyperparameters.base import HyperModule
from fedpart.likelihood import AVERAGES, LIKELIHOODS, Likelihood, average_samples
from fedpart.noise import Noise
from fedpart.registry import nearest
from fedpart.space import ParameterSpace


class Batch(NamedTuple):
    """Examples with optional weights (padding has weight 0).

    ``inputs [B, ...]``, ``targets [B, ...]``, ``weights [B]`` or None for ones.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None = None


class _Model(nn.Module):
    """Transforms, then the user's module: one tree, so that one functional_call substitutes w and psi."""

    def __init__(self, transforms: Mapping[str, nn.Module], module: nn.Module) -> None:
        super().__init__()
        self.transforms = nn.ModuleDict(transforms)
        self.module = module

    def forward(self, x: Tensor, samples: int, noise: Noise | None, share_mask: bool) -> Tensor:
        if samples > 1:
            x = x.repeat_interleave(samples, 0)
        for transform in self.transforms.values():
            x = transform(x)
        repeat = samples if share_mask and noise is not None else 1
        with noise.repeated(repeat) if noise is not None and repeat > 1 else nullcontext():
            return self.module(x)  # type: ignore[no-any-return]


class Task:
    """What is learned: ``loss(w, psi, batch, noise)`` averages over S samples, here and nowhere else.

    Args:
        module: the network; see :class:`~fedpart.space.ParameterSpace` for the layers it may have. It is copied.
        transforms: input transforms with learned parameters, e.g. ``AffineAugmentation()``; a list, or a dict
            that names them.
        hyperparameters: names of further parameters of ``module`` that are psi and not w; ``*`` and ``?`` are
            wildcards (``"stage1.*"``). Parameters of a ``HyperModule`` inside ``module`` are psi by themselves.
        likelihood: ``classification``, ``gaussian``, or a callable ``(outputs [B, ...], targets) -> nll [B]``.
        samples: S, augmentation samples per example.
        average: what is averaged over the samples: see :func:`~fedpart.likelihood.average_samples`.
        share_dropout_mask: whether the samples of one example share their dropout noise.
        precision: ``fp32``, ``fp64``, or ``bf16`` (autocast; parameters stay float32).

    Attributes:
        psi_space: the hyperparameters as a flat vector.
        psi_names: their names, e.g. ``affine.range`` or ``dropout1.logit``.

    Raises:
        ValueError: an unknown likelihood, average, precision or parameter name, or S < 1.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        transforms: Sequence[HyperModule] | Mapping[str, HyperModule] = (),
        hyperparameters: Sequence[str] = (),
        likelihood: str | Likelihood = "classification",
        samples: int = 10,
        average: str = "logits",
        share_dropout_mask: bool = False,
        precision: str = "fp32",
    ) -> None:
        if samples < 1:
            raise ValueError(f"The number of augmentation samples must be at least 1, got {samples}.")
        if average not in AVERAGES:
            raise ValueError(f"Unknown average over samples {average!r}: {nearest(average, AVERAGES)}")
        if isinstance(likelihood, str) and likelihood not in LIKELIHOODS:
            raise ValueError(f"Unknown likelihood {likelihood!r}: {nearest(likelihood, LIKELIHOODS)}")
        if precision not in ("fp32", "fp64", "bf16"):
            raise ValueError(f"Unknown precision {precision!r}: choose fp32, fp64 or bf16.")
        self.likelihood_name = likelihood if isinstance(likelihood, str) else getattr(likelihood, "__name__", "custom")
        self.likelihood = LIKELIHOODS[likelihood] if isinstance(likelihood, str) else likelihood
        self.samples, self.average, self.share_dropout_mask = samples, average, share_dropout_mask
        self.precision = precision
        named = transforms if isinstance(transforms, Mapping) else _named(transforms)
        self._model = _Model(copy.deepcopy(dict(named)), copy.deepcopy(module))
        if precision == "fp64":
            self._model.double()
        self._psi_paths = _psi_paths(self._model, hyperparameters)
        self.psi_space = ParameterSpace(self._model, only=self._psi_paths)
        self.psi_names = tuple(_short(entry.name) for entry in self.psi_space.entries)
        self.transform_psi = tuple(_short(path) for path in self._psi_paths if path.startswith("transforms."))

    @property
    def module(self) -> nn.Module:
        """The task's own copy of the network (its tensors are the initial values)."""
        return self._model.module

    @property
    def dtype(self) -> torch.dtype:
        """Type of parameters, psi and inputs."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    def parameter_space(self, chunks: int) -> ParameterSpace:
        """The trainable numbers (psi excluded) for ``chunks`` partitions."""
        exclude = {path.removeprefix("module.") for path in self._psi_paths if path.startswith("module.")}
        return ParameterSpace(self.module, chunks, exclude=exclude)

    def plain(self) -> Task:
        """The task without augmentation: the identity transform and S = 1; layers keep their (frozen) psi."""
        return self.replace(transforms={}, samples=1)

    def replace(self, transforms: Mapping[str, HyperModule] | None = None, samples: int | None = None) -> Task:
        """A copy with other input transforms, or another S."""
        inside = [_short(p) for p in self._psi_paths if p.startswith("module.")]
        return Task(
            self.module,
            transforms=self.transforms if transforms is None else transforms,
            hyperparameters=[name for name in inside],
            likelihood=self.likelihood_name if self.likelihood_name in LIKELIHOODS else self.likelihood,
            samples=self.samples if samples is None else samples,
            average=self.average,
            share_dropout_mask=self.share_dropout_mask,
            precision=self.precision,
        )

    @property
    def transforms(self) -> dict[str, HyperModule]:
        """The input transforms by name."""
        return dict(self._model.transforms.items())  # type: ignore[arg-type]

    def outputs(
        self, w: Mapping[str, Tensor], psi: Tensor, inputs: Tensor, noise: Noise | None, *, dropout: bool = True
    ) -> Tensor:
        """Network outputs averaged over the S samples, ``[B, ...]``.

        Args:
            w: the module's named tensors, from ``Partition.materialise`` or ``ParameterSpace.tensors``.
            psi: flat ``[P]``.
            inputs: ``[B, ...]``.
            noise: the random numbers; None draws from torch's generator.
            dropout: False switches the network's stochastic layers off (inference); transforms still sample.
        """
        tensors = {f"module.{name}": value for name, value in w.items()}
        tensors.update(self.psi_space.tensors(psi))
        self._model.module.train(dropout)
        cast = torch.autocast(inputs.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()
        with noise.active() if noise is not None else nullcontext(), cast:
            arguments = (inputs.to(self.dtype) if inputs.is_floating_point() else inputs,)
            out = functional_call(
                self._model, tensors, (*arguments, self.samples, noise, self.share_dropout_mask), strict=False
            )
        out = out.to(self.dtype)
        return average_samples(out.view(len(inputs), self.samples, *out.shape[1:]), self.average)

    def loss(
        self, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None, *, dropout: bool = True
    ) -> Tensor:
        """Mean negative log-likelihood of the batch in nats, a scalar; weighted if the batch has weights."""
        outputs = self.outputs(w, psi, batch.inputs, noise, dropout=dropout)
        nll = self.likelihood(outputs, batch.targets)
        if batch.weights is None:
            return nll.mean()
        return (nll * batch.weights).sum() / batch.weights.sum()

    def physical(self, psi: Tensor) -> dict[str, float]:
        """psi in units that a person reads, e.g. ``{"affine.angle_max [deg]": 67.0, "dropout1.rate [%]": 9.8}``."""
        values: dict[str, float] = {}
        self._write_psi(psi)
        claimed: set[str] = set()
        for path, layer in self._model.named_modules():
            if isinstance(layer, HyperModule) and layer.hyperparameters:
                prefix = _short(path) + "." if path not in ("module", "") else ""
                values.update({prefix + name: value for name, value in layer.physical().items()})
                claimed.update(f"{path}.{name}" for name in layer.hyperparameters)
        for path in self._psi_paths:
            if path not in claimed:  # a module's own weights: their size is what a person can read
                values[f"{_short(path)}.norm"] = self._model.get_parameter(path).norm().item()
        self._write_psi(self.psi_space.initial())
        return values

    def widths(self, psi: Tensor) -> Tensor:
        """Widths of all transforms' distributions, one vector, differentiable in ``psi``; see Augerino.

        Raises:
            ValueError: no transform has widths.
        """
        tensors = self.psi_space.tensors(psi)
        found = []
        for name, transform in self.transforms.items():
            own = {key.rpartition(".")[2]: t for key, t in tensors.items() if key.startswith(f"transforms.{name}.")}
            width = functional_call(_Widths(transform), {f"of.{key}": t for key, t in own.items()}, ())
            found += [width] if width is not None else []
        if not found:
            raise ValueError("No transform of the task has widths; add AffineAugmentation, or define widths().")
        return torch.cat(found)

    def _write_psi(self, psi: Tensor) -> None:
        with torch.no_grad():
            for path, value in self.psi_space.tensors(psi.detach()).items():
                self._model.get_parameter(path).copy_(value)


class _Widths(nn.Module):
    """Lets functional_call reach a transform's ``widths``."""

    def __init__(self, of: HyperModule) -> None:
        super().__init__()
        self.of = of

    def forward(self) -> Tensor | None:
        return self.of.widths()


def _named(transforms: Sequence[HyperModule]) -> dict[str, HyperModule]:
    names: dict[str, HyperModule] = {}
    for transform in transforms:
        base = re.sub(r"(?<!^)(?=[A-Z])", "_", type(transform).__name__).lower().removesuffix("_augmentation")
        name = base if base not in names else f"{base}{len(names) + 1}"
        names[name] = transform
    return names


def _short(path: str) -> str:
    return path.removeprefix("transforms.").removeprefix("module.")


def _psi_paths(model: _Model, patterns: Sequence[str]) -> tuple[str, ...]:
    parameters = [name for name, _ in model.named_parameters()]
    psi = {
        f"{path}.{name}"
        for path, layer in model.named_modules()
        if isinstance(layer, HyperModule)
        for name in layer.hyperparameters
    }
    own = [name for name in parameters if name.startswith("module.")]
    for pattern in patterns:
        matched = fnmatch.filter(own, f"module.{pattern}")
        if not matched:
            raise ValueError(
                f"No parameter of the module matches the hyperparameter {pattern!r}: "
                f"{nearest(pattern, [_short(name) for name in own])}"
            )
        psi.update(matched)
    unknown = psi - set(parameters)
    if unknown:
        raise ValueError(f"A module declares {_short(min(unknown))!r} as hyperparameter but has no such parameter.")
    strays = [n for n in parameters if n.startswith("transforms.") and n not in psi]
    if strays:
        raise ValueError(
            f"The transform's parameter {_short(strays[0])!r} is not listed in its `hyperparameters`; list it there "
            f"or register it as a buffer."
        )
    return tuple(name for name in parameters if name in psi)
