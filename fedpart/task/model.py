"""What a task runs: transforms, network and likelihood as one module; and its passes with tensors that are
not its own, which draw reproducibly and are looked at."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from fedpart.checks import NetworkError, require
from fedpart.nn.layers.batchnorm import guard_group_norms
from fedpart.nn.likelihoods import Likelihood
from fedpart.randomness.noise import Noise
from fedpart.randomness.redirection import Kind, Redirection
from fedpart.randomness.strata import strata
from fedpart.task.adapting import explain_types
from fedpart.task.calling import call, outputs_of, replaced
from fedpart.task.looking.first_look import FirstLook
from fedpart.task.looking.memory import Given, Tensors
from fedpart.trees import Tree, first_leaf, map_leaves

Finish = Callable[[Tensor, Tree], Any] | None


class Batch(NamedTuple):
    """Examples with optional weights (padding has weight 0).

    ``inputs [B, ...]``, ``targets [B, ...]``: trees, see :mod:`fedpart.trees`; ``weights [B]`` or None.
    """

    inputs: Tree
    targets: Tree
    weights: Tensor | None = None

    @property
    def examples(self) -> int:
        """B."""
        return len(first_leaf(self.inputs))

    def to(self, device: torch.device | str) -> "Batch":
        """The batch, there."""
        inputs, targets, weights = map_leaves(
            lambda leaf: None if leaf is None else leaf.to(device), tuple(self)
        )
        return Batch(inputs, targets, weights)


class Prediction(NamedTuple):
    """``outputs [B, ...]``, averaged over the samples; ``nll [B]`` nats; ``hits [B]``: the share of each
    example that is predicted rightly, None where there are no classes."""

    outputs: Tensor
    nll: Tensor
    hits: Tensor | None


class Model(nn.Module):
    """Transforms, the user's module, the likelihood: one tree, so that one substitution reaches w and psi."""

    def __init__(
        self, transforms: Mapping[str, nn.Module], module: nn.Module, likelihood: Likelihood,
        samples: int, bf16: bool, channels_last: bool, stratified: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.transforms = nn.ModuleDict(transforms)
        self.module = module
        self.ends = nn.ModuleDict({"likelihood": likelihood})
        self.samples, self.bf16, self.channels_last = samples, bf16, channels_last
        self.stratified = stratified and samples > 1
        if channels_last:
            guard_group_norms(module)
        recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
        # oneDNN fails at recurrent layers in 16 bits where a processor cannot compute with them.
        self._wide = recurrent and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        self._resting = [layer for layer in module.modules() if not layer.training]

    def switch(self, dropout: bool) -> None:
        """Switch the network's stochastic layers; a part that came in evaluation mode stays in it."""
        if dropout:
            self.module.train(True)
        else:
            self.module.eval()  # which may be the user's own, and not train(False)
        self.training = dropout  # the network itself may rest
        for layer in self._resting:
            layer.training = False

    def forward(self, x: Tree, share: Noise | None, targets: Tree | None = None) -> Any:
        """What the network returns for all rows ``[B*S, ...]`` of ``x [B, ...]``; ``share``: the noise, if
        the samples of an example have it in common; ``targets``: for a network that computes its loss
        itself."""
        samples = self.samples
        if samples > 1:
            x = map_leaves(lambda leaf: leaf.repeat_interleave(samples, 0), x)
            if targets is not None:
                targets = map_leaves(lambda leaf: leaf.repeat_interleave(samples, 0), targets)
        with strata(samples, len(first_leaf(x))) if self.stratified else nullcontext():
            x = self.augmented(x)
        if self.channels_last:
            x = map_leaves(channels_last_of, x)
        first = first_leaf(x)
        # Only the network runs in low precision: coordinates of an image do not fit into bfloat16.
        low = self.bf16 and not (self._wide and first.device.type == "cpu")
        cast = torch.autocast(first.device.type, torch.bfloat16) if low else nullcontext()
        with cast, share.repeated(samples, len(first)) if share is not None else nullcontext():
            try:
                return call(self.module, x, targets)
            except RuntimeError as error:
                explain_types(self.module, x, error)
                raise

    def augmented(self, x: Tree) -> Tree:
        """The inputs of all rows, transformed."""
        for name, transform in self.transforms.items():
            part: Any = transform.part
            whole = part == "*" or (part is None and isinstance(x, Tensor))
            x = transform(x) if whole else replaced(x, part, transform, name)
        return x

    def widths(self) -> Tensor:
        """Widths of all transforms' distributions, one vector; see :meth:`.Task.widths`."""
        all_widths = [transform.widths() for transform in self.transforms.values()]  # type: ignore[operator]
        learned = [width for width in all_widths if width is not None]
        remedy = "add AffineAugmentation, or define widths() in your own"
        require(learned, f"No transform of the task has widths; {remedy}.")
        return torch.cat(learned)

    def averaged(self, found: Any, examples: int, dtype: torch.dtype) -> Tensor:
        """The outputs ``[B, ...]`` in what the network returned, averaged over the samples."""
        out = outputs_of(found).to(dtype)
        if not out.ndim or len(out) != examples * self.samples:
            raise NetworkError(
                f"The network returns outputs {list(out.shape)} for {examples * self.samples} rows; the "
                f"first dimension of what it takes and returns must be that of examples (batch_first=True)."
            )
        return self.likelihood.over_samples(out.view(examples, self.samples, *out.shape[1:]))

    @property
    def likelihood(self) -> Likelihood:
        """p(y | outputs)."""
        return self.ends["likelihood"]  # type: ignore[return-value]


def channels_last_of(value: Tensor) -> Tensor:
    """Images, and the weights of their convolutions, with channels next to each other in memory."""
    if value.ndim != 4:
        return value
    if value.shape[1] == 1:  # the strides of a single channel say nothing, unless they are set
        return value.reshape(-1).contiguous().view(len(value), *value.shape[2:], 1).movedim(-1, 1)
    return value.contiguous(memory_format=torch.channels_last)


class Substitution:
    """Puts tensors in the place of a module's parameters and buffers, differentiably, as
    ``torch.func.functional_call`` does, with the places looked up once: on a small network that search takes
    as long as a layer."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._constants: dict[torch.device, dict[str, Tensor]] = {}
        places: dict[int, list[tuple[dict[str, Tensor | None], str]]] = {}
        self._places: dict[str, list[tuple[dict[str, Tensor | None], str]]] = {}
        for prefix, layer in module.named_modules():
            for held in (layer._parameters, layer._buffers):
                for name, tensor in held.items():
                    if tensor is not None:  # a tied one is found again in its other places
                        same = places.setdefault(id(tensor), [])
                        same.append((held, name))
                        self._places[f"{prefix}.{name}" if prefix else name] = same
        self._parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        self._recurrent = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]

    def constants(self, device: torch.device) -> dict[str, Tensor]:
        """Buffers and frozen parameters that are elsewhere than ``device``, copied there once."""
        if device not in self._constants:
            held = (*self._module.named_buffers(), *frozen_of(self._module).items())
            away = [(name, tensor) for name, tensor in held if tensor.device != device]
            self._constants[device] = {name: tensor.to(device) for name, tensor in away}
        return self._constants[device]

    @contextmanager
    def __call__(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Within this context the module holds ``tensors``, by name; those in place of parameters are called
        parameters, for ``isinstance`` and ``get_parameter``."""
        before: list[tuple[dict[str, Tensor | None], str, Tensor | None]] = []
        try:
            for path, tensor in tensors.items():
                if path in self._parameters:
                    tensor._is_param = True
                for held, name in self._places[path]:
                    before.append((held, name, held[name]))
                    held[name] = tensor
            self._list_weights()
            yield
        finally:
            for held, name, before_it in reversed(before):
                held[name] = before_it
            self._list_weights()

    def _list_weights(self) -> None:
        """Recurrent layers compute with a list of their weights, which is made anew."""
        for layer in self._recurrent:
            layer._flat_weights = [getattr(layer, name) for name in layer._flat_weights_names]


def frozen_of(module: nn.Module) -> dict[str, Tensor]:
    """The frozen parameters of a module, by name."""
    return {name: parameter for name, parameter in module.named_parameters() if not parameter.requires_grad}


def share_frozen(copied: nn.Module, module: nn.Module) -> None:
    """Give a copy the memory of the module's frozen parameters, so that constants are in memory once."""
    frozen = frozen_of(module)
    for name, parameter in frozen_of(copied).items():
        if name in frozen:
            parameter.data = frozen[name].data


class Passes:
    """Passes through a model: with other tensors, draws from the noise, and the first of each kind looked
    at."""

    def __init__(self, model: Model, dtype: torch.dtype, original: nn.Module) -> None:
        self._model, self._dtype, self.holding = model, dtype, Substitution(model)
        self._redirected, self.look = Redirection(model), FirstLook(model)
        weights = [(name, weight) for name, weight in original.named_parameters() if weight.requires_grad]
        self.look.originals = [(f"module.{name}", ref(weight)) for name, weight in weights]
        self.look.given = [ref(layer) for layer in original.modules()]

    def __call__(
        self, tensors: Tensors, given: Given, noise: Noise | None, dropout: bool, share: bool, finish: Finish
    ) -> Any:
        """What ``finish`` makes of averaged outputs and targets; without it what the network returns for all
        rows. ``share``: whether the samples of an example share their dropout noise."""
        model, shared = self._model, noise if share else None
        if model.training != dropout:
            model.switch(dropout)
        drawing = None if noise is None else partial(noise.active, model.channels_last)

        def compute(x: Tree, targets: Tree) -> Any:
            if finish is None:
                return model(x, shared, targets)
            return finish(model.averaged(model(x, shared), len(first_leaf(x)), self._dtype), targets)

        kind: Kind = dropout, torch.is_grad_enabled(), getattr(finish, "__name__", ""), drawing is None
        if self.look.acts_backward:
            ends = (next(iter(tensors.values())), next(reversed([*tensors.values()])))
            kind = (*kind, *(tensor.requires_grad for tensor in ends))  # of psi, and of the weights
        due = self.look.is_due(kind)
        with self.holding({**self.holding.constants(first_leaf(given[0]).device), **tensors}):
            looked = partial(self.look, due, tensors, given, compute, drawing)
            return self._redirected(kind, drawing, looked, first_leaf(given[0]), due)
