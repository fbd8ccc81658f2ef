"""What a client's process needs of an experiment, with the client's data in a file for the next process."""

import fcntl
import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

import fedpart
from fedpart import Dataset, Protocol
from fedpart.data import FROM_HUB
from fedpart.training.files import replace
from fedpart.trees import Tree, form_of, leaves, of_form
from simulations.building.experiment import Experiment, build
from simulations.building.task import build_task, check_device
from simulations.config.load import ExperimentConfig

FILE = "shard.safetensors"
_FORM = 3  # of the file
_MOST_FILES = 100_000  # of data whose sizes and times are looked at, in less than a second
_CODE = (Path(fedpart.__file__).parent, Path(__file__).parents[1])
_PACKAGES = ("datasets", "numpy", "pillow", "pyarrow", "scikit-learn", "torch", "torchvision")


class ClientExperiment:
    """What one client needs of an :class:`.Experiment`; its shard is kept in ``folder``, to the same bits."""

    def __init__(self, config: ExperimentConfig, folder: Path) -> None:
        self.shards = KeptShards(config, folder)
        self.protocol = self.shards.protocol


class KeptShards:
    """The shards of an experiment, of which the one that was asked for last is in a file."""

    def __init__(self, config: ExperimentConfig, folder: Path) -> None:
        self._config, self._file, self._key = config, folder / FILE, _key(config)
        self._kept = None if self._key is None else _read(self._file, self._key)

    def __getitem__(self, client: int) -> Dataset:
        if self._kept is None or self._kept.client != client:
            self._kept = _Kept(client, self._built.num_classes, self._built.shards[client])
            if self._key is not None and self._key == _key(self._config):  # nothing has changed meanwhile
                _write(self._file, self._key, self._kept)
        return self._kept.shard

    @property
    def protocol(self) -> Protocol:
        """The experiment's protocol; building it takes no more than the form of the data."""
        if self._kept is None:
            return self._built.protocol
        check_device(self._config.device)
        task = build_task(self._config, self._kept.num_classes, self._kept.shard.input_shape)
        return Protocol(task, self._config.settings(), identity=self._config.identity())

    @cached_property
    def _built(self) -> Experiment:
        return build(self._config)


class _Kept(NamedTuple):
    client: int
    num_classes: int
    shard: Dataset


def _read(file: Path, key: str) -> _Kept | None:
    """What is in the file, mapped into memory; None: nothing that is whole and has this key."""
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            facts = opened.metadata() or {}
            if facts.pop("key", None) != key:
                return None
            tensors = {name: opened.get_tensor(name) for name in sorted(opened.keys())}
    except (OSError, safetensors.SafetensorError):
        return None
    if facts.pop("digest", None) != _digest(facts, tensors):
        return None
    parts = of_form(json.loads(facts["form"]), tensors)
    if "evaluation" in parts:
        parts["evaluation"] = Dataset(**parts["evaluation"])
    return _Kept(int(facts["client"]), int(facts["num_classes"]), Dataset(**parts))


def _write(file: Path, key: str, kept: _Kept) -> None:
    """Put it in the file's place, if that is possible and no other process is about to."""
    parts = _parts(kept.shard)
    tensors = {name: leaf.contiguous() for name, leaf in leaves(parts)}
    form = json.dumps(form_of(parts, ""))
    facts = {"client": str(kept.client), "num_classes": str(kept.num_classes), "form": form}
    about = {**facts, "key": key, "digest": _digest(facts, tensors)}
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.parent.chmod(0o700)
        with file.with_name("lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            replace(file, lambda into: into.write(safetensors.torch.save(tensors, about)))


def _parts(dataset: Dataset) -> dict[str, Tree]:
    """The tree of its tensors, which are the arguments that make it, in the order of their names."""
    own = None if dataset.evaluation is None else _parts(dataset.evaluation)
    parts = {
        "clients": dataset.clients,
        "evaluation": own,
        "groups": dataset.groups,
        "inputs": dataset.inputs,
        "targets": dataset.targets,
    }
    return {name: part for name, part in parts.items() if part is not None}


def _digest(facts: dict[str, str], tensors: dict[str, Tensor]) -> str:
    form = {name: [str(part.dtype), list(part.shape)] for name, part in tensors.items()}
    digest = hashlib.sha256(json.dumps([facts, form], sort_keys=True).encode())
    for part in tensors.values():
        digest.update(part.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _key(config: ExperimentConfig) -> str | None:
    """Stands for everything that decides the shards; None: that is not known, or too much."""
    of_code = ":" in config.data and not config.data.startswith(FROM_HUB)
    if of_code or ":" in config.split.recipe:
        return None
    code = [file for folder in _CODE for file in folder.rglob("*.py")]
    try:
        data = list(itertools.islice(_files(config.data_dir), _MOST_FILES + 1))
        files = [(str(file), (found := file.stat()).st_size, found.st_mtime_ns) for file in [*code, *data]]
    except OSError:
        return None
    if len(data) > _MOST_FILES:
        return None
    whole = [_FORM, config.identity(), [_version(name) for name in _PACKAGES], sorted(files)]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


def _files(data_dir: str | None) -> Iterator[Path]:
    """All files of the data: a file itself, or those in a folder."""
    if data_dir is None:
        return
    root = Path(data_dir).expanduser().absolute()
    if root.is_file():
        yield root
    for folder, _, names in os.walk(root, followlinks=True):
        yield from (Path(folder) / name for name in names if not name.endswith(".lock"))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
