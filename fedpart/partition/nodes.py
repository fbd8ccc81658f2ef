"""Node partitioning: units of a chain of Linear and Conv layers are assigned, weights follow (App. C)."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedpart.checks import require
from fedpart.nn.hyperparameters.dropout import ConcreteDropout
from fedpart.nn.layers import MaxPoolReLU
from fedpart.partition import partition
from fedpart.partition.space import Entry, ParameterSpace
from fedpart.randomness.streams import generator
from fedpart.registry import Registry, nearest

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Modules that act on each unit by itself, so that what enters a unit depends on nothing but that unit.
_UNITWISE = (
    nn.Identity, nn.Dropout, ConcreteDropout, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU,
    nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish,
)  # fmt: skip
# These do so between convolutions, whose units are channels.
_POOLS = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, MaxPoolReLU,
)  # fmt: skip


class NodePartition(partition.AssignedPartition):
    """Units of each layer of a chain are assigned in proportion u, and weights follow (App. C, Fig. 4b).

    A weight belongs to the later of its input's and its output's partitions. With ``zeros`` as defaults,
    subnetworks of an nn.Sequential have the shapes of networks of fewer units, see :func:`narrower_spaces`.

    Args:
        space: the trainable numbers of ``module``; ``space.chunks`` must be C.
        proportions: u_1..u_C.
        module: an nn.Sequential, or any module with ``chain``.
        defaults: see :class:`.AssignedPartition`.
        seed: of the draw.
        chain: names of the Linear and Conv layers in the order in which data flows through them.

    Raises:
        ValueError: a chain that is not known, bad proportions, or see :class:`.AssignedPartition`.
    """

    def __init__(
        self, space: ParameterSpace, proportions: Sequence[float], module: nn.Module, *,
        defaults: partition.Defaults = "initial", seed: int = 0, chain: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        u = partition.proportions_of(space, proportions)
        units = unit_assignments(module, u, seed, chain)
        super().__init__(space, u, node_assignment(space, units), defaults)
        narrow = defaults == "zeros" and chain is None
        self._narrower = narrower_spaces(space, module, self.assignment) if narrow else {}

    def space_of(self, k: int) -> ParameterSpace:
        return self._narrower.get(k, self.space)


def unit_assignments(
    module: nn.Module, proportions: Sequence[float], seed: int, chain: Sequence[str] | None = None
) -> dict[str, tuple[Tensor, Tensor]]:
    """Partitions 1..C of every input and output unit, ``{layer: (inputs [n_in], outputs [n_out])}``, uint8.
    Network inputs and the outputs of the last layer belong to partition 1."""
    layers = chain_of(module, chain)
    for name, layer in layers:
        if getattr(layer, "groups", 1) != 1:
            raise ValueError(f"The grouped convolution {name!r} has no dense units; use scheme='random'.")
    require(len(layers) >= 2, "Node partitioning needs at least two Linear or Conv layers in the chain.")
    if len({id(layer.weight) for _, layer in layers}) < len(layers):
        raise ValueError("Two layers of the chain share one weight but not their units: use scheme='random'.")
    result: dict[str, tuple[Tensor, Tensor]] = {}
    previous: Tensor | None = None
    for index, (name, layer) in enumerate(layers):
        n_out, n_in = layer.weight.shape[:2]
        flattens = index > 0 and isinstance(layers[index - 1][1], _CONVS) and isinstance(layer, nn.Linear)
        inputs = torch.ones(n_in, dtype=torch.uint8)
        if previous is not None:
            inputs = spread(previous, n_in, name, flattens)
        if index == len(layers) - 1:
            outputs = torch.ones(n_out, dtype=torch.uint8)
        else:
            shuffle = generator(seed, "node partition", index).permutation(n_out)
            outputs = partition.labels(n_out, proportions)[torch.from_numpy(shuffle)]
        result[name] = (inputs, outputs)
        previous = outputs
    return result


def _in_chain(
    space: ParameterSpace, layers: Mapping[str, tuple[Tensor, Tensor]], remedy: str
) -> Iterator[tuple[Entry, tuple[Tensor, Tensor]]]:
    """All entries, each with what its layer has."""
    for entry in space.entries:
        known = entry.fold is None and entry.layer in layers
        outside = f"The parameter {entry.name!r} does not belong to the chain {list(layers)}"
        require(known, f"{outside}: {remedy}.")
        yield entry, layers[entry.layer]


def node_assignment(space: ParameterSpace, units: Mapping[str, tuple[Tensor, Tensor]]) -> Tensor:
    """Partition (1..C) of every element of ``space``, ``[size]`` uint8, given :func:`unit_assignments`."""
    assignment = torch.zeros(space.size, dtype=torch.uint8)
    remedy = "node partitioning covers Linear and Conv layers only; use scheme='random' for this module"
    for entry, (inputs, outputs) in _in_chain(space, units, remedy):
        if entry.name.endswith("bias"):
            owner = outputs
        else:  # a weight belongs to the later of its input's and its output's partitions
            owner = torch.maximum(outputs[:, None], inputs[None, :])
            owner = owner.view(*owner.shape, *([1] * (len(entry.shape) - 2))).expand(entry.shape)
        assignment[entry.offset : entry.offset + entry.size] = owner.reshape(-1)
    return assignment


def narrower_spaces(
    space: ParameterSpace, module: nn.Module, assignment: Tensor
) -> dict[int, ParameterSpace]:
    """Spaces, by k, of the subnetworks k < C that can be computed as networks of fewer units. With default
    values of 0 an absent unit feeds those that are there through weights of 0, whatever its activation. An
    nn.Unflatten, or tensors outside of the space that may have an entry for each unit (psi, buffers), forbid
    it."""
    inside = {entry.name for entry in space.entries}
    tensors = (*module.named_parameters(), *module.named_buffers())
    if any(tensor.numel() > 1 and name not in inside for name, tensor in tensors) or any(
        isinstance(layer, nn.Unflatten) for layer in module.modules()
    ):
        return {}
    narrowed = {k: space.narrowed(assignment <= k) for k in range(1, int(assignment.max()))}
    return {k: of for k, of in narrowed.items() if all(entry.size for entry in of.entries)}


def chain_of(module: nn.Module, chain: Sequence[str] | None = None) -> list[tuple[str, nn.Linear]]:
    """A chain's Linear and Conv layers by name, in the order in which data flows through them."""
    if chain is None:
        return _sequence(module)
    known = dict(module.named_modules())
    layers: list[tuple[str, nn.Linear]] = []
    for name in chain:
        if name not in known:
            raise ValueError(f"The module has no layer {name!r}: {nearest(name, filter(None, known))}")
        layer = known[name]
        if not isinstance(layer, (nn.Linear, *_CONVS)):
            remedy = "it lists Linear and Conv layers only"
            raise ValueError(f"The chain names {name!r}, a {type(layer).__name__}; {remedy}.")
        layers.append((name, layer))  # type: ignore[arg-type]  # Conv weights are [out, in, ...] as well
    return layers


