"""What a network does in its first pass that training it on clients would do to others, or lose."""

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from weakref import ReferenceType

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from fedpart.checks import NetworkError
from fedpart.randomness.noise import drawing_from
from fedpart.randomness.redirection import Kind
from fedpart.randomness.watching import states, unwatched
from fedpart.task.looking import memory
from fedpart.task.looking.attributes import Attributes
from fedpart.task.looking.memory import Context, Given, Tensors, copies, leaves_of
from fedpart.task.looking.reach import OF_TORCH
from fedpart.task.looking.values import is_power_of_two
from fedpart.trees import Tree, leaves, memory_of, same_numbers, tensors_in, version_of

_INPUTS = "inputs "  # no tensor of a model has such a name
_MISSING = object()
_REPEATS = 4  # backward passes, where another thread may move the process's generators
Compute = Callable[[Tree, Tree], Any]


class FirstLook:
    """Computes a network; its first pass of each kind is looked at. A network that writes into its inputs
    computes with copies from then on. What cannot be put right is refused, a write that only a later pass
    makes too."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._own = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self._layers = [*model.modules()]
        self._buffered = [(name, layer) for name, layer in model.named_modules() if layer._buffers]
        self._passes: dict[Kind, int] = {}
        self._settled: set[tuple[int, str]] = set()  # attributes that change, and have been looked at
        self.originals: list[tuple[str, ReferenceType[Tensor]]] = []  # which nobody should read
        self.given: list[ReferenceType[nn.Module]] = []  # layers that nobody switches
        self.acts_backward = False  # whether functions of the user's do
        self._keeps = False  # whether a condition may have held back what it keeps
        self._writes = self._exact = False  # whether into its inputs, and whether versions do not tell

    def is_due(self, kind: Kind) -> bool:
        """Whether the next pass of a kind is looked at: the first, and the 2nd, 4th, 8th, ... where functions
        of the user's may keep something, which a condition may have held back so far."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return False
        count = self._passes[kind] = self._passes.get(kind, 0) + 1
        return count == 1 or (self._keeps and is_power_of_two(count))

    def __call__(
        self, due: bool, tensors: Tensors, given: Given, compute: Compute, drawing: Context | None
    ) -> Any:
        """What a pass of ``compute`` returns that computes with ``tensors`` in place of the model's own, by
        name; ``drawing`` begins with the same random numbers again, None: it draws others each time."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return compute(*(copies(given) if self._writes else given))
        if not due:
            return self._later(tensors, given, compute, drawing)
        with unwatched(), _disable_current_modes():
            inputs, attributes, then = copies(given), Attributes(self._model), self._attributes()
            self.acts_backward |= attributes.before.acts_backward
            self._keeps |= attributes.before.keeps or self.acts_backward
            self._writes |= attributes.before.writes
            self._exact |= attributes.before.past_versions
            held = {name: tensor for name, tensor in memory.registered(self._model) if not tensor.is_meta}
            before = {name: memory.Held(tensor, self._keeps, self._exact) for name, tensor in held.items()}
            names = {**held, **{f"{_INPUTS}{at}": leaf for at, leaf in enumerate(tensors_in(inputs))}}
            spans = memory.Memory(names)
        for name, layer in attributes.before.switched:
            if any(of_given() is layer for of_given in self.given):
                raise NetworkError(
                    f"A function in forward() or a hook asks {name!r} whether to drop, which is of the "
                    f"network that was given and not of the task's copy; make it a method, with "
                    f"self.training, or a hook that asks the layer it gets."
                )
        originals = [(name, weight) for name, held in self.originals if (weight := held()) is not None]
        grads = {name: tensor.grad for name, tensor in tensors.items() if tensor.is_leaf}
        places = set(map(memory_of, tensors.values()))
        with memory.Reads([*originals, *self._own.items()], places, spans) as reads:
            outputs = returned = compute(*inputs)
        gradients_on = torch.is_grad_enabled()
        if attributes.before.acts_backward:
            returned = outputs, _gradients(outputs, tensors, reads)
        with unwatched():
            self._writes |= any(name.startswith(_INPUTS) for name in reads.written)
            if self._keeps and not same_numbers(inputs, given):  # through an array that shares their memory
                self._writes = True
            for name in sorted(reads.read):
                if name.startswith("ends."):
                    raise NetworkError(
                        f"The loss has a weight {name.rpartition('.')[2]!r} of its own, which nobody would "
                        f"train; leave it out, or make it a parameter of a Likelihood, where it is a "
                        f"hyperparameter."
                    )
                raise _unreached(self._weight(name))
            with _disable_current_modes():
                self._check_held(held, before, reads.written)
            _check_hooks(tensors)
            if any(tensors[name].grad is not grad for name, grad in grads.items()):
                remedy = "return what it takes them of as a part of the loss, or call torch.autograd.grad()"
                raise ValueError(f"forward() calls backward(), whose gradients would be lost; {remedy}.")

            def again(given: Given) -> Any:
                with drawing() if drawing is not None else nullcontext():
                    if not attributes.before.acts_backward:
                        return compute(*copies(given))
                    with torch.set_grad_enabled(gradients_on):
                        repeated = compute(*copies(given))
                        return repeated, _gradients(repeated, tensors, nullcontext())

            reached, known = leaves_of(tensors_in(outputs)), leaves_of(tensors.values())
            if reached.keys() - known:
                repeated = leaves_of(tensors_in(again(given)))  # without leaves that a pass makes for itself
                for key in (key for key in reached if key not in known and key in repeated):
                    raise _unreached(self._named(reached[key]))
            if drawing is not None:
                attributes.check(returned, given, again, partial(memory.other_weights, tensors))
            self._settled |= self._changed_since(then).keys()
        return outputs

    def _later(self, tensors: Tensors, given: Given, compute: Compute, drawing: Context | None) -> Any:
        """A pass that is looked at only if it does what a condition has held back so far."""
        inputs = [leaf for _, leaf in leaves(given) if isinstance(leaf, Tensor) and not self._writes]
        held = dict(tensors)
        if self._writes:
            buffers = ((n, key, t) for n, layer in self._buffered for key, t in layer._buffers.items())
            held |= {f"{n}.{key}": tensor for n, key, tensor in buffers if tensor is not None}
        marks, versions = [*map(mark, held.values())], [*map(version_of, inputs)]
        numbers = [tensor.detach().clone() for tensor in held.values()] if self._exact else []
        kept = self._attributes() if self._keeps else []
        outputs = compute(*(copies(given) if self._writes else given))
        for name, before in zip(held, marks, strict=True):
            if mark(held[name]) != before:
                raise _changed(name)
        for name, copy in zip(held, numbers, strict=False):
            if not same_numbers(copy, held[name].detach()):
                raise _changed(name)
        if [*map(version_of, inputs)] != versions:
            fault = "forward() writes into its inputs, but not in each pass, so that data have changed"
            remedy = "compute without writing, as in x = x / 2 in place of x.div_(2), and load the data anew"
            raise NetworkError(f"{fault}; {remedy}.")
        if self.acts_backward:
            _check_hooks(tensors)
        if drawing is not None and (changed := self._changed_since(kept)):
            for held_by, key, value in changed.values():
                held_by.pop(key) if value is _MISSING else held_by.update({key: value})
            with drawing():
                return self(True, tensors, given, compute, drawing)
        return outputs

    def _attributes(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """What the layers hold in attributes, each with a copy."""
        return [(vars(layer), dict(vars(layer))) for layer in self._layers]

    def _changed_since(
        self, kept: Iterable[tuple[dict[str, Any], dict[str, Any]]]
    ) -> dict[tuple[int, str], tuple[dict[str, Any], str, Any]]:
        """Attributes that hold something else now, and are not settled: of whom, their names, what before."""
        return {
            (id(now), key): (now, key, before.get(key, _MISSING))
            for now, before in kept
            if any(map(operator.is_not, now.values(), before.values())) or len(now) != len(before)
            for key in now.keys() | before.keys()
            if now.get(key, _MISSING) is not before.get(key, _MISSING)
            and key not in OF_TORCH
            and (id(now), key) not in self._settled
        }

    def __reduce__(self) -> Any:
        return FirstLook, (self._model,)

    def _check_held(
        self, held: Mapping[str, Tensor], before: Mapping[str, memory.Held], written: Collection[str]
    ) -> None:
        """Refuse a pass that has changed what the network holds; :func:`.watched` looks at most buffers."""
        after = dict(memory.registered(self._model))
        for name, tensor in held.items():
            now = after.get(name, tensor)
            buffer = name not in self._parameters
            if buffer and (now is not tensor or version_of(tensor) != before[name].version):
                continue
            if now is not tensor or name in written or not before[name].holds(tensor):
                raise _changed(name)

    def _weight(self, name: str) -> str:
        return f"the weight {_short(name)!r}" if name in self._own else name

    def _named(self, leaf: Tensor) -> str:
        for name, weight in self._own.items():
            if weight is leaf or (weight.shape == leaf.shape and torch.equal(weight.to(leaf.device), leaf)):
                return self._weight(name)
        return f"a weight {list(leaf.shape)} that is no parameter of it"


def _check_hooks(tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        if tensor._backward_hooks or (tensor.is_leaf and tensor._post_accumulate_grad_hooks):
            fault = f"forward() puts a hook on the weight {_short(name)!r}, which is lost after the pass"
            raise ValueError(f"{fault}; compute with weight * mask + (weight * ~mask).detach() in its place.")


def _gradients(outputs: Any, tensors: Tensors, reads: AbstractContextManager[object]) -> Any:
    """What the backward pass returns, from the same outputs twice if need be; nothing without gradients."""
    ends = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
    wanted = [tensor for tensor in tensors.values() if tensor.requires_grad]
    if not ends or not wanted:
        return ()
    for _ in range(_REPEATS):
        before = states()
        with _disable_current_modes(), drawing_from(None), reads:
            start = [torch.ones_like(end) for end in ends]
            gradients = torch.autograd.grad(ends, wanted, start, retain_graph=True, allow_unused=True)
        if states() == before:
            return gradients
    raise NetworkError(
        "A hook, or a backward() of your own, draws random numbers in the backward pass, so that equal seeds "
        "would give different weights; draw in forward(), with torch.rand or fedpart.uniform."
    )


def _unreached(what: str) -> NetworkError:
    return NetworkError(
        f"forward() reaches {what} by another way than as a parameter of its layer, so that it would not be "
        f"trained; use self.NAME in forward(), register layers and parameters (nn.ModuleList, "
        f"nn.ParameterList, no plain list or closure), and compute what follows from a weight, such as its "
        f"transpose, in forward()."
    )


def _changed(name: str) -> NetworkError:
    return NetworkError(
        f"forward() changes {_short(name)!r}, a change that is lost after the pass, or carried to other "
        f"clients; compute with the changed values and leave it as it is, as a parametrization does: "
        f"torch.nn.utils.parametrize.register_parametrization(layer, {name.rpartition('.')[2]!r}, ...)."
    )


def _short(name: str) -> str:
    """As in the user's network, which is a part of the model."""
    return name.partition(".")[2]


def mark(tensor: Tensor) -> tuple[int, int, bool]:
    """Another one after a change in place, and after one of ``data``."""
    return version_of(tensor), tensor.data_ptr(), tensor.requires_grad
