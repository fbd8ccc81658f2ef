"""Metrics of a SuperLink or SuperNode in Prometheus' format, at the ``host:port`` in ``FEDPART_METRICS``."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from fedpart.checks import require
from fedpart.extras import need

ADDRESS = "FEDPART_METRICS"
_counters: dict[str, Any] = {}


def serve(counted: Mapping[str, str], lengths: Mapping[str, Callable[[], float]]) -> Any:
    """Show what :func:`count` counts, by name and a label or none, and lengths; a ValueError: no address."""
    if not (address := os.environ.get(ADDRESS)):
        return None
    client = need("prometheus_client", ADDRESS, "prometheus")
    host, _, port = address.rpartition(":")
    require(host and port.isdecimal(), f"{ADDRESS} is host:port, as 127.0.0.1:9465, not {address!r}.")
    registry = client.CollectorRegistry()
    for name, label in counted.items():
        labels = [label] if label else []
        _counters[name] = client.Counter(f"fedpart_{name}", "Since the start.", labels, registry=registry)
    for name, length in lengths.items():
        client.Gauge(f"fedpart_{name}", "Now.", registry=registry).set_function(length)
    return client.start_http_server(int(port), host, registry=registry)[0]


def count(name: str, amount: float = 1.0, **label: str) -> None:
    """Add to what is shown under this name."""
    if (counter := _counters.get(name)) is not None:
        (counter.labels(**label) if label else counter).inc(amount)
