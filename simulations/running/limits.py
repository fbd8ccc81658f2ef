"""Limits: what a summary says of the bounds of updates and of psi, and of whom they have held."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedpart import Federation
from fedpart.updates.stages import Privacy, UsualBounds


def limits(federation: Federation, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of a federated run with these lines of metrics, what there is of

    ``clip``: the settings; where they are adaptive, also ``bounds``, the last ones of ``psi`` and ``cells``
    (null: none, or not known yet), and with a ``multiple`` ``clipped``: in how many rounds each client's
    update was longer than its bound. ``psi_alarms``: by chunk, in how many rounds its psi gradients were of
    another size than usual. ``psi_held``: hyperparameters that have ended at the bound of what they can mean.
    """
    found: dict[str, Any] = {}
    clip = federation.protocol.settings.clip
    if clip is not None:
        found["clip"] = asdict(clip)
        following = (federation.stage(UsualBounds), federation.stage(Privacy))
        for bounds in (bounds for stage in following if stage and (bounds := stage.bounds())):
            psi, *cells = (None if bound.unit else bound.norm for bound in bounds)
            found["clip"]["bounds"] = {"psi": psi, "cells": cells}
        if clip.multiple is not None:
            clipped = Counter(str(client) for line in lines for client in line.get("clipped", ()))
            by_client = dict(sorted(clipped.items(), key=lambda one: int(one[0])))
            found["clip"]["clipped"] = by_client
    alarms = Counter(str(alarm["chunk"]) for line in lines for alarm in line.get("psi_alarms", ()))
    if alarms:
        found["psi_alarms"] = dict(sorted(alarms.items()))
    if held := federation.held():
        found["psi_held"] = held
    return found
