"""Task: a module, its hyperparameters and a likelihood as one function of (w, psi, batch, noise)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedpart.hyperparameters.base import HyperModule
from fedpart.parameters.space import Fold, ParameterSpace
from fedpart.randomness.noise import Noise
from fedpart.randomness.redirect import Redirection
from fedpart.task.adapting import adapt, to_dtype
from fedpart.task.likelihood import LIKELIHOODS, Likelihood, average_samples, resolve_likelihood
from fedpart.task.model import Model, with_channels_last
from fedpart.task.psi_names import check_transforms, named_transforms, psi_paths, short_name
from fedpart.task.substitution import Substitution


class Batch(NamedTuple):
    """Examples with optional weights (padding has weight 0).

    ``inputs [B, ...]``, ``targets [B, ...]``, ``weights [B]`` or None for ones.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None = None


class Task:
    """What is learned: ``loss(w, psi, batch, noise)`` averages over S samples, here and nowhere else.

    Args:
        module: the network, which is copied; see :class:`.ParameterSpace` for its layers. Frozen parameters
            (``requires_grad=False``) are constants. A part in evaluation mode stays in it; where the whole
            network is, only its BatchNorm does, which keeps its statistics.
        transforms: input transforms with learned parameters, e.g. ``AffineAugmentation()``; a list, or a dict
            that names them.
        hyperparameters: names of further parameters of ``module`` that are psi and not w; ``*`` and ``?`` are
            wildcards (``"stage1.*"``). Those that a ``HyperModule`` inside ``module`` lists are psi anyway.
        likelihood: ``classification``, ``gaussian``, or your own ``(outputs [B, ...], targets) -> nll [B]``.
        samples: S, augmentation samples per example.
        average: what is averaged over the samples: see :func:`.average_samples`.
        share_dropout_mask: whether the samples of one example share their dropout noise.
        precision: ``fp32``, ``fp64``, or ``bf16`` (autocast of the network; parameters stay float32).
        channels_last: memory format of images inside the network; with ``bf16`` a training step takes a third
            of the time on a CPU that has it.
        stacked: further stacked parameters of ``module``, ``{"block.scale": "product"}``; see
            :class:`.ParameterSpace`.
        learn_dropout: whether the rates of the network's nn.Dropout layers are psi, as those of
            :class:`.ConcreteDropout`, and not fixed.

    Attributes:
        psi_space: the hyperparameters as a flat vector.
        psi_names: their names, e.g. ``affine.range`` or ``dropout1.logit``.
        notes: a sentence about everything that was changed about the network so that it can be trained.

    Raises:
        ValueError: a layer that cannot be partitioned, an unknown likelihood, average, precision or parameter
            name, or S < 1.
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
        channels_last: bool = False,
        stacked: Mapping[str, Fold] | None = None,
        learn_dropout: bool = False,
    ) -> None:
        if samples < 1:
            raise ValueError(f"The number of augmentation samples must be at least 1, got {samples}.")
        if precision not in ("fp32", "fp64", "bf16"):
            raise ValueError(f"Unknown precision {precision!r}: choose fp32, fp64 or bf16.")
        self.likelihood_name, self._likelihood = resolve_likelihood(likelihood, average)
        self.samples, self.average, self.share_dropout_mask = samples, average, share_dropout_mask
        self.precision, self.channels_last, self.stacked = precision, channels_last, dict(stacked or {})
        named = dict(transforms) if isinstance(transforms, Mapping) else named_transforms(transforms)
        check_transforms(named, module)
        own, self.notes = adapt(copy.deepcopy(module), learn_dropout)
        if not any(layer.training for layer in own.modules()):  # what is trained is not in evaluation mode
            own.train()
        self._resting = [layer for layer in own.modules() if not layer.training]
        self._model = Model(copy.deepcopy(named), own)
        to_dtype(self._model, self.dtype)
        self._psi_paths = psi_paths(self._model, hyperparameters)
        self.psi_space = ParameterSpace(self._model, only=self._psi_paths)
        self.psi_names = tuple(short_name(entry.name) for entry in self.psi_space.entries)
        self.transform_psi = tuple(
            short_name(path) for path in self._psi_paths if path.startswith("transforms.")
        )
        self._with = Substitution(self._model)
        self._redirected = Redirection(self._model)
        self._buffers: dict[torch.device, dict[str, Tensor]] = {}
        self.parameter_space(1)  # refuses what cannot be partitioned here, where the module is at hand

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
        return ParameterSpace(self.module, chunks, stacked=self.stacked, exclude=exclude)

    def plain(self) -> Task:
        """The task without augmentation: the identity transform and S = 1; layers keep their (frozen) psi."""
        return self.replace(transforms={}, samples=1)

    def replace(
        self, transforms: Mapping[str, HyperModule] | None = None, samples: int | None = None
    ) -> Task:
        """A copy with other input transforms, or another S."""
        self._train(True)
        task = Task(
            self.module,
            transforms=self.transforms if transforms is None else transforms,
            hyperparameters=[short_name(path) for path in self._psi_paths if path.startswith("module.")],
            likelihood=self.likelihood_name if self.likelihood_name in LIKELIHOODS else self._likelihood,
            samples=self.samples if samples is None else samples,
            average=self.average,
            share_dropout_mask=self.share_dropout_mask,
            precision=self.precision,
            channels_last=self.channels_last,
            stacked=self.stacked,
        )
        task.notes = self.notes
        return task

    def with_psi(self, psi: Tensor) -> Task:
        """A copy whose initial hyperparameters are ``psi [P]``: for retraining (App. G)."""
        task = self.replace()
        task._write_psi(psi)
        task.psi_space = ParameterSpace(task._model, only=task._psi_paths)
        return task

    def psi_tensors(self, psi: Tensor) -> dict[str, Tensor]:
        """Views of ``psi [P]`` by name."""
        return dict(zip(self.psi_names, self.psi_space.tensors(psi).values(), strict=True))

    @property
    def transforms(self) -> dict[str, HyperModule]:
        """The input transforms by name."""
        return dict(self._model.transforms.items())  # type: ignore[arg-type]

    def likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood of each example given averaged outputs ``[B, ...]``; ``[B]`` nats.

        Raises:
            ValueError: a likelihood of one's own returns another shape.
        """
        nll = self._likelihood(outputs, targets)
        if nll.shape != (len(outputs),):
            raise ValueError(
                f"The likelihood returned shape {tuple(nll.shape)} where one negative log-likelihood per "
                f"example, {(len(outputs),)}, is expected; sum over the other dimensions."
            )
        return nll

    def outputs(
        self,
        w: Mapping[str, Tensor],
        psi: Tensor,
        inputs: Tensor,
        noise: Noise | None,
        *,
        dropout: bool = True,
    ) -> Tensor:
        """Network outputs averaged over the S samples, ``[B, ...]``.

        Args:
            w: the module's named tensors, from ``Partition.materialise`` or ``ParameterSpace.tensors``.
            psi: flat ``[P]``.
            inputs: ``[B, ...]``.
            noise: the random numbers; None draws from torch's generator, anew for every row.
            dropout: False switches the network's stochastic layers off (inference); transforms still sample.
        """
        tensors = {**self._buffers_on(inputs.device), **self.psi_space.tensors(psi)}
        for name, value in w.items():
            tensors[f"module.{name}"] = with_channels_last(value) if self.channels_last else value
        if self._model.training != dropout:
            self._train(dropout)
        x = inputs.to(self.dtype) if inputs.is_floating_point() else inputs
        share = noise if self.share_dropout_mask and self.samples > 1 else None
        drawing: AbstractContextManager[object] = nullcontext()
        redirected = drawing
        if noise is not None:
            drawing, redirected = noise.active(self.channels_last), self._redirected(dropout)
        with drawing, self._with(tensors), redirected:
            out = self._model(x, self.samples, share, self.precision == "bf16", self.channels_last)
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

    def transformed(self, psi: Tensor, inputs: Tensor, noise: Noise | None = None) -> Tensor:
        """``inputs [B, ...]`` as the network sees them, in one sample each."""
        x = inputs.to(self.dtype) if inputs.is_floating_point() else inputs
        drawing = noise.active() if noise is not None else nullcontext()
        with drawing, self._with(self.psi_space.tensors(psi)):
            for transform in self.transforms.values():
                x = transform(x)
        return x

    def physical(self, psi: Tensor) -> dict[str, float]:
        """psi in units that a person reads: ``{"affine.angle_max [deg]": 67.0, "drop.rate [%]": 9.8}``."""
        values: dict[str, float] = {}
        self._write_psi(psi)
        claimed: set[str] = set()
        for path, layer in self._model.named_modules():
            if isinstance(layer, HyperModule) and layer.hyperparameters:
                prefix = short_name(path) + "." if path not in ("module", "") else ""
                values.update({prefix + name: value for name, value in layer.physical().items()})
                claimed.update(f"{path}.{name}" for name in layer.hyperparameters)
        for path in self._psi_paths:
            if path not in claimed:  # a module's own weights: their size is what a person can read
                values[f"{short_name(path)}.norm"] = self._model.get_parameter(path).norm().item()
        self._write_psi(self.psi_space.initial())
        return values

    def widths(self, psi: Tensor) -> Tensor:
        """Widths of all transforms' distributions, one vector, differentiable in ``psi``; see Augerino.

        Raises:
            ValueError: no transform has widths.
        """
        with self._with(self.psi_space.tensors(psi)):
            all_widths = [transform.widths() for transform in self.transforms.values()]
        found = [width for width in all_widths if width is not None]
        if not found:
            raise ValueError(
                "No transform of the task has widths; add AffineAugmentation, or define widths() in your own."
            )
        return torch.cat(found)

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The network's and the transforms' frozen parameters by name: constants, in no partition."""
        return {name: p for name, p in self._model.named_parameters() if not p.requires_grad}

    def _buffers_on(self, device: torch.device) -> dict[str, Tensor]:
        """Buffers and frozen parameters that are elsewhere than the inputs, copied to them once."""
        if device not in self._buffers:
            constants = (*self._model.named_buffers(), *self.frozen.items())
            away = [(name, tensor) for name, tensor in constants if tensor.device != device]
            self._buffers[device] = {name: tensor.to(device) for name, tensor in away}
        return self._buffers[device]

    def _train(self, training: bool) -> None:
        """Switch the network's stochastic layers; what came in evaluation mode stays in it."""
        self._model.module.train(training)
        self._model.training = training  # the network itself may rest
        for layer in self._resting:
            layer.training = False

    def _write_psi(self, psi: Tensor) -> None:
        with torch.no_grad():
            for path, value in self.psi_space.tensors(psi.detach()).items():
                self._model.get_parameter(path).copy_(value)
