"""Which parameters of a task are hyperparameters (psi), and what they are called."""

import fnmatch
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from fedpart.checks import require
from fedpart.nn.hyperparameters.base import HyperModule
from fedpart.partition.inspection import check_supported
from fedpart.partition.sharing import Composed, plain_name
from fedpart.partition.space import ParameterSpace
from fedpart.registry import nearest

_NO_BOUNDS = (-math.inf, math.inf)


def named_transforms(transforms: Sequence[HyperModule]) -> dict[str, HyperModule]:
    """Transforms under the names of their classes: ``affine``, ``affine2``, ``color_shift``."""
    names: dict[str, HyperModule] = {}
    seen: Counter[str] = Counter()
    for transform in transforms:
        base = re.sub(r"(?<!^)(?=[A-Z])", "_", type(transform).__name__).lower().removesuffix("_augmentation")
        seen[base] += 1
        names[base if seen[base] == 1 else f"{base}{seen[base]}"] = transform
    return names


def checked_transforms(
    transforms: Sequence[HyperModule] | Mapping[str, HyperModule], module: nn.Module
) -> dict[str, HyperModule]:
    """Transforms by name, whose psi cannot be taken for the module's and whose layers are supported."""
    if isinstance(transforms, HyperModule):
        transforms = [transforms]
    held = transforms.values() if isinstance(transforms, Mapping) else transforms
    for transform in held if isinstance(held, Iterable) else [held]:
        if not isinstance(transform, HyperModule):
            raise ValueError(
                f"Transforms are a list or a dict of fedpart.HyperModule, got a {type(transform).__name__}; "
                f"put what has no hyperparameters into the network, nn.Sequential(transform, network)."
            )
    named = dict(transforms) if isinstance(transforms, Mapping) else named_transforms(transforms)
    inside = {name for name, _ in (*module.named_children(), *module.named_parameters(recurse=False))}
    for name, transform in named.items():
        if not name.isidentifier() or hasattr(nn.ModuleDict, name) or name in inside:
            raise ValueError(
                f"A transform cannot be called {name!r}: names of transforms are identifiers that no part of "
                f"the module bears; give transforms={{'name': ...}}."
            )
        check_supported(transform)
    return named


def psi_paths(model: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """Full names of all hyperparameters, in the model's order; ``patterns``: names of parameters of
    ``module`` that are psi, with wildcards."""
    every = dict(model.named_parameters(remove_duplicate=False))  # a shared parameter under each of its names
    parameters = [name for name, _ in model.named_parameters()]
    psi = {
        f"{path}.{name}"
        for path, layer in model.named_modules()
        if isinstance(layer, HyperModule)
        for name in layer.hyperparameters
    }
    inside = [name for name in every if name.startswith("module.")]
    for pattern in patterns:
        matched = fnmatch.filter(inside, f"module.{pattern}")
        if matched and not any(every[name].requires_grad for name in matched):
            raise ValueError(
                f"What matches the hyperparameter {pattern!r} is frozen; to learn it, call "
                f"module.get_parameter({short_name(matched[0])!r}).requires_grad_(True)."
            )
        if not matched:
            fault = f"No parameter of the module matches the hyperparameter {pattern!r}"
            raise ValueError(f"{fault}: {nearest(pattern, [short_name(name) for name in inside])}")
        psi.update(matched)
    if unknown := psi - set(every):
        raise ValueError(
            f"A module declares {short_name(min(unknown))!r} as hyperparameter but has no such parameter."
        )
    shared = {id(every[name]) for name in psi if every[name].requires_grad}  # a frozen one is a constant
    strays = [
        name
        for name in parameters
        if name.startswith("transforms.") and id(every[name]) not in shared and every[name].requires_grad
    ]
    if strays:
        fault = f"The transform's parameter {short_name(strays[0])!r} is not listed in its `hyperparameters`"
        raise ValueError(f"{fault}; list it there or register it as a buffer.")
    return tuple(name for name in parameters if id(every[name]) in shared)


def physical_values(model: nn.Module, paths: Sequence[str]) -> dict[str, float]:
    """The model's hyperparameters, at ``paths``, in units that a person reads."""
    values: dict[str, float] = {}
    claimed: set[str] = set()
    for path, layer in model.named_modules():
        if isinstance(layer, HyperModule) and layer.hyperparameters:
            prefix = f"{name}." if (name := psi_name(model, path)) else ""
            for name, value in dict[str, Any](layer.physical()).items():
                try:
                    values[prefix + name] = float(value.detach() if isinstance(value, Tensor) else value)
                except (TypeError, ValueError, RuntimeError) as error:
                    fault = f"{type(layer).__name__}.physical() has no number for {name!r}"
                    raise ValueError(
                        f"{fault} but a {type(value).__name__}; write .item() of a tensor."
                    ) from error
            claimed.update(f"{path}.{name}" for name in layer.hyperparameters)
    for path in paths:
        if path not in claimed:  # a module's own weights: of several, their size is what a person can read
            own, name = model.get_parameter(path), psi_name(model, path)
            values.update({name: own.item()} if own.numel() == 1 else {f"{name}.norm": own.norm().item()})
    return values


def psi_bounds(model: nn.Module, space: ParameterSpace) -> tuple[Tensor, Tensor]:
    """See :attr:`.Task.psi_bounds`; ``space``: of psi."""
    low, high = space.initial(), space.initial()
    sizes = [entry.size for entry in space.entries]
    parts = zip(space.entries, torch.split(low, sizes), torch.split(high, sizes), strict=True)
    for entry, lows, highs in parts:
        path, _, name = entry.name.rpartition(".")
        owner = model.get_submodule(path)
        bounds = owner.bounds() if isinstance(owner, HyperModule) else {}
        known = [*getattr(owner, "hyperparameters", ())]
        for limited in bounds.keys() - {*known}:  # another instance may have it
            meant = [near for near in get_close_matches(limited, known) if near not in bounds]
            what = f"{type(owner).__name__} limits {limited!r}, which is none of its hyperparameters"
            require(not meant, f"{what}; did you mean {' or '.join(map(repr, meant))}?")
            if not hasattr(owner, limited):
                warnings.warn(f"{what}; nothing is held there.", RuntimeWarning, stacklevel=2)
        least, most = (torch.as_tensor(end).to(low).flatten() for end in bounds.get(name, _NO_BOUNDS))
        require((least <= most).all(), f"Limits of {name!r} are ({least}, {most}); the smaller is the first.")
        lows.clamp_(max=least)
        highs.clamp_(min=most)
    return low, high


def psi_name(model: nn.Module, path: str) -> str:
    """What a hyperparameter, or a layer that has some, is called: as in the plain network, if composed."""
    name = short_name(path)
    if isinstance(getattr(model, "module", None), Composed):
        return "" if name == "network" else plain_name(name)
    return name


def short_name(path: str) -> str:
    """The path without ``transforms.`` or ``module.``."""
    return path.partition(".")[2]
