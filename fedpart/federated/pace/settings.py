"""Settings of simulated devices, what these are drawn from, and of whom a round waits for."""

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedpart.checks import check_list, is_number, require
from fedpart.registry import Registry
from fedpart.training.settings import RunSettings, Settings, documented, setting

Amount = float | dict[str, tuple[float, ...]] | None  # for all clients, by distribution, or None: no time
AMOUNTS = ("speed", "upload", "download")
_DRAWN = (
    "a number for all, or {lognormal: [median, sigma]}, {uniform: [low, high]}, {pareto: [fastest, alpha]}"
)


@documented
@dataclass(frozen=True)
class DeviceSettings(Settings):
    """How fast the clients' simulated devices are, and how often they are there; the seed decides for each.

    Raises:
        ValueError: a value out of range, or an unknown distribution.
    """

    speed: Amount = setting(
        None, f"examples per second, each counted whenever its gradient is taken: {_DRAWN}; null: no time"
    )
    upload: Amount = setting(None, "bytes per second, as speed")
    download: Amount = setting(None, "bytes per second, as speed")
    available: float = setting(1.0, "share of the rounds in which a client can be asked", gt=0, le=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in AMOUNTS:
            amount = getattr(self, name)
            if isinstance(amount, Mapping):
                if len(amount) != 1:
                    raise ValueError(f"devices.{name} has one distribution, got {len(amount)}: {amount!r}.")
                [(distribution, numbers)] = amount.items()
                check_list(f"devices.{name}.{distribution}", numbers, "numbers", "[100, 0.5]")
                check_draw(f"devices.{name}", distribution, tuple(numbers))
                object.__setattr__(self, name, {distribution: tuple(numbers)})
            elif amount is not None and not _is_amount(amount):
                fault = f"devices.{name} is a number above 0, or a distribution, got {amount!r}"
                raise ValueError(f"{fault}; null takes no time.")


def read_trace(file: str) -> bytes:
    """What a trace of devices contains."""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        remedy = "name a file in devices"
        raise ValueError(f"The trace {file} cannot be read ({error.strerror}); {remedy}.") from error


@documented
@dataclass(frozen=True, kw_only=True)
class PaceSettings(RunSettings):
    """What a federated run says of slow and missing clients; see ``docs/guides/slow_clients.md``."""

    devices: DeviceSettings | str | None = setting(
        None,
        "the simulated devices of the clients, or a CSV file (relative to the current folder) with the "
        "columns client, speed, upload, download and, optionally, available; null: there is no simulated "
        "clock",
    )
    overselect: float = setting(
        1.0,
        "how many times the cohort is asked, rounded up; the first of them to answer, as many as the cohort, "
        "are in the sum",
        ge=1,
    )
    deadline: float | None = setting(
        None, "simulated seconds after which a round's answers are too late; null: none", gt=0
    )
    buffer: int | None = setting(
        None,
        "K: clients train all the time, and a round is a step with the first K answers (FedBuff); null: a "
        "round waits for its cohort",
        ge=1,
    )
    concurrency: int | None = setting(
        None, "with a buffer, M, the clients that train at a time; null: the cohort", ge=1
    )
    staleness: Literal["none", "sqrt"] = setting(
        "none", "with a buffer, sqrt: what a client found s steps ago is divided by sqrt(1 + s)"
    )

    @property
    def simulated(self) -> list[str]:
        """Keys of settings that only a simulation of the clients' time can heed."""
        return [key for key in ("devices", "buffer") if getattr(self, key) is not None]

    def check_real(self) -> None:
        """Refuse, where the clients are real, what only a simulation of their time can heed."""
        if self.simulated:
            raise ValueError(
                f"{self.simulated[0]} goes by simulated time, which follows from the clients' devices and "
                f"the sizes of their data; set devices and use PacedFedPart(federation, shards), or leave it "
                f"out."
            )

    def deciding(self) -> dict[str, Any]:
        """See :meth:`.Settings.deciding`: without the pace, of which clients need not know."""
        return {key: value for key, value in super().deciding().items() if key not in _PACE}

    def pace(self) -> dict[str, Any]:
        """What else decides the numbers, as plain data by name: None where nothing is simulated."""
        settings = {key: value for key, value in asdict(self).items() if key in _PACE}
        later = {key: settings.pop(key) for key in ("buffer", "concurrency", "staleness")}
        settings["aggregation"] = None if self.buffer is None else "buffered"  # of earlier runs, in its place
        settings |= later
        if self.devices is not None:
            trace = read_trace(self.devices) if isinstance(self.devices, str) else b""
            drawn = DeviceSettings() if isinstance(self.devices, str) else self.devices
            settings["devices"] = {**asdict(drawn), "trace": hashlib.sha256(trace).hexdigest()}
        unused = ["overselect", "deadline"] if self.devices is None else []
        if self.buffer is None:
            unused += ["concurrency", "staleness"]
        plain: dict[str, Any] = json.loads(json.dumps({**settings, **dict.fromkeys(unused)}))
        return plain

    def check_pace(self, clients: int, cohort: int, min_replies: int, private: bool) -> None:
        """Refuse settings that make no sense together."""
        buffered = self.buffer is not None
        if self.simulated and private:
            fault = "Privacy keeps the cohorts secret and does not say how long clients take, which"
            raise ValueError(f"{fault} {self.simulated[0]} would tell; leave one of the two out.")
        for key in ["overselect"] * (self.overselect != 1) + ["deadline"] * (self.deadline is not None):
            fault = f"{key} is for rounds that wait for their cohort, and with a buffer they do not"
            require(not buffered, f"{fault}; leave {key} or buffer out.")
            fault = f"{key} leaves clients out by their simulated time, but there is none"
            require(self.devices is not None, f"{fault}; set devices as well, or leave {key} out.")
        for key in ("concurrency", "staleness"):
            says = f"{key} is for steps with the first answers; set buffer, or leave {key} out."
            require(buffered or getattr(self, key) in (None, "none"), says)
        for key in ("buffer", "concurrency"):
            value = getattr(self, key)
            says = f"{key} is between 1 and the number of clients ({clients}), got {value}."
            require(value is None or value <= clients, says)
        fault = f"min_replies is {min_replies}, but a step takes {self.buffer} answers"
        remedy = f"set buffer to {min_replies} or more, or lower min_replies"
        require(min_replies <= (self.buffer or cohort), f"{fault}; {remedy}.")


_PACE = frozenset(inspect.get_annotations(PaceSettings))


def _is_amount(value: Any) -> bool:
    return is_number(value) and 0 < value < math.inf


DISTRIBUTIONS: Registry[Callable[..., float]] = Registry("distribution")


def check_draw(name: str, distribution: str, numbers: tuple[float, ...]) -> None:
    """Refuse a distribution that is not known, or numbers that are not its own."""
    wanted = [*inspect.signature(DISTRIBUTIONS.resolve(distribution)).parameters][1:]
    if len(numbers) != len(wanted) or not all(map(_is_amount, numbers)):
        fault = f"{name} is drawn from {distribution}, which takes positive numbers [{', '.join(wanted)}],"
        raise ValueError(f"{fault} got {list(numbers)}.")


@DISTRIBUTIONS.register("uniform")
def between(rng: np.random.Generator, low: float, high: float) -> float:
    """Equally often everywhere between the two."""
    return float(rng.uniform(low, high))


@DISTRIBUTIONS.register("lognormal")
def lognormal(rng: np.random.Generator, median: float, sigma: float) -> float:
    """``median exp(sigma z)`` with a normal z: a factor of ``exp(sigma)`` up or down is one deviation."""
    return float(median * math.exp(sigma * rng.standard_normal()))


@DISTRIBUTIONS.register("pareto")
def pareto(rng: np.random.Generator, fastest: float, alpha: float) -> float:
    """``fastest u^(1 / alpha)`` with a uniform u: the time that it takes has a Pareto tail of index alpha.

    So a share of ``x^-alpha`` of the devices are more than x times as slow as the fastest."""
    return float(fastest * (1 - rng.random()) ** (1 / alpha))
