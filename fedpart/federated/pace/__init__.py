"""Pace: how long simulated clients take, and whom a server waits for."""

from typing import Any

from fedpart.federated.pace.devices import Fleet
from fedpart.federated.pace.turns import Buffered, Synchronous

Pace = Synchronous | Buffered


def pace_of(settings: Any) -> Pace | None:
    """The pace of a run with these :class:`.FederationSettings`; None: nobody takes any time."""
    devices = settings.devices
    fleet = None if devices is None else Fleet(devices, settings.clients, settings.seed)
    if settings.aggregation == "buffered":
        return Buffered(settings, settings.cohort, fleet)
    return None if fleet is None else Synchronous(settings, settings.cohort, fleet)
