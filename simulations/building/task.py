"""From a configuration to the task: the model, its hyperparameters, and the psi of a finished run."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fedpart import AffineAugmentation, HyperModule, Task
from fedpart.checks import require
from fedpart.data.preprocessing import Preprocessing
from fedpart.nn.hyperparameters import TRANSFORMS, ConcreteMask, FixedMask
from fedpart.nn.likelihoods import LIKELIHOODS, Likelihood
from fedpart.nn.likelihoods.base import check_needs
from fedpart.nn.models import MODELS
from fedpart.randomness.streams import generator
from fedpart.task.psi_names import named_transforms
from fedpart.training.state import ModelState
from simulations.config.load import Config
from simulations.config.messages import built, check_shape
from simulations.config.sections import DropoutSection, HyperparameterSection
from simulations.folders.contents import STATE, read_state, read_summary


def saved_psi(folder: str | Path, task: Task) -> Tensor:
    """The hyperparameters that a finished run found, ``[P]`` as ``task`` orders them."""
    return _psi(task, folder, _saved(folder, "psi"))


def load_saved(state: ModelState, folder: str | Path) -> None:
    """Give a state a finished run's weights and psi; without optimisers' moments it cannot go on."""
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
    remedy = f"{kind} comes from one that is"
    require(file.is_file(), f"{folder} holds no finished run (there is no {STATE}); {remedy}.")
    content = read_state(folder, read_summary(folder) or {})
    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"{file} cannot be read ({error}); run it anew.") from error


def _fill(wanted: Mapping[str, Tensor], folder: str | Path, kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors ``<kind>/<name>`` of a finished run into those that are wanted, by name."""
    prefix = f"{kind}/"
    saved = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    for name in dict.fromkeys((*wanted, *saved)):
        here, there = (str([*part[name].shape]) if name in part else "missing" for part in (wanted, saved))
        fault = f"The {kind} of the run in {folder} does not fit: {name} is {there} there and {here} here"
        require(here == there, f"{fault}; give both the same hyperparameters and model.")
        if saved[name].dtype != torch.float32:
            fault = f"{Path(folder) / STATE}: {name} is {saved[name].dtype}, and a run leaves float32"
            raise ValueError(f"{fault}; run it anew.")
        wanted[name].copy_(saved[name])


def build_task(
    config: Config, num_classes: int, input_shape: tuple[int, ...], made: Preprocessing | None = None
) -> Task:
    """The model with its hyperparameters; initial weights are a function of ``config.seed``. The likelihood
    is in units of the targets that the preprocessing tells, if it does."""
    fault = "precision: auto is a choice of the machine that starts a run"
    require(config.precision != "auto", f"{fault}, but Flower's clients are on many; give fp32 or bf16.")
    likelihood, options = LIKELIHOODS.resolve(config.likelihood), config.likelihood_options
    if isinstance(likelihood, type) or options:  # a function of the user's is one as it is
        check_needs(config.likelihood, likelihood, options)
        likelihood = built(likelihood, options, f"the likelihood {config.likelihood!r}", "likelihood_options")
    if made is not None and (unit := made.state.get("target")) is not None:
        likelihood.in_units(**unit)
    outputs = likelihood.outputs(num_classes) if isinstance(likelihood, Likelihood) else num_classes
    seed = int(generator(config.seed, "model.initial").integers(2**63))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _build_model(config, outputs, input_shape, {})
        transforms = _build_transforms(config.hyperparameters, input_shape)
    task = Task(
        module, transforms=transforms, hyperparameters=config.hyperparameters.names, likelihood=likelihood,
        samples=config.samples, average=config.average, stratified=config.stratified,
        precision=config.precision, channels_last=config.channels_last,
        learn_dropout=config.hyperparameters.learn_dropout,
        sizes=partial(_sized, config, outputs, input_shape),
    )  # fmt: skip
    return task if config.psi_from is None else task.with_psi(saved_psi(config.psi_from, task))


def _sized(config: Config, outputs: int, input_shape: tuple[int, ...], **options: Any) -> nn.Module:
    """The model in another size; where it starts from is decided by the largest one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _build_model(config, outputs, input_shape, options)


def _build_model(
    config: Config, num_classes: int, input_shape: tuple[int, ...], options: Mapping[str, Any]
) -> nn.Module:
    """``options`` are laid over the configuration's ``model_options``."""
    builder, options = MODELS.resolve(config.model), {**config.model_options, **options}
    known = {"num_classes": num_classes, "input_shape": input_shape}
    dropout = config.hyperparameters.dropout
    parameters = inspect.signature(builder).parameters.values()
    takes = any(p.name == "dropout" or p.kind is p.VAR_KEYWORD for p in parameters)
    if not takes and dropout not in (None, DropoutSection()):
        fault = f"The model {config.model!r} takes no dropout, so hyperparameters.dropout cannot be set"
        raise ValueError(f"{fault}; put ConcreteDropout layers into it, or leave it out.")
    if takes and "dropout" in options:
        raise ValueError("model_options.dropout is set by hyperparameters.dropout; set it there.")
    taken = {"dropout": None if dropout is None else dropout.rate} if takes else {}
    what = f"the model {config.model!r}"
    if config.model in MODELS:
        check_shape(builder, input_shape, what)
    module = built(builder, options, what, "model_options", **known, **taken)
    if not isinstance(module, nn.Module):
        remedy = "it must return an nn.Module"
        raise TypeError(f"The model {config.model!r} returned {type(module).__name__}; {remedy}.")
    return module


def _is_shape(input_shape: Any, dimensions: int) -> bool:
    """Whether inputs are one tensor of so many dimensions per example; others are a tree of shapes."""
    numbers = isinstance(input_shape, tuple) and all(isinstance(length, int) for length in input_shape)
    return numbers and len(input_shape) == dimensions


def _build_transforms(section: HyperparameterSection, input_shape: tuple[int, ...]) -> dict[str, HyperModule]:
    others: list[HyperModule] = []
    masks: dict[str, HyperModule] = {}
    if section.affine is not None:
        if not _is_shape(input_shape, 3):
            raise ValueError(
                f"Affine augmentation takes images [channels, height, width], but the inputs are "
                f"{input_shape}; write hyperparameters without affine, for instance {{dropout: {{}}}}."
            )
        others.append(AffineAugmentation(**section.affine.model_dump()))
    if (mask := section.mask) is not None:
        if not _is_shape(input_shape, 1):
            remedy = "set hyperparameters.mask: null"
            raise ValueError(f"A mask takes inputs [features], but the inputs are {input_shape}; {remedy}.")
        if mask.kept is None:
            masks["mask"] = ConcreteMask(*input_shape, mask.probability, mask.temperature)
        else:
            masks["mask"] = FixedMask(*input_shape, mask.kept)
    for number, entry in enumerate(section.transforms):
        key = f"hyperparameters.transforms[{number}].options"
        transform = built(TRANSFORMS.resolve(entry.use), entry.options, f"the transform {entry.use!r}", key)
        if not isinstance(transform, HyperModule):
            fault = f"The transform {entry.use!r} is a {type(transform).__name__}"
            raise TypeError(f"{fault}, not a fedpart.HyperModule.")
        if entry.part is not None:
            transform.on(entry.part)
        others.append(transform)
    named = named_transforms(others)
    if named.keys() & masks:
        raise ValueError("Two transforms are called 'mask'; give the class of yours another name.")
    return {**masks, **named}  # a mask's inputs are no images, so that there is no affine one before it


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Within this context torch computes on that many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
