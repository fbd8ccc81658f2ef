"""Task: a module, its hyperparameters and a likelihood as one function of (w, psi, batch, noise)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedpart.checks import NetworkError, check_options
from fedpart.nn.hyperparameters.base import HyperModule
from fedpart.nn.layers.copying import copied
from fedpart.nn.likelihoods import FromModel, Likelihood
from fedpart.nn.likelihoods.base import OwnLikelihood, resolve_likelihood
from fedpart.partition.space import Fold, ParameterSpace
from fedpart.randomness.noise import Noise
from fedpart.task import psi_names
from fedpart.task.adapting import adapt, dtype_of, to_dtype
from fedpart.task.calling import has_logits, loss_of
from fedpart.task.looking.attributes import check_memory
from fedpart.task.looking.memory import Given, Tensors
from fedpart.task.model import Batch as Batch
from fedpart.task.model import Finish, Model, Passes, Prediction, channels_last_of, frozen_of, share_frozen
from fedpart.task.psi_names import psi_name, short_name
from fedpart.trees import Tree, first_leaf, with_floats


class Task:
    """What is learned: ``loss(w, psi, batch, noise)`` averages over S samples, here and nowhere else.

    Args:
        module: the network, which is copied; see :class:`.ParameterSpace` for layers. Frozen parameters are
            constants. A part in evaluation mode stays in it; of a whole network only its BatchNorm does.
        transforms: input transforms with learned parameters, e.g. ``AffineAugmentation()``; a list, or a dict
            that names them.
        hyperparameters: names of further parameters of ``module`` that are psi and not w; ``*`` and ``?`` are
            wildcards (``"stage1.*"``). Those that a ``HyperModule`` inside ``module`` lists are psi anyway.
        likelihood: a name of :mod:`fedpart.nn.likelihoods`, a :class:`.Likelihood` with options, or
            a function ``(outputs [B, ...], targets) -> nll [B]``.
        samples: S, augmentation samples per example.
        average: what is averaged over the samples: see :func:`.average_samples`.
        share_dropout_mask: whether the samples of one example share their dropout noise.
        stratified: whether its samples are spread evenly over what transforms draw: :func:`.stratified`.
        precision: ``fp32``, ``fp64``, or ``bf16`` (autocast of the network; parameters stay float32).
        channels_last: memory format of images; with ``bf16`` a step takes a third of the time on some CPUs.
        stacked: further stacked parameters, ``{"block.scale": "product"}``; see :class:`.ParameterSpace`.
        learn_dropout: whether rates of nn.Dropout layers are psi, as :class:`.ConcreteDropout`'s, not fixed.
        sizes: builds the network in other sizes, of the ``model_options`` of the setting ``architectures``.

    Attributes:
        psi_space: the hyperparameters as a flat vector.
        psi_names: their names, e.g. ``affine.range`` or ``dropout1.logit``.
        dtype: type of parameters, psi and inputs.
        notes: a sentence about everything that was changed about the network so that it can be trained.

    Raises:
        ValueError: a layer that cannot be partitioned, a name of something that there is not, or S < 1.
    """

    def __init__(
        self, module: nn.Module, *, transforms: Sequence[HyperModule] | Mapping[str, HyperModule] = (),
        hyperparameters: Sequence[str] = (),
        likelihood: str | Likelihood | Callable[[Tensor, Any], Tensor] = "classification", samples: int = 10,
        average: str = "logits", share_dropout_mask: bool = False, stratified: bool = False,
        precision: str = "fp32", channels_last: bool = False, stacked: Mapping[str, Fold] | None = None,
        learn_dropout: bool = False, sizes: Callable[..., nn.Module] | None = None,
    ) -> None:  # fmt: skip
        self._given = {name: given for name, given in locals().items() if name not in ("self", "module")}
        check_options(**self._given)
        self.dtype = dtype_of(precision)
        self.likelihood_name, ends = resolve_likelihood(copied(likelihood), average, {})
        self.samples, self.average, self.stratified = samples, average, stratified
        self.precision, self.share_dropout_mask = precision, share_dropout_mask
        self.channels_last, self.stacked = channels_last, dict(stacked or {})
        named = psi_names.checked_transforms(transforms, module)
        check_memory(module)
        adapted, self.notes = adapt(copied(module), learn_dropout, self.dtype)
        self._model = Model(
            copied(named), adapted, ends, samples, precision == "bf16", channels_last, stratified
        )
        to_dtype(self._model, self.dtype)
        self._psi_paths = psi_names.psi_paths(self._model, hyperparameters)
        self.psi_space = ParameterSpace(self._model, only=self._psi_paths)
        self.psi_names = tuple(psi_name(self._model, entry.name) for entry in self.psi_space.entries)
        self.transform_psi = tuple(map(short_name, self._paths_of("transforms")))
        self._of_likelihood = self._paths_of("ends")
        self._passes = Passes(self._model, self.dtype, module)
        self._sampled: dict[int, Task] = {}
        self._computes_loss = isinstance(ends, FromModel)
        self.parameter_space(1)  # refuses what cannot be partitioned here, where the module is at hand
        for path, weight in self._model.named_parameters():
            if weight.requires_grad and not (weight.sum().isfinite() or weight.isfinite().all()):
                fault = f"{short_name(path)!r} begins with numbers that are not finite in {weight.dtype}"
                raise ValueError(f"{fault}; give it others.")

    @property
    def module(self) -> nn.Module:
        """The task's own copy of the network (its tensors are the initial values)."""
        return self._model.module

    @property
    def acts_backward(self) -> bool:
        """Whether hooks or functions of the user's act in the backward pass, as far as passes have shown."""
        return self._passes.look.acts_backward

    def parameter_space(self, chunks: int) -> ParameterSpace:
        """The trainable numbers (psi excluded) for ``chunks`` partitions."""
        exclude = set(map(short_name, self._paths_of("module")))
        return ParameterSpace(self.module, chunks, stacked=self.stacked, exclude=exclude)

    def _paths_of(self, part: str) -> list[str]:
        """Those of psi that belong to ``transforms``, ``module`` or ``ends``."""
        return [path for path in self._psi_paths if path.startswith(f"{part}.")]

    def plain(self) -> "Task":
        """The task without augmentation: the identity transform and S = 1; layers keep their (frozen) psi."""
        task = self.replace(transforms={}, samples=1)
        fixed = [repr(name) for name, made in self.transforms.items() if not [*made.parameters()]]
        if fixed:
            left = f"{', '.join(fixed)} without hyperparameters; method_options augment: true keeps them"
            task.notes = [*self.notes, f"The method leaves all transforms out, also {left}."]
        return task

    def replace(self, **changes: Any) -> "Task":
        """A copy with other arguments, such as ``transforms``, ``samples`` or ``precision``."""
        self._model.switch(True)
        defaults = {"hyperparameters": [*map(short_name, self._paths_of("module"))], "learn_dropout": False}
        task = Task(self.module, **{**self.arguments, **defaults, **changes})
        if task.dtype == self.dtype:
            share_frozen(task._model, self._model)
        task.notes = self.notes
        task._passes.look.originals += self._passes.look.originals
        task._passes.look.given += self._passes.look.given
        task._given |= {key: self._given[key] for key in ("hyperparameters", "learn_dropout")}
        return task

    @property
    def arguments(self) -> dict[str, Any]:
        """With which another task like this one is made, for a network as it was given."""
        ends = self._model.likelihood
        likelihood = ends.function if isinstance(ends, OwnLikelihood) else ends
        return {**self._given, "transforms": self.transforms, "likelihood": likelihood}

    def with_samples(self, samples: int | None) -> "Task":
        """The task with so many samples, or its own; made once, for its first pass looks for random draws.
        Without transforms more samples than it has would be the same ones, and it keeps its own."""
        if samples is None or samples == self.samples or (samples > self.samples and not self.transforms):
            return self
        if samples not in self._sampled:
            self._sampled[samples] = self.replace(samples=samples)
        return self._sampled[samples]

    def with_psi(self, psi: Tensor) -> "Task":
        """A copy whose initial hyperparameters are ``psi [P]``: for retraining (App. G)."""
        task = self.replace()
        with torch.no_grad():
            for path, value in self.psi_space.tensors(psi.detach()).items():
                task._model.get_parameter(path).copy_(value)
        task.psi_space = ParameterSpace(task._model, only=task._psi_paths)
        return task

    @property
    def psi_bounds(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest psi that a server keeps, ``[P]`` each; its start may be one."""
        return psi_names.psi_bounds(self._model, self.psi_space)

    def psi_tensors(self, psi: Tensor) -> dict[str, Tensor]:
        """Views of ``psi [P]`` by name."""
        return dict(zip(self.psi_names, self.psi_space.tensors(psi).values(), strict=True))

    @property
    def transforms(self) -> dict[str, HyperModule]:
        """The input transforms by name."""
        return dict(self._model.transforms.items())  # type: ignore[arg-type]

    @contextmanager
    def likelihood_at(self, psi: Tensor | None) -> Iterator[Likelihood]:
        """The likelihood with its hyperparameters; the initial ones if None."""
        if psi is None or not self._of_likelihood:
            yield self._model.likelihood
        else:
            named = self.psi_space.tensors(psi)
            with self._passes.holding({path: named[path] for path in self._of_likelihood}):
                yield self._model.likelihood

    def likelihood(self, outputs: Tensor, targets: Tree, psi: Tensor | None = None) -> Tensor:
        """Negative log-likelihood of each example given averaged outputs ``[B, ...]``; ``[B]`` nats."""
        with self.likelihood_at(psi) as likelihood:
            return likelihood.of_each(outputs, targets)

    def outputs(
        self, w: Tensors, psi: Tensor, inputs: Tree, noise: Noise | None, *, dropout: bool = True
    ) -> Tensor:
        """Network outputs averaged over the S samples, ``[B, ...]``, of named tensors ``w``, ``psi [P]`` and
        inputs ``[B, ...]``, or a tree of such. Without ``noise`` torch's generator draws, anew for every row.
        ``dropout=False`` switches the network's stochastic layers off (inference); transforms still
        sample."""
        returned = self._run(w, psi, (inputs, None), noise, dropout)
        with self.likelihood_at(psi):
            return self._model.averaged(returned, len(first_leaf(inputs)), self.dtype)

    def _run(
        self, w: Tensors, psi: Tensor, given: Given, noise: Noise | None, dropout: bool, finish: Finish = None
    ) -> Any:
        """See :class:`.Passes`."""
        tensors = dict(self.psi_space.tensors(psi))
        for name, value in w.items():
            tensors[f"module.{name}"] = channels_last_of(value) if self.channels_last else value
        share = self.share_dropout_mask and self.samples > 1
        given = with_floats(given[0], self.dtype), given[1]
        return self._passes(tensors, given, noise, dropout, share, finish)

    def loss(
        self, w: Tensors, psi: Tensor, batch: Batch, noise: Noise | None, *, dropout: bool = True
    ) -> Tensor:
        """Mean :meth:`.Likelihood.loss` of the batch in nats, a scalar; weighted if the batch has weights."""
        if self._computes_loss:
            _, nll = self._own(w, psi, batch, noise, dropout)
        else:
            nll = self._run(w, psi, batch[:2], noise, dropout, self._model.likelihood.loss_of_each)
        if batch.weights is None:
            return nll.mean()
        if not nll.ndim:
            fault = "The network returns one loss for the whole batch, which cannot be padded"
            raise NetworkError(f"{fault}; return one for each row, or use execution: loop.")
        return (nll * batch.weights).sum() / batch.weights.sum()

    def _own(
        self, w: Tensors, psi: Tensor, batch: Batch, noise: Noise | None, dropout: bool
    ) -> tuple[Any, Tensor]:
        """What a network returns that computes its loss, and the loss: ``[B]`` nats, or one mean of all."""
        inputs = batch.inputs, with_floats(batch.targets, self.dtype)
        returned = self._run(w, psi, inputs, noise, dropout)
        loss = loss_of(returned, batch.examples * self.samples).to(self.dtype)
        return returned, loss.view(batch.examples, self.samples).mean(1) if loss.ndim else loss

    def predict(
        self, w: Tensors, psi: Tensor, batch: Batch, noise: Noise | None, dropout: bool = False,
        change: Callable[[Tensor], Tensor] | None = None,
    ) -> Prediction:  # fmt: skip
        """Outputs, ``change`` made of them, and how good they are; where targets are needed, the losses."""
        if self._computes_loss:
            returned, loss = self._own(w, psi, batch, noise, dropout)
            nll = outputs = loss.expand(batch.examples)
            if has_logits(returned):
                outputs = self._model.averaged(returned, batch.examples, self.dtype)
            else:
                with suppress(Exception):  # it cannot do without targets
                    outputs = self.outputs(w, psi, batch.inputs, noise, dropout=dropout)
            with self.likelihood_at(psi) as likelihood:
                return Prediction(outputs, nll, likelihood.hits(outputs, batch.targets))

        def predicted(outputs: Tensor, targets: Tree) -> Prediction:
            outputs, ends = outputs if change is None else change(outputs), self._model.likelihood
            return Prediction(outputs, ends.of_each(outputs, targets), ends.hits(outputs, targets))

        return cast(Prediction, self._run(w, psi, batch[:2], noise, dropout, predicted))

    def transformed(self, psi: Tensor, inputs: Tree, noise: Noise | None = None) -> Tree:
        """``inputs [B, ...]`` as the network sees them, in one sample each."""
        x = with_floats(inputs, self.dtype)
        drawing = noise.active() if noise is not None else nullcontext()
        with drawing, self._passes.holding(self.psi_space.tensors(psi)):
            return self._model.augmented(x)

    def physical(self, psi: Tensor) -> dict[str, float]:
        """psi in units that a person reads: ``{"affine.angle_max [deg]": 67.0, "drop.rate [%]": 9.8}``."""
        device = self.psi_space.initial().device  # where a module's buffers are, which it may compute with
        learned = psi.detach().to(device).requires_grad_()  # modules may ask whether a parameter is trained
        with self._passes.holding(self.psi_space.tensors(learned)):
            return psi_names.physical_values(self._model, self._psi_paths)

    def widths(self, psi: Tensor) -> Tensor:
        """Widths of all transforms' distributions, one vector, differentiable in ``psi``; see Augerino."""
        with self._passes.holding(self.psi_space.tensors(psi)):
            return self._model.widths()

    @property
    def counts(self) -> dict[str, int]:
        """How many numbers are ``trained``, ``frozen``, and ``psi``."""
        trained, frozen = self.parameter_space(1).size, sum(map(Tensor.numel, self.frozen.values()))
        return {"trained": trained, "frozen": frozen, "psi": self.psi_space.size}

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The network's and the transforms' frozen parameters by name: constants, in no partition."""
        return frozen_of(self._model)
