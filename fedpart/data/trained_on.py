"""What is trained on, in a sentence, before anything is trained."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedpart.checks import shown
from fedpart.data.dataset import Dataset, has_labels
from fedpart.trees import Tree, leaves

NAMED = 4  # classes at most whose shares are told one by one


def trained_on(
    shards: Sequence[Dataset], held_out: Mapping[str, Dataset | int | None], *,
    learned: Sequence[Tensor] | None = None, inputs: Sequence[str] = (), classes: Sequence[str] = (),
    clients: bool = True,
) -> str:  # fmt: skip
    """``11 inputs: Age, ...; 3,620 examples of 30 clients (1 to 648 each); classes 95% no, 5% yes; held out:
    403 for validation, 1,004 for test``; with names of inputs and classes where there are any. ``learned``:
    places of each shard that weights learn from; None: all. What does not print is shown as ``?``."""
    sizes, targets = [*map(len, shards)], [shard.targets for shard in shards]
    if learned is not None and all(isinstance(tree, Tensor) for tree in targets):
        sizes = [*map(len, learned)]
        targets = [tree[places.to(tree.device)] for tree, places in zip(targets, learned, strict=True)]
    each = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    whose = f" of {counted(len(sizes), 'client')} ({each} each)" if clients else ""
    parts = [
        _inputs(shards[0], inputs),
        f"{counted(sum(sizes), 'example')}{whose}",
        _targets(targets, all(map(has_labels, shards)), classes),
    ]
    counts = {name: data if isinstance(data, int) else len(data or ()) for name, data in held_out.items()}
    kept = [f"{count:,} for {name}" for name, count in counts.items() if count]
    return shown("; ".join([*filter(None, parts), f"held out: {', '.join(kept) or 'nothing'}"]))


def counted(number: int, noun: str) -> str:
    """``1 round``, ``2,000 rounds``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _inputs(shard: Dataset, names: Sequence[str]) -> str:
    if names:
        more = ", ..." if len(names) > 6 else ""
        return f"{counted(len(names), 'input')}: {', '.join(names[:6])}{more}"
    named = dict(leaves(shard.inputs, "inputs"))
    first = next(iter(named.values()))
    if len(named) == 1 and first.dim() < 3:
        what = "input" if first.is_floating_point() else "whole number"  # such as a text's words
        return counted(first.shape[1:].numel(), what)
    shapes = {name: leaf.shape[1:] for name, leaf in named.items()}
    return ", ".join(f"{name} of {'x'.join(map(str, shape)) or '1'}" for name, shape in shapes.items())


def _targets(targets: Sequence[Tree], labels: bool, names: Sequence[str]) -> str:
    """Shares of the classes, or the range of numbers to predict; nothing for other targets."""
    if labels:
        counts = class_counts(targets, len(names))
        shares = [f"{count / sum(counts):.0%}" for count in counts]
        if len(counts) > NAMED:
            least, most = shares[counts.index(min(counts))], shares[counts.index(max(counts))]
            return f"{len(counts)} classes ({least if least == most else f'{least} to {most}'} each)"
        called = names or [*map(str, range(len(counts)))]
        return f"classes {', '.join(map(' '.join, zip(shares, called, strict=True)))}"
    if not all(isinstance(each, Tensor) and each.is_floating_point() and len(each) for each in targets):
        return ""
    return f"targets {min(t.min().item() for t in targets):.4g} to {max(t.max().item() for t in targets):.4g}"


def class_counts(labels: Sequence[Any], classes: int = 0) -> list[int]:
    """How many examples each class has, of at least so many classes; ``labels``: ``[n]`` of each client."""
    return torch.bincount(torch.cat([*labels]), minlength=classes).tolist()
