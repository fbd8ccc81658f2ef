"""From a finished run's folder to the psi and the weights that it found."""

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedpart import Task
from fedpart.training.state import ModelState
from simulations.folders.contents import STATE, read_state, read_summary


def saved_psi(folder: str | Path, task: Task) -> Tensor:
    """The hyperparameters that a finished run found, ``[P]`` as ``task`` orders them."""
    return _psi(task, folder, _saved(folder, "psi"))


def load_saved(state: ModelState, folder: str | Path) -> None:
    """Give a state the weights of the full network and the psi of a finished run.

    It can be evaluated, and its :meth:`module` taken; it cannot go on, for it has no optimisers' moments.
    """
    partition = state.partition
    space, chunks = partition.space, partition.chunks
    whole = space.identity()  # so the copies of a stacked parameter but the first change nothing
    views = {
        entry.name: whole[entry.offset : entry.offset + entry.shape.numel()].view(entry.shape)
        for entry in space.entries
    }
    tensors = _saved(folder, "w")
    _fill(views, folder, "w", tensors)
    for k in range(1, chunks + 1):
        state.w[partition.slice(k)] = partition.take(whole, k, chunks).to(state.w)
    state.psi.copy_(_psi(state.task, folder, tensors))


def _psi(task: Task, folder: str | Path, tensors: Mapping[str, Tensor]) -> Tensor:
    psi = task.psi_space.initial()
    views = dict(zip(task.psi_names, task.psi_space.tensors(psi).values(), strict=True))
    _fill(views, folder, "psi", tensors)
    return psi


def _saved(folder: str | Path, kind: str) -> dict[str, Tensor]:
    """All tensors of a finished run, of which those of ``kind`` are asked for."""
    file = Path(folder) / STATE
    if not file.is_file():
        raise ValueError(
            f"{folder} holds no finished run (there is no {STATE}); {kind} comes from one that is."
        )
    content = read_state(folder, read_summary(folder) or {})
    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"{file} cannot be read ({error}); run it anew.") from error


def _fill(wanted: Mapping[str, Tensor], folder: str | Path, kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors ``<kind>/<name>`` of a finished run into those that are wanted, by name."""
    prefix = f"{kind}/"
    found = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    for name in dict.fromkeys((*wanted, *found)):
        here, there = (str([*part[name].shape]) if name in part else "missing" for part in (wanted, found))
        if here != there:
            raise ValueError(
                f"The {kind} of the run in {folder} does not fit: {name} is {there} there and {here} here; "
                f"give both the same hyperparameters and model."
            )
        if found[name].dtype != torch.float32:
            raise ValueError(
                f"{Path(folder) / STATE}: {name} is {found[name].dtype}, and a run leaves float32; run it "
                f"anew."
            )
        wanted[name].copy_(found[name])
