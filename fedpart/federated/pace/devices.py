"""Fleet: the simulated devices of all clients, drawn from distributions or read from a file."""

import csv
import io
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpart.checks import require
from fedpart.federated.pace.settings import AMOUNTS, DISTRIBUTIONS, Amount, DeviceSettings, read_trace
from fedpart.randomness.streams import generator


class Device(NamedTuple):
    """Of one client: ``speed`` in examples, ``upload`` and ``download`` in bytes per second; inf: no time.

    ``available``: the share of the rounds in which it is there."""

    speed: float
    upload: float
    download: float
    available: float = 1.0

    def seconds(self, download: int, visited: int, upload: int) -> float:
        """Simulated seconds from being asked to having answered."""
        return download / self.download + visited / self.speed + upload / self.upload


class Fleet:
    """The device of every client number, fixed for the run."""

    def __init__(self, devices: DeviceSettings | str, clients: int, seed: int) -> None:
        self._devices, self._clients, self._seed = devices, clients, seed
        self._traced = _traced(devices, clients) if isinstance(devices, str) else {}
        self._shares: NDArray[np.float64] | float = (
            np.array([self._traced[client].available for client in range(clients)])
            if isinstance(devices, str)
            else devices.available
        )

    def device(self, client: int) -> Device:
        """The device of ``client``; a draw of (seed, client)."""
        if isinstance(devices := self._devices, str):
            return self._traced[client]
        speed, upload, download = (self._drawn(name, getattr(devices, name), client) for name in AMOUNTS)
        return Device(speed, upload, download, devices.available)

    def available(self, round: int) -> list[int] | None:
        """Clients that are there in ``round`` (1..), ascending: a draw of (seed, round, client); None: all.

        Where there is such a draw, it takes the time and memory of N numbers."""
        if np.all(self._shares == 1):
            return None
        drawn = generator(self._seed, "availability", round).random(self._clients)
        return np.flatnonzero(drawn < self._shares).tolist()

    def _drawn(self, name: str, amount: Amount, client: int) -> float:
        if amount is None:
            return math.inf
        if not isinstance(amount, dict):
            return float(amount)
        [(distribution, numbers)] = amount.items()
        rng = generator(self._seed, f"device {name}", client)
        value = float(DISTRIBUTIONS.resolve(distribution)(rng, *numbers))
        require(value > 0, f"devices.{name} of client {client} is {value}; let {distribution} draw above 0.")
        return value


def _traced(file: str, clients: int) -> dict[int, Device]:
    """The devices in the trace by client number; lines of other numbers than 0..clients-1 are left out."""
    devices, content = dict[int, Device](), read_trace(file)
    try:
        lines = csv.DictReader(io.StringIO(content.decode(), newline=""))
        if missing := {"client", *AMOUNTS} - set(lines.fieldnames or ()):
            raise ValueError(f"there is no column {min(missing)!r}")
        for line in lines:
            client, device = _parsed(lines.line_num, line)
            require(client not in devices, f"line {lines.line_num} is of client {client} again")
            devices[client] = device
    except ValueError as error:
        remedy = "give it a line for every client, with the columns client,speed,upload,download[,available]"
        raise ValueError(f"The trace {file} is damaged ({error}); {remedy}.") from error
    if lacking := [client for client in range(clients) if client not in devices]:
        fault = f"The trace {file} has no line for client {lacking[0]}, one of {len(lacking)}"
        raise ValueError(f"{fault}; give every client one, or set clients to fewer.")
    return {client: devices[client] for client in range(clients)}


def _parsed(number: int, line: dict[str, str | None]) -> tuple[int, Device]:
    try:
        client = int(line["client"] or "")
        speed, upload, download = (float(line[name] or "") for name in AMOUNTS)
        device = Device(speed, upload, download, float(line.get("available") or 1))
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error
    if not (client >= 0 and all(amount > 0 for amount in device) and device.available <= 1):  # NaN is not
        raise ValueError(f"line {number} has a number out of range")
    return client, device
