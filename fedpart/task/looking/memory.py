"""Which tensors a pass reads, writes to and changes, told by the memory they lie in."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedpart.nn.layers.copying import DERIVED
from fedpart.trees import Tree, map_leaves, memory_of, same_numbers, span_of, version_of

Tensors = Mapping[str, Tensor]  # a module's, by name
Given = tuple[Tree, Tree]  # inputs and targets
Context = Callable[[], AbstractContextManager[object]]


class Held:
    """A tensor as it was: where its numbers are, and what they are (``exact``), or their sum (``summed``)."""

    def __init__(self, tensor: Tensor, summed: bool, exact: bool) -> None:
        self.version, self._place = version_of(tensor), _place(tensor)
        self._numbers = tensor.detach().clone() if exact else None
        self._sum = _sum(tensor) if summed else None

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is unchanged."""
        if _place(tensor) != self._place:
            return False
        if self._numbers is not None:
            return same_numbers(self._numbers, tensor.detach())
        return self._sum is None or _sum(tensor) == self._sum


class Memory:
    """Tells in whose memory a tensor lies."""

    def __init__(self, tensors: Tensors) -> None:
        self._spans: dict[int, list[tuple[int, int, str]]] = {}
        for name, tensor in tensors.items():
            if tensor.numel() and (memory := memory_of(tensor)):
                self._spans.setdefault(memory, []).append((*span_of(tensor), name))

    def names(self, tensor: Tensor) -> set[str]:
        """Of the tensors that share numbers with this one."""
        spans = self._spans.get(memory_of(tensor))
        if not spans or not tensor.numel():
            return set()
        first, last = span_of(tensor)
        return {name for start, end, name in spans if start < last and first < end}


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which of a model's own weights are read while it computes with ``given`` memory in their place,
    and which ``held`` tensors are written to."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """See :class:`.TorchDraws`."""
        return False

    def __init__(self, own: Iterable[tuple[str, Tensor]], given: set[int], held: Memory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        named = {memory_of(tensor): name for name, tensor in own if tensor.numel()}
        self._names = {memory: name for memory, name in named.items() if memory not in given}
        self._held, self.read, self.written = held, set[str](), set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, Tensor):
                    name = getattr(tensor, DERIVED, None) or self._names.get(memory_of(tensor))
                    self.read |= {name} if name else set()
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    self.written |= self._held.names(tensor) if isinstance(tensor, Tensor) else set()
        return func(*args, **(kwargs or {}))


def _place(tensor: Tensor) -> tuple[int, torch.Size, bool]:
    """Where a tensor's numbers are, and whether a gradient is taken."""
    return memory_of(tensor), tensor.shape, tensor.requires_grad


def _sum(tensor: Tensor) -> str:
    """Another after a change through a NumPy array of the same memory, which is no operation of torch's."""
    with suppress(RuntimeError):  # a type that has none
        if tensor.device.type == "cpu" and tensor.layout == torch.strided:
            return str(tensor.detach().sum().item())
    return ""


@contextmanager
def other_weights(tensors: Tensors) -> Iterator[None]:
    """Within this context they hold other numbers, without a word to who has computed with them."""
    kept = [tensor.detach().clone() for tensor in tensors.values()]
    for tensor in tensors.values():
        with suppress(RuntimeError):  # several of its numbers are one in memory
            tensor.data.mul_(0.5).add_(0.125)
    try:
        yield
    finally:
        for tensor, before in zip(tensors.values(), kept, strict=True):
            with suppress(RuntimeError):
                tensor.data.copy_(before)


def registered(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What it holds now, by name."""
    for name, layer in model.named_modules():
        for key, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if tensor is not None:
                yield f"{name}.{key}", tensor


def copies(given: Given) -> Given:
    """Inputs and targets that may be written to."""
    return map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, given)  # type: ignore[no-any-return]


def leaves_of(tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    """The leaves of the graphs behind some tensors, by identity."""
    leaves: dict[int, Tensor] = {}
    seen, waiting = set[Any](), list[Any]()
    for tensor in tensors:
        if tensor.grad_fn is not None:
            waiting.append(tensor.grad_fn)
        elif tensor.requires_grad:
            leaves[id(tensor)] = tensor
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves[id(leaf)] = leaf
        waiting += [before for before, _ in node.next_functions if before is not None]
    return leaves
