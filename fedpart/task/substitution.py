"""Substitution: a module computes with other tensors than its own, for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Substitution:
    """Puts tensors in the place of a module's parameters and buffers, differentiably.

    What ``torch.func.functional_call`` does, with the places looked up once: on a small network that search
    takes as long as a layer.

    Args:
        module: its parameters and buffers must stay where they are; their values may change.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._constants: dict[torch.device, dict[str, Tensor]] = {}
        places: dict[int, list[tuple[dict[str, Tensor | None], str]]] = {}
        self._places: dict[str, list[tuple[dict[str, Tensor | None], str]]] = {}
        for prefix, layer in module.named_modules():
            for held in (layer._parameters, layer._buffers):
                for name, tensor in held.items():
                    if tensor is not None:  # a tied one is found again in its other places
                        found = places.setdefault(id(tensor), [])
                        found.append((held, name))
                        self._places[f"{prefix}.{name}" if prefix else name] = found
        self._parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        self._recurrent = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]

    def constants(self, device: torch.device) -> dict[str, Tensor]:
        """Buffers and frozen parameters that are elsewhere than ``device``, copied there once."""
        if device not in self._constants:
            own = (*self._module.named_buffers(), *frozen_of(self._module).items())
            away = [(name, tensor) for name, tensor in own if tensor.device != device]
            self._constants[device] = {name: tensor.to(device) for name, tensor in away}
        return self._constants[device]

    @contextmanager
    def __call__(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Within this context the module holds ``tensors``, by name; the others are its own.

        Those in place of parameters are called parameters, for ``isinstance`` and ``get_parameter``.

        Raises:
            KeyError: the module has no tensor of that name.
        """
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
            for held, name, own in reversed(before):
                held[name] = own
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
    own = frozen_of(module)
    for name, parameter in frozen_of(copied).items():
        if name in own:
            parameter.data = own[name].data
