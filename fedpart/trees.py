"""Trees: a tensor, or dicts, tuples and lists of trees; every tensor has examples in its first dimension."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedpart.checks import require

Tree = Any  # a Tensor, or a dict, tuple or list of trees


def leaves(tree: Tree, name: str = "") -> Iterator[tuple[str, Any]]:
    """What is no dict, tuple or list, with its place: ``inputs['mask']``, ``inputs[1]``."""
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from leaves(part, f"{name}[{key!r}]")
    elif isinstance(tree, (tuple, list)):
        for place, part in enumerate(tree):
            yield from leaves(part, f"{name}[{place}]")
    else:
        yield name, tree


def map_leaves(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The tree of ``function``'s values at each leaf; further trees are of the same form.

    Mappings become dicts."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, Mapping):
        return {
            key: map_leaves(function, part, *(other[key] for other in others)) for key, part in tree.items()
        }
    if isinstance(tree, (tuple, list)):
        parts = [map_leaves(function, *same) for same in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree, *others)


def with_floats(tree: Tree, dtype: torch.dtype) -> Tree:
    """The tree with its floating-point tensors in ``dtype``."""
    return map_leaves(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, tree)


def form_of(tree: Tree, name: str) -> Any:
    """What a tree looks like, as plain data: each leaf stands as its name, see :func:`leaves`."""
    if isinstance(tree, Mapping):
        return {"dict": {key: form_of(part, f"{name}[{key!r}]") for key, part in tree.items()}}
    if isinstance(tree, (tuple, list)):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [form_of(part, f"{name}[{place}]") for place, part in enumerate(tree)]}
    return name


def of_form(form: Any, found: Mapping[str, Any]) -> Tree:
    """Inverse of :func:`form_of`, given the leaves by name."""
    if isinstance(form, str):
        return found[form]
    ((kind, parts),) = form.items()
    if kind == "dict":
        return {key: of_form(part, found) for key, part in parts.items()}
    return (list if kind == "list" else tuple)(of_form(part, found) for part in parts)


def joined(trees: Sequence[Tree]) -> Tree:
    """The examples of several trees of one form, one after the other."""
    return map_leaves(lambda *parts: torch.cat(parts), *trees)


def first_leaf(tree: Tree) -> Tensor:
    """The first tensor, which tells how many examples there are, and where."""
    while not isinstance(tree, Tensor):
        if not (isinstance(tree, (Mapping, tuple, list)) and tree):
            raise ValueError(f"There is no tensor where examples are taken from, but {tree!r:.99}; give one.")
        tree = next(iter(tree.values() if isinstance(tree, Mapping) else tree))
    return tree


def same_numbers(some: Any, others: Any) -> bool:
    """Whether two passes have returned the same numbers, or two trees hold them."""
    return all(map(_equal, tensors_in(some), tensors_in(others)))


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.is_meta or other.is_meta:
        return one.shape == other.shape
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and torch.allclose(one, other, 0.0, 0.0, equal_nan=True)


def tensors_in(found: Any) -> Iterator[Tensor]:
    """Those in what a network returns; of sparse ones their places and values."""
    if isinstance(found, Tensor) and found.layout in (torch.strided, torch.jagged):
        yield found
    elif isinstance(found, Tensor):
        coo = found.detach().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        yield from (coo.indices(), coo.values())
    elif isinstance(found, (dict, list, tuple)):
        for part in found.values() if isinstance(found, dict) else found:
            yield from tensors_in(part)
    elif hasattr(found, "__dict__") and not isinstance(found, torch.nn.Module):
        yield from tensors_in(vars(found))


def memory_of(tensor: Tensor) -> int:
    """Where the memory begins that it shares with its views; 0 of one that has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError, ValueError):  # sparse, or without a shape yet
        return 0


def span_of(tensor: Tensor) -> tuple[int, int]:
    """The first byte of a tensor that has numbers, and the one after its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def version_of(tensor: Tensor) -> int:
    """Counts changes in place."""
    return 0 if tensor.is_inference() else tensor._version


def read(numbers: Iterable[float | Tensor]) -> list[float]:
    """Numbers, some of them scalars on a device, which is waited for once."""
    numbers = [*numbers]
    waiting = [number for number in numbers if isinstance(number, Tensor)]
    told = iter(torch.stack(waiting).tolist() if waiting else ())
    return [next(told) if isinstance(number, Tensor) else number for number in numbers]


def wide(device: torch.device) -> torch.dtype:
    """The most precise numbers of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def as_made(made: Any, like: Tensor, by: str, fault: Any = ValueError, one: bool = False) -> Tensor:
    """What a part of one's own has made beside ``like [n]``, in memory of its own; an error, unless it is of
    that type, and ``[n]`` or, for ``one``, ``[1]``."""
    shape, kind = getattr(made, "shape", None), getattr(made, "dtype", type(made))
    fits = kind == like.dtype and (shape == like.shape or (one and shape == (1,)))
    returns = f"{by} returns {shape and [*shape]} of {kind}, and not {[*like.shape]} of {like.dtype}"
    require(fits, f"{returns}; have it return such a tensor.", fault)
    return made.clone()  # type: ignore[no-any-return]
