"""Units of a network rolled by one: the same function of its inputs, other units at the front."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedpart.partition.nodes import chain_of, spread
from fedpart.partition.space import ParameterSpace


def rolled(space: ParameterSpace, module: nn.Module, chain: Sequence[str] | None = None) -> Tensor:
    """Where the numbers come from of the network whose hidden units have moved up, the first to the end.

    Args:
        space: of ``module``; nothing is stacked.
        module, chain: see :func:`.chain_of`. Inputs and the last layer's outputs stay.

    Returns:
        ``[size]`` int64 in the module's own order: ``own[rolled(...)]`` is the network that has moved.
    """
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
                raise ValueError(
                    f"{kind!r} of the layer {name!r} is no weight of its own, so the units there cannot be "
                    f"rolled; train it, and share it with no other layer."
                )
    found = torch.empty(space.size, dtype=torch.int64)
    for entry in space.entries:
        if entry.fold is not None or entry.layer not in sources:
            raise ValueError(
                f"The parameter {entry.name!r} does not belong to the chain {list(sources)}, so its units "
                f"cannot be rolled; use a network of Linear and Conv layers in a row."
            )
        outputs, inputs = sources[entry.layer]
        at = torch.arange(entry.offset, entry.offset + entry.size).view(entry.shape)
        at = at[outputs] if entry.name.endswith("bias") else at[outputs][:, inputs]
        found[entry.offset : entry.offset + entry.size] = at.reshape(-1)
    return found
