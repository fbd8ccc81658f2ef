"""Connecting to a Ray cluster: one that is up already, or one that is started here."""

from __future__ import annotations

import socket

import ray


def join(address: str | None, cores: int | None) -> None:
    """Connect this process to Ray.

    Args:
        address: of a running cluster, ``host:port`` or ``auto``; None: start one on this machine.
        cores: of the one that is started; None: all.

    Raises:
        OSError: there is no cluster at ``address``.
    """
    if address is not None:
        host, colon, port = address.rpartition(":")
        if colon and "/" not in host:  # where nothing listens, Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), port), timeout=10.0).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    else:
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address="local", num_cpus=cores, **options)
