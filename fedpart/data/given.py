"""What people have their examples in, as a ``Dataset``: tensors, arrays, torch's data sets and loaders."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data.sampler import RandomSampler, SequentialSampler, SubsetRandomSampler

from fedpart.checks import require
from fedpart.data.dataset import Dataset
from fedpart.trees import Tree, first_leaf, leaves, map_leaves

LABELS = ("labels", "label", "targets", "target")  # keys of a dict of examples that hold the targets

Examples = Dataset | tuple[Tree, Tree] | TorchDataset[Any] | DataLoader[Any]  # what may be handed over

_NO_NUMBERS = {  # what to do, by the kind of an array
    **dict.fromkeys(
        "OUST", "make numbers of text, np.unique(values, return_inverse=True), or astype('float32')"
    ),
    **dict.fromkeys("Mm", "count seconds, (stamps - stamps.min()) / np.timedelta64(1, 's')"),
    "V": "stack its fields, np.stack([array[name] for name in array.dtype.names], 1)",
}


def as_dataset(given: Examples) -> Dataset:
    """Examples as a :class:`Dataset`, in memory.

    Args:
        given: a data set; ``(inputs, targets)``, tensors or NumPy arrays, or trees of them; a map-style
            ``torch.utils.data.Dataset``, whose examples are read once; or a ``DataLoader``, for its data set
            (of a ``SubsetRandomSampler`` its indices, in their order) and its ``collate_fn``, which pads what
            is ragged. An example is ``(inputs, targets)``,
            ``(a, b, .., targets)``, or a dict whose ``labels`` are the targets.

    Raises:
        TypeError, ValueError: see :class:`Dataset`; or it is none of these.
    """
    if isinstance(given, Dataset):
        return given
    if isinstance(given, DataLoader):
        alone = given.collate_fn is default_convert  # of a loader that makes no batches
        return _collected(given.dataset, default_collate if alone else given.collate_fn, given)
    if _is_table(table := given):
        plain = getattr(table, "format", {}).get("type") is None
        return _collected(table.with_format("torch") if plain else table, default_collate)
    if isinstance(given, TorchDataset) or _is_numbered(given):
        return _collected(given, default_collate)
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return Dataset(*(map_leaves(_tensor, part) for part in given))
    raise ValueError(
        f"Data are a Dataset, a torch.utils.data.Dataset or the two tensors (inputs, targets), got "
        f"{_kind(given)}; {_way_out(given)}."
    )


def as_inputs(given: Any, like: Tree | None = None) -> Tree:
    """Inputs ``[n, ...]`` without targets, as tensors.

    Args:
        given: tensors, arrays, lists of numbers, or trees of them; of a :class:`Dataset` its inputs.
        like: inputs ``[0, ...]`` of the form that is wanted, and of its types. One example alone becomes
            ``[1, ...]``. None: not known.

    Raises:
        ValueError: there is something else in it.
    """
    tree = map_leaves(_tensor, _with_arrays(given.inputs if isinstance(given, Dataset) else given))
    for name, leaf in leaves(tree, "inputs"):
        if not isinstance(leaf, Tensor):
            text = "read files first, as the training data were" if isinstance(leaf, str) else _way_out(leaf)
            raise ValueError(f"The {name} are tensors or arrays of numbers, got {leaf!r:.99}; {text}.")
        remedy = "give real numbers, for images x / 255, as in training"
        require(leaf.dtype != torch.uint8, f"The {name} are {leaf.dtype}; {remedy}.")
    first_leaf(tree)  # refuses a tree without any
    same = like is not None and [n for n, _ in leaves(tree)] == [n for n, _ in leaves(like)]
    return map_leaves(_as_one_of, tree, like) if same else tree


def _with_arrays(given: Any) -> Any:
    """A tree whose lists of numbers are arrays."""
    if isinstance(given, Mapping):
        return {key: _with_arrays(part) for key, part in given.items()}
    first = given
    while isinstance(first, (tuple, list)) and first:
        first = first[0]
    if first is given or not isinstance(first, (Real, np.generic)):
        return given
    try:
        return np.asarray(given)
    except ValueError as error:
        remedy = "pad them to one length"
        raise ValueError(f"The rows of the list differ in length ({error}); {remedy}.") from error


def _as_one_of(leaf: Tensor, like: Tensor) -> Tensor:
    mask = like.dtype == torch.bool
    if leaf.dtype != like.dtype and (mask or not leaf.is_floating_point()):
        yes_or_no = not mask or bool(((leaf == 0) | (leaf == 1)).all())
        require(yes_or_no, "The network has learned from a mask of True and False; give 0 and 1 alone.")
        leaf = leaf.to(like.dtype)
    return leaf[None] if leaf.ndim == like.ndim - 1 else leaf


def is_examples(given: Any) -> bool:
    """Whether it is one set of examples, and not several."""
    return isinstance(given, (Dataset, tuple, TorchDataset, DataLoader)) or _is_table(given)


def _is_table(given: Any) -> TypeGuard[Any]:
    """Whether it is a data set of Hugging Face's package datasets, which may not be installed."""
    return hasattr(given, "column_names") and hasattr(given, "with_format") and not isinstance(given, Mapping)


