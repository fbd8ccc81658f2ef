"""Keys that configurations had before: what is left of each, and what does the same now."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedpart.checks import require
from fedpart.training.agreement import renamed
from simulations.config.yaml_files import read_yaml

ANY = object()  # of what it does not matter which value a run had, or which is translated
GONE: dict[str, tuple[Any, str]] = {  # by key, the value that every run has now, and the advice
    key: (entry.get("left", ANY), entry["advice"])
    for key, entry in read_yaml(Path(__file__).with_name("gone.yaml")).items()
}

_ADAM_STEPS = "method: fedavg has a server that steps by Adam, at server.learning_rate"
_PERSONAL = "fedrep and ditto are personal, and fedpart personalise RUN fine-tunes a finished run's network"
ELSEWHERE = {  # methods that other libraries have, and what is nearest to them here
    **dict.fromkeys(("fedadam", "fedopt"), _ADAM_STEPS),
    **{f"fed{name}": f"it is called method: {name}" for name in ("yogi", "adagrad")},
    **dict.fromkeys(("fedper", "apfl"), _PERSONAL),
}


def translated(data: dict[str, Any]) -> None:
    """Write a run's keys of before as those of now, in place, where there are equivalents.

    Raises:
        ValueError: a key had another value than the one that is left.
    """
    server, psi = (data[key] if isinstance(data.get(key), dict) else {} for key in ("server", "server_psi"))
    if "eps" in psi and psi["eps"] != server.get("eps"):
        raise ValueError("server_psi.eps was another than server.eps, which alone is left.")
    data |= renamed(data)
    if server.get("name") == "sgd" and server.get("momentum"):
        options = {"learning_rate": server["learning_rate"], "momentum": server.pop("momentum")}
        data |= {"method": f"{data['method']}+fedavgm"}
        data["method_options"] = {**(data.get("method_options") or {}), "fedavgm": options}
    if data.get("execution") == "vectorised":
        data["execution"] = "grouped"
    if isinstance(devices := data.get("devices"), dict):
        data["devices"] = devices.get("trace") or devices
    if isinstance(schedule := data.get("schedule"), dict) and schedule.get("final_rate", 0.01) == 0.01:
        data |= {"schedule": schedule.get("shape"), "schedule_iterations": schedule.get("iterations")}
    for key, (left, _) in GONE.items():
        for section, name in _holders(data, key):
            value = section.pop(name, left)
            require(left is ANY or value == left, f"{key} was another than {left}, which alone is left.")


def restored(data: dict[str, Any]) -> dict[str, Any]:
    """The data with what is left of keys of before, for hashes that a run has from then; in place."""
    for key, (left, _) in GONE.items():
        for section, name in _holders(data, key):
            section[name] = left
    return data


def _holders(data: Any, key: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The sections that may have a key, each with its name there; of a list's entries, every one."""
    first, _, rest = key.partition(".")
    for section in data if isinstance(data, list) else [data]:
        if isinstance(section, dict):
            if rest:
                yield from _holders(section.get(first), rest)
            else:
                yield section, first
