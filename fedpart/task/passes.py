"""Passes: a task's model computes with tensors that are not its own, draws reproducibly, and is looked at."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from fedpart.randomness.noise import Noise
from fedpart.randomness.redirection import Kind, Redirection
from fedpart.task.looking.first_look import FirstLook
from fedpart.task.looking.memory import Given, Tensors
from fedpart.task.model import Model
from fedpart.trees import Tree, first_leaf

Finish = Callable[[Tensor, Tree], Any] | None


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
