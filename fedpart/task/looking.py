"""What a network does in its first pass that training it on clients would do to others, or lose."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fedpart.nn.layers.copying import DERIVED
from fedpart.randomness.redirection import Kind
from fedpart.randomness.watching import unwatched
from fedpart.task.attributes import Attributes
from fedpart.trees import Tree, leaves, map_leaves, memory_of, same_numbers, span_of, tensors_in, version_of

_INPUTS = "inputs "  # no tensor of a model has such a name
Compute = Callable[[Tree, Tree], Any]


class FirstLook:
    """Computes a network; its first pass of each kind is looked at.

    A network that writes into its inputs computes with copies from then on, and the caller's data stay as
    they are. What cannot be put right is refused, a write that only a later pass makes too.

    Args:
        model: what is computed; its tensors are those of before any substitution.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._own = {name: own for name, own in model.named_parameters() if own.requires_grad}
        self._parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self._looked_at: set[tuple[Kind, bool]] = set()
        self._writes = False

    def __call__(
        self,
        kind: Kind,
        tensors: Mapping[str, Tensor],
        given: tuple[Tree, Tree],
        compute: Compute,
        drawing: Callable[[], AbstractContextManager[object]] | None,
    ) -> Any:
        """What a pass returns.

        Args:
            kind: of the pass, see :class:`.Redirection`.
            tensors: what the model computes with in place of its own, by name.
            given: inputs, and targets or None.
            compute: the pass, of inputs and targets.
            drawing: begins with the same random numbers again; None: the pass draws others each time.

        Raises:
            ValueError: the network reaches a weight by another way than its layer's, replaces one, or keeps
                what changes its next pass; the message says what to do.
        """
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return compute(*(_copies(given) if self._writes else given))
        if (kind, drawing is None) in self._looked_at:
            return self._later(tensors, given, compute)
        with unwatched(), _disable_current_modes():
            inputs, attributes = _copies(given), Attributes(self._model)
            held = {name: tensor for name, tensor in _registered(self._model) if not tensor.is_meta}
            before = {
                name: (_place(tensor), version_of(tensor), _sum(tensor)) for name, tensor in held.items()
            }
            names = {**held, **{f"{_INPUTS}{at}": leaf for at, leaf in enumerate(tensors_in(inputs))}}
            memory = _Memory(names)
        substituted = set(map(memory_of, tensors.values()))
        with _Reads(self._own, substituted, memory) as reads:
            outputs = compute(*inputs)
        with unwatched():
            self._writes |= any(name.startswith(_INPUTS) for name in reads.written)
            self._writes |= not same_numbers(inputs, given)  # through an array that shares their memory
            for name in reads.read:
                raise _of_loss(name) if name.startswith("ends.") else _unreached(self._weight(name))
            with _disable_current_modes():
                self._check_held(held, before, reads.written)

            def again(given: tuple[Tree, Tree]) -> Any:
                with drawing() if drawing is not None else nullcontext():
                    return compute(*_copies(given))

            reached, known = _leaves_of(tensors_in(outputs)), _leaves_of(tensors.values())
            if reached.keys() - known:
                repeated = _leaves_of(tensors_in(again(given)))  # without leaves that a pass makes for itself
                for key in (key for key in reached if key not in known and key in repeated):
                    raise _unreached(self._named(reached[key]))
            if drawing is not None:
                attributes.check(outputs, given, again)
        self._looked_at.add((kind, drawing is None))
        return outputs

    def _later(self, tensors: Mapping[str, Tensor], given: tuple[Tree, Tree], compute: Compute) -> Any:
        """A pass that is not looked at, but for writes that a condition in it has held back so far."""
        inputs = [leaf for _, leaf in leaves(given) if isinstance(leaf, Tensor) and not self._writes]
        weights, versions = [*map(_mark, tensors.values())], [*map(version_of, inputs)]
        outputs = compute(*(_copies(given) if self._writes else given))
        for name, tensor, before in zip(tensors, tensors.values(), weights, strict=True):
            if _mark(tensor) != before:
                raise _changed(name)
        if [*map(version_of, inputs)] != versions:
            raise ValueError(
                "forward() writes into its inputs, but not in each pass, so that data have changed; compute "
                "without writing, as in x = x / 2 in place of x.div_(2), and load the data anew."
            )
        return outputs

    def __reduce__(self) -> Any:
        return FirstLook, (self._model,)

    def _check_held(
        self, held: Mapping[str, Tensor], before: Mapping[str, Any], written: Collection[str]
    ) -> None:
        """Refuse a pass that has changed what the network holds; :func:`.watched` looks at most buffers."""
        after = dict(_registered(self._model))
        for name, tensor in held.items():
            place, version, numbers = before[name]
            now = after.get(name, tensor)
            buffer = name not in self._parameters
            if buffer and (now is not tensor or version_of(tensor) != version):
                continue
            if now is not tensor or _place(tensor) != place or name in written or _sum(tensor) != numbers:
                raise _changed(name)

    def _weight(self, name: str) -> str:
        return f"the weight {_short(name)!r}" if name in self._own else name

    def _named(self, leaf: Tensor) -> str:
        for name, own in self._own.items():
            if own is leaf or (own.shape == leaf.shape and torch.equal(own.to(leaf.device), leaf)):
                return self._weight(name)
        return f"a weight {list(leaf.shape)} that is no parameter of it"


