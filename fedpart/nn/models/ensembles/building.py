"""The model ``ensemble``: a configuration's list of members becomes one network."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from fedpart.nn.models.base import MODELS
from fedpart.nn.models.ensembles.ensemble import ENSEMBLES, Member

_EXAMPLE = "model_options: {members: [{model: wrn, depth: 10, width: 1, times: 4}]}"


def ensemble(
    num_classes: int,
    input_shape: tuple[int, ...],
    members: Sequence[Mapping[str, Any]],
    kind: str = "deep",
    options: Mapping[str, Any] | None = None,
    dropout: float | None = None,
    temperature: float = 0.1,
) -> nn.Module:
    """Several networks in one, for the likelihood ``ensemble``.

    Args:
        num_classes: K outputs of every member.
        input_shape: of an example.
        members: of each its ``model``, by name, and that model's options: ``{model: wrn, depth: 16}``;
            ``times`` stands for so many equal ones.
        kind: what they share: ``deep`` nothing, ``batch`` all but factors of rank one, ``mimo`` all but input
            and output, ``slimmable`` and ``universally_slimmable`` leading slices, ``composed`` templates or
            bases (SuperWeight Networks); or ``package.module:callable``, which is called with
            ``(build, members, **options)``.
        options: of the kind.
        dropout: initial rate of learned dropout in the members whose model takes one; None for none.
        temperature: of the concrete relaxation.

    Raises:
        ValueError: no members, an unknown kind or model, options that it does not take, or members that do
            not fit their kind.
    """
    found = list(_members(members))
    if not found:
        raise ValueError(f"An ensemble needs members; for instance {_EXAMPLE}.")

    def build(member: Member, images: int = 1) -> nn.Module:
        """A member's network; for several images at a time, stacked on the first dimension of one."""
        shape = (images * input_shape[0], *input_shape[1:])
        given = {"num_classes": images * num_classes, "input_shape": shape}
        known = inspect.signature(MODELS.resolve(member.model)).parameters
        wanted = {"dropout": dropout, "temperature": temperature}
        given |= {name: value for name, value in wanted.items() if name in known}
        clash = sorted(given.keys() & member.options.keys())
        if clash:
            raise ValueError(
                f"A member has no {clash[0]} of its own, for all of them have the same; leave it out there."
            )
        network: nn.Module = MODELS.make(member.model, {**member.options, **given})
        return network

    return ENSEMBLES.make(kind, {"build": build, "members": found, **(options or {})})  # type: ignore[no-any-return]


def _members(given: Sequence[Mapping[str, Any]]) -> Iterator[Member]:
    for one in given:
        if not isinstance(one, Mapping) or "model" not in one:
            raise ValueError(
                f"A member of an ensemble names its model, got {one!r}; for instance {_EXAMPLE}."
            )
        times = one.get("times", 1)
        if type(times) is not int or times < 1:
            raise ValueError(f"times is a whole number of members of at least 1, got {times!r}.")
        own = {key: value for key, value in one.items() if key not in ("model", "times")}
        yield from [Member(one["model"], own)] * times
