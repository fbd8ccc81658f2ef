"""What a network keeps from one pass to the next, which no client may inherit."""

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedpart.checks import NetworkError
from fedpart.randomness.watching import Unstable
from fedpart.task.looking.memory import Context, Given
from fedpart.task.looking.reach import Place, Reach
from fedpart.task.looking.values import Advancing, Drawn, Numbers
from fedpart.trees import first_leaf, map_leaves, same_numbers, span_of, tensors_in

ROUNDING = 1e-4  # by which passes may differ that add in any order, as some operations on a GPU do
# Counts that few passes reach: a multiple of 1 to 16, and one that is so in the next pass.
FAR = (720720, 720719)
FEW = 2  # examples with which a pass is computed again
Again = Callable[[Given], Any]  # a pass with the same random numbers

# What is said of a value that a pass has kept.
_REFUSED: Mapping[type, tuple[str, str]] = {
    Advancing: ("is an iterator,", "hold a list, and choose from it by what is given"),
    Drawn: ("draws from a generator of its own,", "draw with torch.rand or fedpart.uniform in forward()"),
}
_CHANGED = (
    "is changed in forward(),",
    "compute it anew in each pass, or make it once in __init__; keep a number to look at as a tensor",
)


class Attributes:
    """What a network's layers hold before a pass, and what the functions may do that use it."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = dict(model.named_modules())
        self.before = Reach(self._layers)

    def check(self, outputs: Any, given: Given, again: Again, other_weights: Context) -> None:
        """Refuse what a pass has kept if it moves on in the next one, changes it, or tells of its examples or
        weights.

        A cache does none of these: it is made once, and is the same for all examples of one shape. Tensors
        and containers that are kept for people to look at may differ. Where nothing in reach has changed, a
        pass of a few examples must return what the first one has returned for them."""
        if not self.before.keeps:
            return
        before, now = self.before.values, Reach(self._layers)
        first = now.values
        changed = [key for key in first | before if first.get(key) != before.get(key)]
        for key, value in first.items():
            if type(value) in _REFUSED and (key in changed or now.is_named(key)):
                raise self._refused(key, value)
        if self.before.caches:
            self._check_caches(given, again, other_weights)
        counted = torch._C._len_torch_function_stack()  # somebody looks at each call, and would see too many
        if not changed and (counted or _alike_for_few(outputs, given, again)):
            return
        repeated, snapshots = self._repeated(outputs, given, again)
        moves = {
            key: (then.get(key), later.get(key))
            for then, later in itertools.pairwise([first, *(snapshot.values for snapshot in snapshots)])
            for key in then | later
            if then.get(key) != later.get(key)
        }
        moving, plain = [*moves], [key for key, values in moves.items() if _counts(key, *values)]
        if plain or not _close(outputs, repeated, 0.0 if changed else ROUNDING):
            if suspects := plain or moving or changed:
                raise self._refused(suspects[0])
            raise Unstable(
                "forward() returns other numbers when it computes again with the same weights, inputs and "
                "random numbers, so that clients would depend on their order: it keeps or draws numbers "
                "outside of its layers, in a global variable, a class attribute, a default argument or a "
                "generator; give them as inputs, or draw with torch.rand or fedpart.uniform."
            )
        if moving and not all(
            _unread(snapshots[-1], moving, number, repeated, given, again) for number in FAR
        ):
            raise self._refused(moving[0])
        moved = {key[:2] for key in moving}
        still = {key: _cloned(first[key]) for key in changed if key[:2] not in moved and key in first}
        if not still:
            return
        self.before.restore()
        with other_weights():
            _with_others(given, again)
            other = Reach(self._layers).values
            for key, value in still.items():
                if not _alike(value, other.get(key)):
                    raise self._refused(key)

    def _check_caches(self, given: Given, again: Again, other_weights: Context) -> None:
        """Refuse what a cache of ``functools`` keeps, if it tells of examples or weights."""
        with other_weights():
            kept = _with_others(given, again)
            for cache in self.before.caches:
                cache.cache_clear()
            fresh = _with_others(given, again)
        for cache in self.before.caches:
            cache.cache_clear()
        if not _close(kept, fresh, ROUNDING):
            raise ValueError(
                f"forward() keeps what depends on weights or inputs in the cache of "
                f"{self.before.caches[0].__name__}(), which would carry numbers from one client to the next; "
                f"compute it anew in each pass."
            )

    def _repeated(self, outputs: Any, given: Given, again: Again) -> tuple[Any, list[Reach]]:
        """The pass again, and what is held after each: without gradients, which take memory, unless it then
        fails or returns others."""
        snapshots = []
        with suppress(Exception), torch.no_grad():
            repeated = again(given)
            snapshots.append(Reach(self._layers))
            if _close(outputs, repeated, 0.0):
                return repeated, snapshots
        repeated = again(given)
        return repeated, [*snapshots, Reach(self._layers)]

    def _refused(self, key: Place, value: Any = None) -> NetworkError:
        does, way_out = _REFUSED.get(type(value), _CHANGED)
        path = key[0].partition(".")[2]
        layer = f"{type(self._layers[key[0]]).__name__} at {path or 'the top level'!r}"
        return NetworkError(
            f"{key[1]!r} of {layer} {does} which would carry numbers from one client to the next; {way_out}."
        )


def _counts(key: Place, before: Any, now: Any) -> bool:
    """Whether a number or a text moves from pass to pass; new parts of a container do not."""
    if isinstance(now, Numbers) or isinstance(before, Numbers):
        return False
    return len(key) == 2 or (before is not None and now is not None)


def _unread(
    latest: Reach, moving: list[Place], number: int, repeated: Any, given: Given, again: Again
) -> bool:
    """Whether a pass returns the same where what has moved holds another number than it ever would here."""
    with suppress(Exception), latest.disturbed(moving, number):
        return _close(repeated, again(given), 0.0)
    return False


def _alike_for_few(outputs: Any, given: Given, again: Again) -> bool:
    """Whether a pass of a few of the examples alone returns what the pass of all has returned for them."""
    if len(first_leaf(given)) < 2 * FEW:
        return False
    with suppress(Exception), torch.no_grad():
        few = again(map_leaves(lambda leaf: leaf[:FEW] if isinstance(leaf, Tensor) else leaf, given))
        pairs = [*zip(tensors_in(outputs), tensors_in(few), strict=True)]
        return bool(pairs) and all(_close(every[: len(some)], some, ROUNDING) for every, some in pairs)
    return False


def _close(outputs: Any, repeated: Any, share: float) -> bool:
    """Whether two passes return the same, to a share of their largest number."""
    if share == 0.0:
        return same_numbers(outputs, repeated)
    return all(
        same_numbers(first, second)
        or (
            first.is_floating_point()
            and first.shape == second.shape
            and bool(((first - second).abs().max() <= share * first.abs().max()).item())
        )
        for first, second in zip(tensors_in(outputs), tensors_in(repeated), strict=False)
    )


def _with_others(given: Given, again: Again) -> Any:
    try:
        return again(map_leaves(_others, given))
    except Exception:  # the network does not take such examples
        return again(given)


def _others(leaf: Any) -> Any:
    """Other examples of the same shape: the first one in place of all, in other units."""
    if not isinstance(leaf, Tensor):
        return leaf
    same = leaf[:1].expand_as(leaf)
    return same * 0.5 if leaf.is_floating_point() else same.clone()


def _cloned(value: Any) -> Any:
    """A value that stays as it is."""
    if not isinstance(value, Numbers):
        return value
    held = value.held
    return replace(value, held=held.detach().clone() if isinstance(held, Tensor) else held.copy())


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Numbers) and isinstance(other, Numbers):
        return torch.equal(torch.as_tensor(one.held), torch.as_tensor(other.held))
    return bool(one == other)


def check_memory(module: nn.Module) -> None:
    """Refuse weights that overlap in memory, with each other or with an array: training would part them; and
    weights that have no memory of their own."""
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            fault = f"{repr(name) if name else 'The module'} is compiled by torch.jit, whose weights cannot"
            raise ValueError(f"{fault} be replaced; hand over the module as it was before.")
    spans = []
    for name, weight in module.named_parameters():
        hooked = weight._backward_hooks or weight._post_accumulate_grad_hooks
        if weight.is_meta:
            why = "has no values, being on the device meta; build the module on the CPU"
        elif weight.layout != torch.strided:
            why = "is sparse; hold it dense, and make it sparse in forward(), to_sparse()"
        elif weight.requires_grad and hooked:
            why = (
                "has a hook on its gradient, which its copies lose; remove it, and compute in forward() what "
                "it does: weight * mask + (weight * ~mask).detach()"
            )
        else:
            if not is_lazy(weight) and weight.numel():
                spans.append((*span_of(weight), name))
            continue
        raise ValueError(f"The weight {name!r} {why}.")
    spans.sort()
    for (_, end, name), (start, _, other) in itertools.pairwise(spans):
        if start < end:
            raise ValueError(
                f"The weights {name!r}, {other!r} share their memory, but are two parameters, which training "
                f"would part; make them one, as in layer.weight = other.weight."
            )
    for place, value in Reach(dict(module.named_modules())).values.items():
        if isinstance(value, Numbers) and isinstance(value.held, np.ndarray):
            start = value.held.__array_interface__["data"][0]
            if shared := [name for first, end, name in spans if first <= start < end]:
                fault = f"The weight {shared[0]!r} and the array {place[1]!r} share their memory, which"
                raise ValueError(f"{fault} training would part; make the array in forward(), of self.NAME.")
