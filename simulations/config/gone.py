"""Keys that configurations had before: what is left of each, and what does the same now."""

from collections.abc import Iterator
from typing import Any

from fedpart.checks import require
from fedpart.training.agreement import renamed

ANY = object()  # of what it does not matter which value a run had, or which is translated
_ADAM = "it is an argument of fedpart.AdamSettings"
_FEDERATION = "it is an argument of fedpart.FederationSettings"
_PSI = "psi's optimiser is Adam; others are arguments in Python"
_SCHEDULE = "write schedule: cosine, which ends at 0.01 of the first rate, and schedule_iterations"
_BETAS = ([0.9, 0.999], _ADAM)
GONE: dict[str, tuple[Any, str]] = {  # by key, the value that every run has now, and the advice
    "aggregation": (ANY, "buffer: 5 takes the first five answers; without it, rounds wait for their cohort"),
    "bucket": (ANY, "write it into defence_options, {bucket: 2}"),
    "chain": (None, f"{_FEDERATION} and TrainingSettings; an nn.Sequential needs none"),
    "concurrency": (None, f"{_FEDERATION}; here it is the cohort"),
    "devices.trace": (ANY, "write the file as devices: devices.csv"),
    "evaluation_clients": (100, f"{_FEDERATION}; here it is 100"),
    "hyperparameters.affine.align_corners": (
        *(True, "write transforms: [{use: affine, options: {align_corners: false}}] in place of affine"),
    ),
    "hyperparameters.dropout.temperature": (0.1, "write it into model_options, {temperature: 0.2}"),
    "hyperparameters.transforms.name": (None, "transforms have the names of their classes; leave it out"),
    "max_examples": (None, f"{_FEDERATION}; here it is the size of the largest shard"),
    "optimiser.betas": _BETAS,
    "optimiser.eps": (1e-8, f"{_ADAM}; here it is 1e-8"),
    "optimiser_psi.betas": _BETAS,
    "optimiser_psi.eps": (1e-8, f"{_ADAM}; here it is 1e-8"),
    "optimiser_psi.momentum": (0.0, _PSI),
    "optimiser_psi.name": ("adam", _PSI),
    "overselect": (1.0, _FEDERATION),
    "ray_address": (ANY, "set the environment variable RAY_ADDRESS, as for Ray itself"),
    "schedule.final_rate": (0.01, _SCHEDULE),
    "schedule.iterations": (ANY, _SCHEDULE),
    "schedule.shape": (ANY, _SCHEDULE),
    "search.epsilon": (None, "clients' scores have no noise; leave it out"),
    "search.own_values_first": (
        ANY,
        "the first run has the configuration's values, if space offers them",
    ),
    "search.reduction": (3, "a third of the runs goes on; leave it out"),
    "select.laplace_every": (150, "plain networks report every 150 iterations; leave it out"),
    "server.betas": _BETAS,
    "server.hypergradient": (0.0, _ADAM),
    "server_psi.betas": _BETAS,
    "server_psi.eps": (ANY, "it is the server's; set server.eps"),
    "server_psi.momentum": (0.0, _PSI),
    "server_psi.name": ("adam", _PSI),
    "share_dropout_mask": (False, "it is an argument of fedpart.Task"),
    "split.bins": (10, "there are 10 bins of angles"),
    "staleness": ("none", _FEDERATION),
    "trim": (ANY, "write defence: trim, and defence_options: {share: 0.1}"),
}

_ADAM_STEPS = "method: fedavg has a server that steps by Adam, at server.learning_rate"
ELSEWHERE = {  # methods that other libraries have, and what is nearest to them here
    "fedprox": "method: fedavg with fewer local.epochs keeps clients near the server",
    "scaffold": "method: fedavg with fewer local.epochs keeps clients near the server",
    **dict.fromkeys(("fedadam", "fedopt", "fedyogi", "fedadagrad", "fedavgm"), _ADAM_STEPS),
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