def _sequence(module: nn.Module) -> list[tuple[str, nn.Linear]]:
    """Linear and Conv layers of an nn.Sequential in order; what lies between them must not mix units."""
    if not isinstance(module, nn.Sequential):
        fault = f"The order of layers in {type(module).__name__} is not known: node partitioning needs an"
        raise ValueError(f"{fault} nn.Sequential, or chain=[names of its Linear and Conv layers in order].")
    layers: list[tuple[str, nn.Linear]] = []
    channels = True  # whether units are channels here: of images, or of what a convolution puts out
    for name, layer in module.named_modules(remove_duplicate=False):  # one that occurs twice is there twice
        if isinstance(layer, nn.Sequential):
            continue
        if isinstance(layer, (nn.Linear, *_CONVS)):
            known = isinstance(layer, _CONVS) or not layers or not channels
            layers.append((name, layer))  # type: ignore[arg-type]  # Conv weights are [out, in, ...] as well
            channels = isinstance(layer, _CONVS)
        elif isinstance(layer, nn.Flatten):
            known = layer.start_dim == 1 and layer.end_dim == -1
            channels = channels and not layers
        elif isinstance(layer, nn.Unflatten):
            known = layer.dim == 1
            channels = True
        else:
            known = isinstance(layer, _UNITWISE) or (channels and isinstance(layer, _POOLS))
        if not known:
            raise ValueError(
                f"{type(layer).__name__} at {name!r} is not known to act unit by unit on what comes before: "
                f"use scheme='random', or, if it does, chain=[names of the Linear and Conv layers in order]."
            )
    return layers