class _Memory:
    """Tells whose memory a tensor lies in.

    Args:
        tensors: by name.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
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


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which of a model's own weights are read while it computes with others, and what is written to.

    Args:
        own: the weights, by name.
        given: memory of the others, which may be the same.
        held: the tensors that nobody should write to.

    Attributes:
        read: names of weights that are read; written: of tensors that are written to.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """See :class:`.TorchDraws`."""
        return False

    def __init__(self, own: Mapping[str, Tensor], given: set[int], held: _Memory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        named = {memory_of(tensor): name for name, tensor in own.items() if tensor.numel()}
        self._names = {memory: name for memory, name in named.items() if memory not in given}
        self._held, self.read, self.written = held, set[str](), set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, Tensor):
                    name = getattr(tensor, DERIVED, None) or self._names.get(memory_of(tensor))
                    self.read |= {name} if name else set()
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Tensor):
                self.written |= self._held.names(value)
        return func(*args, **(kwargs or {}))


def _unreached(what: str) -> ValueError:
    return ValueError(
        f"forward() reaches {what} by another way than as a parameter of its layer, so that it would not be "
        f"trained; use self.NAME in forward(), register layers and parameters (nn.ModuleList, "
        f"nn.ParameterList, no plain list or closure), and compute what follows from a weight, such as its "
        f"transpose, in forward()."
    )


def _of_loss(name: str) -> ValueError:
    return ValueError(
        f"The loss has a weight {name.rpartition('.')[2]!r} of its own, which nobody would train; leave it "
        f"out, or make it a parameter of a Likelihood, where it is a hyperparameter."
    )


def _changed(name: str) -> ValueError:
    return ValueError(
        f"forward() changes {_short(name)!r}, a change that is lost after the pass, or carried to other "
        f"clients; compute with the changed values and leave it as it is, as a parametrization does: "
        f"torch.nn.utils.parametrize.register_parametrization(layer, {name.rpartition('.')[2]!r}, ...)."
    )


def _short(name: str) -> str:
    """As in the user's network, which is a part of the model."""
    return name.partition(".")[2]


def _registered(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What it holds now, by name."""
    for name, layer in model.named_modules():
        for own, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if tensor is not None:
                yield f"{name}.{own}", tensor


def _place(tensor: Tensor) -> tuple[int, torch.Size, bool]:
    """Where a tensor's numbers are, and whether a gradient is taken."""
    return memory_of(tensor), tensor.shape, tensor.requires_grad


def _sum(tensor: Tensor) -> str:
    """Another after a change through a NumPy array of the same memory, which is no operation of torch's."""
    with suppress(RuntimeError):  # a type that has none
        if tensor.device.type == "cpu" and tensor.layout == torch.strided:
            return str(tensor.detach().sum().item())
    return ""


def _copies(given: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    return map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, given)  # type: ignore[no-any-return]


def _mark(tensor: Tensor) -> tuple[int, int]:
    """Another one after a change in place, and after one of ``data``."""
    return version_of(tensor), tensor.data_ptr()


def _leaves_of(tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    """The leaves of the graphs behind some tensors, by identity."""
    found: dict[int, Tensor] = {}
    seen, waiting = set[Any](), list[Any]()
    for tensor in tensors:
        if tensor.grad_fn is not None:
            waiting.append(tensor.grad_fn)
        elif tensor.requires_grad:
            found[id(tensor)] = tensor
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found[id(leaf)] = leaf
        waiting += [before for before, _ in node.next_functions if before is not None]
    return found