def _is_numbered(given: Any) -> bool:
    """Whether it gives examples by number, as torch's data sets do, and is none of Python's containers."""
    plain = (list, tuple, Mapping, str, bytes, Tensor, np.ndarray)
    table = isinstance(given, plain) or hasattr(given, "iloc")  # as pandas calls it: by the names of columns
    return not table and hasattr(given, "__len__") and hasattr(given, "__getitem__")


def _way_out(given: Any) -> str:
    if isinstance(given, Mapping) and given and all(map(is_examples, given.values())):
        return f"name one of its parts, data[{next(iter(given))!r}]"
    if hasattr(given, "iloc"):
        return "write (table[inputs].to_numpy(), table[target].to_numpy()), with the names of its columns"
    if isinstance(given, Mapping) and not given.keys().isdisjoint(LABELS):
        return "write a pair, (inputs, targets), each a tensor with a row for each example"
    return "put the examples into tensors, one row each"


def _collected(
    dataset: Any, collate: Callable[[list[Any]], Any], loader: DataLoader[Any] | None = None
) -> Dataset:
    numbered = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not numbered:
        remedy = "give it __len__ and __getitem__, or put the examples into tensors, one row each"
        raise ValueError(f"{type(dataset).__name__} has no length and no numbers of examples; {remedy}.")
    places = range(len(dataset)) if loader is None else _places(loader)
    require(len(places), f"{type(dataset).__name__} has no examples; give every client at least one.")
    examples = [dataset[place] for place in places]
    try:
        batch = collate(examples)
    except (RuntimeError, TypeError) as error:
        fault = f"The examples of {type(dataset).__name__} do not fit into one tensor ({error})"
        raise ValueError(f"{fault}; hand over a DataLoader whose collate_fn pads them.") from error
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        if name is None:
            fault = f"Examples are a dict of {', '.join(map(str, batch))} without targets"
            raise ValueError(f"{fault}; call them 'labels'.")
        tree = map_leaves(_tensor, dict(batch))
        targets = tree.pop(name)
        return Dataset(tree, targets)
    if isinstance(batch, Sequence) and len(batch) >= 2:
        *inputs, targets = (map_leaves(_tensor, part) for part in batch)
        return Dataset(inputs[0] if len(inputs) == 1 else tuple(inputs), targets)
    fault = "Examples are pairs (inputs, targets) or dicts with 'labels'"
    raise ValueError(f"{fault}, but the data set gives {_kind(batch)}.")


def _places(loader: DataLoader[Any]) -> Sequence[int]:
    """The examples that a loader visits in an epoch: all, or those of its ``SubsetRandomSampler``."""
    sampler: Any = loader.sampler
    if loader.batch_size is None and loader.batch_sampler is not None:
        sampler = loader.batch_sampler  # the user's own
    examples = len(loader.dataset)  # type: ignore[arg-type]
    if type(sampler) is SubsetRandomSampler:
        return [int(place) for place in sampler.indices]
    random = type(sampler) is RandomSampler and not sampler.replacement
    if (random or type(sampler) is SequentialSampler) and len(sampler) == examples:
        return range(examples)
    fault = f"A DataLoader's {type(sampler).__name__} decides which of the {examples} examples are seen; hand"
    raise ValueError(f"{fault} over torch.utils.data.Subset(dataset, indices) with the client's indices.")


def _tensor(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    if np.ma.is_masked(leaf):
        raise ValueError("An array has masked values; fill them, filled(value), or leave their examples out.")
    if leaf.dtype.kind in _NO_NUMBERS or leaf.dtype.char == "g":
        way_out = _NO_NUMBERS.get(leaf.dtype.kind, "make it float64, astype('float64')")
        raise ValueError(f"An array of {leaf.dtype} holds no numbers that a network takes; {way_out}.")
    if any(stride < 0 for stride in leaf.strides) or not leaf.dtype.isnative:  # which torch has not
        leaf = leaf.astype(leaf.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(np.asarray(leaf))


def _kind(given: Any) -> str:
    name = type(given).__name__
    return f"a {name} of {len(given)}" if isinstance(given, (tuple, list)) else f"a {name}"


class Shards(Sequence[Dataset]):
    """Clients' examples, see :func:`as_dataset`, that are read when they are asked for; of a list once."""

    def __init__(self, shards: Any) -> None:
        self._shards = list(shards) if isinstance(shards, (list, tuple)) else shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, client: Any) -> Any:
        shard = as_dataset(self._shards[client])
        if type(self._shards) is list:
            self._shards[client] = shard
        return shard
