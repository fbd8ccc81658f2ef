"""Keys that configurations had before: the value that is left of each, and what does the same now."""

from collections.abc import Iterator
from typing import Any

from fedpart.training.agreement import renamed

ANY = object()  # it does not matter what a run of before had
# By key, the value that every run has now.
LEFT: dict[str, Any] = {
    "chain": None,
    "concurrency": None,
    "evaluation_clients": 100,
    "hyperparameters.affine.align_corners": True,
    "hyperparameters.dropout.temperature": 0.1,
    "hyperparameters.transforms.name": None,
    "max_examples": None,
    "optimiser.betas": [0.9, 0.999],
    "optimiser.eps": 1e-8,
    "optimiser_psi.betas": [0.9, 0.999],
    "optimiser_psi.eps": 1e-8,
    "optimiser_psi.momentum": 0.0,
    "optimiser_psi.name": "adam",
    "overselect": 1.0,
    "ray_address": ANY,
    "schedule.final_rate": 0.01,
    "search.epsilon": None,
    "search.own_values_first": ANY,
    "search.reduction": 3,
    "select.laplace_every": 150,
    "server.betas": [0.9, 0.999],
    "server.hypergradient": 0.0,
    "server_psi.betas": [0.9, 0.999],
    "server_psi.hypergradient": 0.0,
    "server_psi.momentum": 0.0,
    "server_psi.name": "adam",
    "share_dropout_mask": False,
    "split.bins": 10,
    "staleness": "none",
}
_FEDERATION = "it is an argument of fedpart.FederationSettings"
_ADAM = "it is an argument of fedpart.AdamSettings"
INSTEAD = {  # of those that users wrote
    "aggregation": "buffer: 5 takes the first five answers; without it, rounds wait for their cohort",
    "bucket": "write it into defence_options, {bucket: 2}",
    "chain": f"{_FEDERATION} and fedpart.TrainingSettings; an nn.Sequential needs none",
    "concurrency": f"{_FEDERATION}; here it is the cohort",
    "devices.trace": "write the file as devices: devices.csv",
    "evaluation_clients": f"{_FEDERATION}; here it is 100",
    "hyperparameters.affine.align_corners": (
        "write transforms: [{use: affine, options: {align_corners: false}}] in place of affine"
    ),
    "hyperparameters.dropout.temperature": "write it into model_options, {temperature: 0.2}",
    "hyperparameters.transforms.name": "transforms have the names of their classes; leave it out",
    "max_examples": f"{_FEDERATION}; here it is the size of the largest shard",
    "optimiser.eps": f"{_ADAM}; here it is 1e-8",
    "optimiser_psi.eps": f"{_ADAM}; here it is 1e-8",
    "optimiser_psi.momentum": "psi's optimiser is Adam; others are arguments of fedpart.TrainingSettings",
    "optimiser_psi.name": "psi's optimiser is Adam; others are arguments of fedpart.TrainingSettings",
    "overselect": _FEDERATION,
    "ray_address": "set the environment variable RAY_ADDRESS, as for Ray itself",
    "schedule.final_rate": "write schedule: cosine, which ends at 0.01 of the first rate",
    "schedule.iterations": "write schedule: cosine and schedule_iterations",
    "schedule.shape": "write schedule: cosine",
    "search.own_values_first": "the first run has the configuration's own values, if space offers them all",
    "server.hypergradient": _ADAM,
    "server_psi.eps": "it is the server's; set server.eps",
    "share_dropout_mask": "it is an argument of fedpart.Task",
    "split.bins": "there are 10 bins of angles",
    "staleness": _FEDERATION,
    "trim": "write defence: trim, and defence_options: {share: 0.1}",
}


def translated(data: dict[str, Any]) -> None:
    """Write a run's keys of before as those of now, in place, where there are equivalents.

    Raises:
        ValueError: a key had another value than the one that is left.
    """
    for key, left in LEFT.items():
        for section, name in _holders(data, key):
            value = section.pop(name, left)
            if left is not ANY and value != left:
                raise ValueError(f"{key} was another than {left}, which alone is left.")
    server, psi = data.get("server"), data.get("server_psi")
    if isinstance(psi, dict) and "eps" in psi and psi.pop("eps") != (server or {}).get("eps"):
        raise ValueError("server_psi.eps was another than server.eps, which alone is left.")
    if isinstance(schedule := data.get("schedule"), dict):
        data |= {"schedule": schedule.get("shape"), "schedule_iterations": schedule.get("iterations")}
    if isinstance(devices := data.get("devices"), dict):
        data["devices"] = devices.pop("trace", None) or devices
    data |= renamed(data)
    for key in ("trim", "bucket", "aggregation"):
        data.pop(key, None)


def restored(data: dict[str, Any]) -> dict[str, Any]:
    """The data with what is left of keys of before, for hashes that a run has from then; in place."""
    for key, left in LEFT.items():
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
