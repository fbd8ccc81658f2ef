"""LoRA's scale and dropout, learned (Hu et al. 2021), in models of peft."""

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedpart.checks import require
from fedpart.nn.hyperparameters.base import HyperModule
from fedpart.nn.hyperparameters.dropout import ConcreteDropout

_NAME = "lora"  # of the gate in the module


class LoraGate(HyperModule):
    """Stands in the place of an adapter's dropout: ``x -> dropout(exp(log_scale) x)``.

    An adapter adds ``B A dropout(x)`` times peft's ``scaling``, linear in x. So the factor is the adapters'
    scale, on top of ``scaling`` (``lora_alpha / r``).

    Args:
        scale: whether the scale is a hyperparameter; else it stays 1.
        dropout: initial rate of a :class:`.ConcreteDropout`, in (0, 1); None for no dropout.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("log_scale",)
    limits: ClassVar = {"log_scale": (-math.log(1000), math.log(1000))}

    def __init__(self, scale: bool = True, dropout: float | None = 0.1) -> None:
        super().__init__()
        if not scale and dropout is None:
            raise ValueError("There is nothing to learn: give scale=True, or a rate for dropout.")
        # what is frozen is a constant, and not among psi
        self.log_scale = nn.Parameter(torch.tensor(0.0), requires_grad=scale)
        self.dropout = nn.Identity() if dropout is None else ConcreteDropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: what goes into an adapter, ``[rows, ...]``; dropout is the identity in ``eval()``."""
        return self.dropout(x * self.log_scale.exp().to(x.dtype))  # type: ignore[no-any-return]

    def physical(self) -> dict[str, float]:
        learned = self.log_scale.requires_grad
        return {"scale": self.log_scale.detach().exp().item()} if learned else {}


def learn_lora(
    module: nn.Module, scale: bool = True, dropout: float | Literal["peft"] | None = "peft"
) -> nn.Module:
    """Make the scale and the dropout rate of all LoRA adapters hyperparameters; ``module`` is changed in
    place.

    One :class:`LoraGate` takes the place of every adapter's dropout, and is the module's part ``lora``
    (unless that is an nn.Sequential). All adapters share scale and rate; masks differ. Adapters of embeddings
    have no dropout in peft, and stay as they are. As B begins at 0, so do the gradients of psi.

    Args:
        module: a model of peft, or anything with layers that have ``lora_A``, ``lora_B`` and ``lora_dropout``
            (nn.ModuleDicts with an entry for each adapter).
        scale: see :class:`LoraGate`.
        dropout: initial rate; ``"peft"``: that of the adapters (``lora_dropout``, the largest), or 0.1 where
            they have none; None for no dropout.

    Raises:
        ValueError: no adapters, or learned ones, or such as are off or not linear (DoRA); nothing to learn.
    """
    places = list(_places(module))
    rates = [getattr(layer.lora_dropout[adapter], "p", 0.0) for _, layer, adapter in places]
    gate = LoraGate(scale, (max(rates, default=0.0) or 0.1) if dropout == "peft" else dropout)
    if not places:
        fault = "The module has no LoRA adapters, layers with lora_A, lora_B and lora_dropout"
        raise ValueError(f"{fault}; make them with peft.get_peft_model(module, peft.LoraConfig(...)).")
    for name, layer, adapter in places:
        if adapter in getattr(layer, "lora_variant", {}):
            fault = f"The adapter {adapter!r} of {name!r} is a variant of LoRA (such as DoRA) that is not"
            raise ValueError(f"{fault} linear in its input, so it has no scale; make it with use_dora=False.")
        if isinstance(layer.lora_dropout[adapter], LoraGate):
            raise ValueError(f"The adapter {adapter!r} of {name!r} has a LoraGate; call learn_lora once.")
        off = adapter in getattr(layer, "merged_adapters", ()) or getattr(layer, "disable_adapters", False)
        fault = f"The adapter {adapter!r} of {name!r} is merged or disabled, so that it computes nothing"
        require(not off, f"{fault}; call unmerge_adapter() or enable_adapter_layers() first.")
    gate.train(places[0][1].training)
    for _, layer, adapter in places:
        layer.lora_dropout[adapter] = gate
    if not isinstance(module, nn.Sequential):  # which would run it
        module._modules = {_NAME: gate, **module._modules}  # first, so that psi bears this name
    return module


@torch.no_grad()
def fold_lora(module: nn.Module) -> nn.Module:
    """Undo :func:`learn_lora` at the scale and rate that were found, in place, for peft to save or merge: the
    scale goes into the weights of B, the rate into an ``nn.Dropout``. Outputs in ``eval()`` stay."""
    places = [place for place in _places(module) if isinstance(place[1].lora_dropout[place[2]], LoraGate)]
    require(places, "The module has no LoraGate to fold; learn_lora puts one in.")
    for _, layer, adapter in places:
        gate = layer.lora_dropout[adapter]
        layer.lora_B[adapter].weight.mul_(gate.log_scale.exp())
        rate = gate.dropout.logit.sigmoid().item() if isinstance(gate.dropout, ConcreteDropout) else 0.0
        layer.lora_dropout[adapter] = nn.Dropout(rate).train(gate.training)
    for layer in [*module.modules()]:  # a module around peft's may have the gate, too
        for name, part in [*layer.named_children()]:
            if isinstance(part, LoraGate):
                del layer._modules[name]
    return module


def _places(module: nn.Module) -> Iterator[tuple[str, Any, str]]:
    """Name and layer of every adapter, and the adapter's own name."""
    for name, layer in module.named_modules():
        parts = [getattr(layer, part, None) for part in ("lora_A", "lora_B", "lora_dropout")]
        if all(isinstance(part, nn.ModuleDict) for part in parts):
            yield from ((name, layer, adapter) for adapter in layer.lora_A)
