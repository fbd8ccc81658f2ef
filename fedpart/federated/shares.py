"""Shares of clients in the settings: caps by size, and architectures."""

from collections.abc import Mapping
from typing import Any, Literal

from fedpart.partition.proportions import check_proportions

Deal = Literal["chunk", "free"]


def checked_caps(caps: Any, chunks: int) -> dict[int, float]:
    """The shares by cap, ascending.

    Raises:
        ValueError: they are no shares of clients by a number from 1 to ``chunks``.
    """
    if not isinstance(caps, Mapping):
        raise ValueError(f"caps are shares of the clients by cap, {{1: 0.4, 3: 0.6}} say, got {caps!r}.")
    unknown = [cap for cap in caps if type(cap) is not int or not 1 <= cap <= chunks]
    if unknown:
        raise ValueError(
            f"A cap is the number of a subnetwork, of which there are {chunks} as there are chunks, got "
            f"{unknown[0]!r}; use caps from 1 to {chunks}."
        )
    shares = check_proportions([caps[cap] for cap in sorted(caps)], "shares of caps")
    return dict(zip(sorted(caps), shares, strict=True))


def checked_architectures(given: Any) -> tuple[Mapping[str, Any], ...]:
    """Each with its ``share`` and ``model_options``.

    Raises:
        ValueError: they are of another form, their shares do not sum to 1, or two are the same.
    """
    known = {"share", "model_options"}
    if not given or not all(
        isinstance(one, Mapping) and "share" in one and one.keys() <= known for one in given
    ):
        raise ValueError(
            f"architectures are a list of {{share: 0.4, model_options: {{width: 0.5}}}}, one for each size "
            f"of the network, got {given!r}."
        )
    shares = check_proportions([one["share"] for one in given], "shares of architectures")
    options = [dict(one.get("model_options") or {}) for one in given]
    if twice := [one for one in options if options.count(one) > 1]:
        raise ValueError(f"Two architectures have the model_options {twice[0]}; give each size once.")
    return tuple({"share": share, "model_options": own} for share, own in zip(shares, options, strict=True))
