"""What the linear layers and convolutions of a network take and return in a pass."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedpart.task.task import Task

Tensors = Mapping[str, Tensor]


class Calls(TorchFunctionMode):
    """Within this context, what linear layers and convolutions take and return is kept.

    It looks at the functions and not at the modules, since some layers pool before they return.

    Attributes:
        seen: by layer: its inputs ``[rows, places, inputs]`` (patches for a convolution, one place for a
            linear layer of ``[rows, inputs]``), and what it returned.
    """

    def __init__(self, weights: Tensors) -> None:
        super().__init__()
        self._names = {id(weight): name for name, weight in weights.items()}
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is F.linear or func is F.conv2d:
            given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
            name = self._names.get(id(given["weight"]))
            if name is not None:
                if name in self.seen:
                    raise ValueError(
                        f"The layer {name} is used more than once in a pass, for which there is no Kronecker "
                        f"factor; use layers once each."
                    )
                self.seen[name] = _rows(given), out
        return out


_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def _rows(given: Mapping[str, Any]) -> Tensor:
    x, weight = given["input"], given["weight"]
    if weight.ndim == 2:
        return x.reshape(len(x), -1, x.shape[-1])  # type: ignore[no-any-return]
    if given.get("groups", 1) != 1 or isinstance(given.get("padding", 0), str):
        raise ValueError(
            "There are Kronecker factors of convolutions in one group whose padding is a number; change the "
            "layer's groups or padding."
        )
    how = {key: given.get(key, default) for key, default in (("dilation", 1), ("padding", 0), ("stride", 1))}
    return F.unfold(x, weight.shape[2:], **how).transpose(1, 2)


def mean_inputs(rows: Tensor, examples: int, bias: bool) -> Tensor:
    """Inputs of a layer averaged over the samples, ``[B, places, inputs]``; a last input of 1 for a bias."""
    mean = rows.reshape(examples, -1, *rows.shape[1:]).mean(1)
    return F.pad(mean, (0, 1), value=1.0) if bias else mean


def layers_of(task: Task) -> list[str]:
    """Names of the Linear and Conv2d layers whose weights are trained, in the order of the network."""
    trained = {entry.name for entry in task.parameter_space(1).entries}
    kinds = (nn.Linear, nn.Conv2d)
    named = [name for name, layer in task.module.named_modules() if isinstance(layer, kinds)]
    found = [name for name in named if _of(name, "weight") in trained]
    if not found:
        raise ValueError(
            "This evidence is over the weights of nn.Linear and nn.Conv2d layers, and the network trains "
            "none of these; use another method."
        )
    return found


def parts_of(w: Tensors, layer: str) -> Sequence[Tensor]:
    """Weight and, where it is trained, bias of a layer among named tensors."""
    names = (_of(layer, "weight"), _of(layer, "bias"))
    return [w[name] for name in names if name in w]


def _of(layer: str, part: str) -> str:
    return f"{layer}.{part}" if layer else part