def spread(units: Tensor, n_in: int, name: str, flattens: bool) -> Tensor:
    """What ``n_in`` inputs have that are fed by ``units``: a flattened channel feeds a block of inputs."""
    if n_in % len(units) or (n_in != len(units) and not flattens):
        fault = f"Layer {name!r} has {n_in} inputs, which {len(units)} units of the layer before it cannot"
        raise ValueError(f"{fault} feed evenly; check the order of the chain.")
    return units.repeat_interleave(n_in // len(units))


def rolled(space: ParameterSpace, module: nn.Module, chain: Sequence[str] | None = None) -> Tensor:
    """``[size]`` int64: ``own[rolled(...)]`` is the network whose hidden units have moved up by one, the
    first to the end. Inputs and the last layer's outputs stay; nothing is stacked."""
    layers, sources = chain_of(module, chain), dict[str, tuple[Tensor, Tensor]]()
    before: Tensor | None = None
    for index, (name, layer) in enumerate(layers):
        n_out, n_in = layer.weight.shape[:2]
        inputs = torch.arange(n_in)
        if before is not None:  # a flattened channel feeds a block of inputs, which moves as one
            units = spread(before, n_in, name, not isinstance(layers[index - 1][1], nn.Linear))
            each = n_in // len(before)
            inputs = units * each + torch.arange(n_in) % each
        outputs = torch.arange(n_out)
        before = outputs = outputs if index == len(layers) - 1 else outputs.roll(-1)
        sources[name] = outputs, inputs
    owned = {entry.name for entry in space.entries}
    for name, layer in layers:
        for kind, _ in layer.named_parameters(recurse=False):
            if f"{name}.{kind}" not in owned:  # it is shared, frozen, or a hyperparameter
                fault = f"{kind!r} of the layer {name!r} is no weight of its own, so the units there cannot"
                raise ValueError(f"{fault} be rolled; train it, and share it with no other layer.")
    places = torch.empty(space.size, dtype=torch.int64)
    remedy = "its units cannot be rolled; use a network of Linear and Conv layers in a row"
    for entry, (outputs, inputs) in _in_chain(space, sources, remedy):
        at = torch.arange(entry.offset, entry.offset + entry.size).view(entry.shape)
        at = at[outputs] if entry.name.endswith("bias") else at[outputs][:, inputs]
        places[entry.offset : entry.offset + entry.size] = at.reshape(-1)
    return places


SCHEMES: Registry[Callable[..., partition.Partition]] = Registry(
    "partitioning scheme",
    {"random": partition.RandomPartition, "node": NodePartition},
    makes=(partition.Partition,),
)


def divided(
    scheme: str, space: ParameterSpace, proportions: Sequence[float], **known: Any
) -> partition.Partition:
    """The partition that a scheme, in :data:`SCHEMES` or ``package.module:callable``, makes of a space: it
    gets what it names of ``module``, ``defaults``, ``seed`` and ``chain``."""
    build = SCHEMES.resolve(scheme)
    names = inspect.signature(build).parameters
    return build(space, proportions, **{name: value for name, value in known.items() if name in names})
