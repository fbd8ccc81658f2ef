"""What decides a run's numbers, as plain data: server and clients compare it, and a run that resumes."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedpart.data.dataset import Dataset
from fedpart.partition.partition import Partition
from fedpart.partition.space import ParameterSpace
from fedpart.task.task import Task
from fedpart.trees import tensors_in

_LONG = ("network", "transforms", "shapes", "hash")


def agreement(
    task: Task, partition: Partition, settings: Mapping[str, Any], identity: str = ""
) -> dict[str, Any]:
    """Settings, task, partition and data, for which ``identity`` stands, as plain data that JSON takes."""
    agreed = dict(settings)
    for name in ("samples", "average", "share_dropout_mask", "stratified", "precision", "channels_last"):
        agreed[name] = getattr(task, name)
    with task.likelihood_at(None) as likelihood:
        agreed["likelihood"] = task.likelihood_name
        agreed["likelihood's options"] = repr(likelihood)
        constants = list(likelihood.buffers())
    agreed["network"] = repr(task.module)
    agreed["input transforms"] = repr(task.transforms)
    parts = {name: transform.part for name, transform in task.transforms.items()}
    if any(part is not None for part in parts.values()):
        agreed["transformed parts of inputs"] = parts
    agreed["hyperparameters"] = shapes(task.psi_space)
    agreed["parameters' shapes"] = shapes(partition.space)
    buffers = [
        *task.module.buffers(),
        *(b for t in task.transforms.values() for b in t.buffers()),
        *constants,
    ]
    agreed["partition hash"] = _hash(partition.assignment)
    agreed["default values hash"] = _hash(partition.default, *buffers)
    if task.frozen:
        agreed["frozen weights hash"] = _hash(*task.frozen.values())
    agreed["initial psi hash"] = _hash(task.psi_space.initial())
    agreed["data"] = identity
    plain: dict[str, Any] = json.loads(json.dumps(agreed, default=str))
    return plain


def shapes(space: ParameterSpace) -> list[list[Any]]:
    """Names and shapes of a space's parameters, as plain data."""
    return [[entry.name, list(entry.shape)] for entry in space.entries]


def difference(now: Mapping[str, Any], then: Mapping[str, Any]) -> str:
    """How another run's agreement ``then`` differs from ``now``, for a person; empty if it does not."""
    clauses, then = [], {"stratified": False, **then, **renamed(then), "trim": None, "bucket": None}
    for name, value in now.items():
        before = then.get(name)
        if before != value:
            brief = max(len(repr(before)), len(repr(value))) <= 200 and not name.endswith(_LONG)
            clauses.append(f"{name} was {before!r}, is {value!r}" if brief else f"the {name} differs")
    return "; ".join(clauses)


def renamed(then: Mapping[str, Any]) -> dict[str, Any]:
    """What settings of before, which decide a run's numbers, are called now; nothing where none is."""
    now: dict[str, Any] = {}
    if then.get("trim") is not None:
        now = {"defence": "trim", "defence_options": {"share": then["trim"]}}
    if then.get("bucket") not in (None, 1):
        options = (now or then).get("defence_options")
        now["defence_options"] = {**(options or {}), "bucket": then["bucket"]}
    if then.get("aggregation") == "buffered" and then.get("buffer") is None:
        now["buffer"] = then["cohort"]
    return now


def fingerprint(data: Sequence[Dataset]) -> str:
    """What tells data from others, in words: the number of examples and a hash; empty of none. Of what is
    read when it is needed the targets count."""
    told = [part if type(part) is Dataset else part.targets for part in data]
    return f"{sum(map(len, data))} examples with hash {_hash(*told)[:12]}" if data else ""


def _hash(*tensors: Any) -> str:
    digest = hashlib.sha256()
    for tensor in tensors_in(tensors):
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
