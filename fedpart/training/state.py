"""ModelState: w and psi with their optimisers, evaluated and checkpointed."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpart.checks import Misfit, require
from fedpart.data.cells import check_examples
from fedpart.data.dataset import Dataset, check_labels
from fedpart.partition.partition import Partition
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.task.held_out import score
from fedpart.task.task import Batch, Task
from fedpart.training.agreement import difference, fingerprint
from fedpart.training.files import kept, previous_of, read_tensors, replace
from fedpart.training.optimisers import ServerSettings, SlicedOptimiser, refuse_other_form
from fedpart.training.plain import plain
from fedpart.training.settings import check_device
from fedpart.trees import Tree, first_leaf, leaves, map_leaves


class ModelState:
    """What a federation (by rounds) and centralised training (by iterations) have in common.

    Attributes:
        completed: rounds or iterations.
        w: ``[size]`` in partition order; psi: ``[P]``.
        limits: the least and the largest values that psi can mean, ``[P]`` each.
        optimiser, optimiser_psi: see :class:`.SlicedOptimiser`; of w, one state per cell.
        agreement: what a checkpoint must agree on, as plain data by name.
        like: inputs ``[0, ...]`` of the form and types of the data; None: none have been looked at.
        learned: names of the hyperparameters that training steps; empty where it is over.
        parted: a sentence on weights that are not here, as clients keep them; empty: all are.
    """

    learned: Sequence[str] = ()
    parted: str = ""
    agreement: dict[str, Any]
    like: Tree | None

    def __init__(
        self, task: Task, partition: Partition, optimiser: ServerSettings, optimiser_psi: ServerSettings, *,
        seed: int, device: str = "cpu", weight_decays: Sequence[float] | None = None, scalars: float = 1.0,
        psi_slices: Sequence[slice] | None = None,
    ) -> None:  # fmt: skip
        check_device(device)
        self.task, self.partition, self.seed = task, partition, seed
        self.completed, self.like = 0, None
        self.w = partition.initial().to(device)
        self.psi = task.psi_space.initial().to(device)
        self.limits = [bound.to(device) for bound in task.psi_bounds]
        task.physical(self.psi)  # refuses what is no number
        slices = [slice(*ends) for ends in pairwise(partition.cells)]
        slow = None if scalars == 1 else [places.to(device) for places in partition.stacked()]
        self.optimiser = SlicedOptimiser(self.w, slices, optimiser, weight_decays, slow, scalars)
        self.optimiser_psi = SlicedOptimiser(self.psi, psi_slices or [slice(None)], optimiser_psi)

    def tensors(self, k: int | None = None) -> dict[str, Tensor]:
        """Named tensors of subnetwork ``k`` (default: the full network), norms folded."""
        return self.partition.materialise(self.w, self.partition.chunks if k is None else k)

    def psi_tensors(self) -> dict[str, Tensor]:
        """psi by name."""
        return self.task.psi_tensors(self.psi)

    def held(self) -> list[str]:
        """Names of hyperparameters that are at the bound of what they can mean, at least in part."""
        low, high = self.limits
        start = self.task.psi_space.initial().to(self.psi.device)
        bounded = ((self.psi <= low) | (self.psi >= high)) & (self.psi != start)
        return self.names_at(bounded)

    def unreached(self) -> list[str]:
        """Names of hyperparameters that are learned, of which every gradient of ten steps or more was 0, as
        Adam's moments tell: the network does not use them. Where a branch begins at 0, first ones are."""
        states = self.optimiser_psi.state_dict()
        if not all("exp_avg" in state and state["step"] >= 10 for state in states):
            return []
        reached = self.names_at(torch.cat([state["exp_avg"] for state in states]) != 0)
        return [name for name in self.learned if name not in reached]

    def names_at(self, places: Tensor) -> list[str]:
        """Names of the hyperparameters that have some of ``places``, a mask ``[P]`` bool."""
        return [name for name, of_name in self.task.psi_tensors(places).items() if of_name.any()]

    def module(self, changed: Mapping[str, Tensor] | None = None) -> nn.Module:
        """The full network as a plain module on the CPU, in eval mode, norms folded, its psi set.

        Where ``learn_dropout`` has learned the rate of an ``nn.Dropout``, it is one again, with that rate.

        It does not contain the input transforms: average it over transformed inputs yourself, or use
        :meth:`predict`. Composed weights are plain ones, but for members of an ensemble.

        Args:
            changed: tensors in place of those of :meth:`tensors`, by name.
        """
        return plain(self.task.module, {**self.tensors(), **(changed or {})}, self.psi_tensors())

    def predict(
        self, inputs: Tree, k: int | None = None, *, dropout: bool = False, purpose: str = "evaluation",
        samples: int | None = None,
    ) -> Iterator[Tensor]:  # fmt: skip
        """Outputs ``[b, ...]`` by batches, S samples averaged.

        Args:
            inputs: ``[n, ...]``.
            k: subnetwork; the full network if not given.
            dropout: whether stochastic layers are on; off at inference (App. J.2).
            purpose: names the noise.
            samples: so many instead of S; without transforms at most S.
        """
        named, task = self.tensors(k), self.task.with_samples(samples)
        with torch.no_grad():
            for places, noise in self._visits(task, len(first_leaf(inputs)), purpose):
                x = map_leaves(lambda leaf, here=places: leaf[here].to(self.w.device), inputs)
                yield task.outputs(named, self.psi, x, noise, dropout=dropout)

    def answers(self, inputs: Tree) -> tuple[Tensor, Tensor | None]:
        """What the network says of ``inputs [n, ...]``, on the CPU; see :meth:`.Likelihood.answers`."""
        outputs = torch.cat(list(self.predict(inputs))).cpu()
        with torch.no_grad(), self.task.likelihood_at(self.psi.cpu()) as likelihood:
            return likelihood.answers(outputs)

    def _visits(self, task: Task, examples: int, purpose: str) -> Iterator[tuple[slice, Noise]]:
        """Examples of an evaluation, batch by batch, each with its noise."""
        size = rows_at_once(self.w.device, task.samples)
        for index, start in enumerate(range(0, examples, size)):
            key = NoiseKey(self.seed, purpose, (index, self.completed))
            yield slice(start, start + size), Noise(key, self.w.device, task.dtype)

    def evaluate(
        self, dataset: Dataset, k: int | None = None, *, dropout: bool = False, purpose: str = "evaluation",
        samples: int | None = None, measures: bool = False, name: str = "evaluation",
    ) -> dict[str, float]:  # fmt: skip
        """Mean negative log-likelihood (``nll``, nats per example), and ``accuracy`` where there are classes.

        Args:
            dataset: at least one example.
            k, dropout, purpose, samples: see :meth:`predict`.
            measures: whether to add those of the likelihood, see :meth:`.Likelihood.measures`.
            name: of the data, for messages.

        Raises:
            ValueError: the data set is empty, targets do not fit the likelihood, for instance because a label
                lies outside the classes, or the measures cannot be computed.
        """
        self.check(dataset)
        none = "There are no examples to evaluate on; give at least one, or no validation data."
        require(len(dataset) > 0, none)
        outputs, named, task = list[Tensor](), self.tensors(k), self.task.with_samples(samples)
        visits = self._visits(task, len(dataset), purpose)
        batches = ((Batch(*dataset.batch(places, self.w.device)), noise) for places, noise in visits)
        try:
            held_out = score(task, named, self.psi, batches, dropout, outputs if measures else None)
        except Misfit as error:
            out = next(self.predict(dataset.batch(slice(1))[0], k, samples=samples))
            self.check(dataset, name, classes=out.shape[-1])
            raise error.__cause__ or error from None
        scores = {"nll": held_out.nll / len(dataset)}
        if held_out.correct is not None:
            scores["accuracy"] = held_out.correct / len(dataset)
        return scores | (self._measures(outputs, dataset) if measures else {})

    def _measures(self, outputs: list[Tensor], dataset: Dataset) -> dict[str, float]:
        name = ""
        with torch.no_grad(), self.task.likelihood_at(self.psi.cpu()) as likelihood:
            try:
                measured = dict(likelihood.measures(torch.cat(outputs), dataset.targets))
                for name, value in measured.items():
                    require(name not in ("nll", "accuracy"), "is the name of a score of every run; change it")
                    measured[name] = float(value)
                return measured
            except Exception as error:  # whatever torchmetrics, or a likelihood of one's own, makes of them
                measures = f"The measures of the {self.task.likelihood_name} likelihood"
                why = " ".join(f"{name} {error}".split()).rstrip(".")
                raise ValueError(f"{measures} cannot be computed ({why}); leave measures out.") from error

    def validated(self, dataset: Dataset, samples: int | None = None) -> dict[str, Any]:
        """What a report says of held-out data: ``val_accuracy`` (None without classes) and ``val_nll``."""
        scores = self.evaluate(dataset, samples=samples)
        return {"val_accuracy": scores.get("accuracy"), "val_nll": scores["nll"]}

    def check(self, dataset: Dataset, name: str = "", classes: int | None = None) -> None:
        """Look at a data set before anything is computed with it; a ValueError says what does not fit.

        ``name`` is of the data, for the message; for ``classes`` see :meth:`.Likelihood.check`."""
        check_examples(dataset, self.task.dtype)
        if self.like is None:
            self.like = map_leaves(lambda leaf: leaf.new_empty(0, *leaf.shape[1:]), dataset.inputs)
        masks = {part for part, leaf in leaves(self.like, "inputs") if leaf.dtype == torch.bool}
        for part, leaf in leaves(vars(dataset).get("inputs", ()), "inputs"):  # or images that are not decoded
            numbers = f"Dataset {part} are {leaf.dtype}, and were True and False in training; write .bool()"
            require(part not in masks or leaf.dtype == torch.bool, f"{numbers}.")
        if classes is not None:
            check_labels(dataset, classes, name)
        with self.task.likelihood_at(None) as likelihood:
            likelihood.check(dataset.targets, classes, f" of the {name} data" if name else "")

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next, not copied."""
        return {
            "completed": self.completed,
            "w": self.w,
            "psi": self.psi,
            "optimiser": self.optimiser.state_dict(),
            "optimiser_psi": self.optimiser_psi.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        count = state["completed"]
        require(type(count) is int and not count < 0, f"{count!r} are completed")
        self.completed = count
        for tensor, value in ((self.w, state["w"]), (self.psi, state["psi"])):
            refuse_other_form(value, tensor)
            tensor.copy_(value)
        self.optimiser.load_state_dict(state["optimiser"])
        self.optimiser_psi.load_state_dict(state["optimiser_psi"])

    def save(self, path: str | Path) -> None:
        """Write what decides what comes next, atomically; the checkpoint before it stays beside it.

        Raises:
            OSError: it cannot be written, for instance because the disk is full; the last one is as it was.
        """
        path, content = Path(path), {**self.state_dict(), "agreement": json.dumps(self.agreement)}
        replace(path, lambda file: torch.save(content, file), previous_of(path))

    def load(self, path: str | Path) -> None:
        """Continue from a checkpoint of :meth:`save`; if it is damaged, with a warning, from the one before.

        Raises:
            ValueError: the files cannot be read, or belong to another configuration; the difference is named.
        """
        path, unreadable = Path(path), list[str]()
        for file in kept(path) or [path]:
            try:
                state = read_tensors(file)
                then = json.loads(state.pop("agreement"))
                now, before = self.agreement.get("examples"), then.get("examples")
                differs = difference({**self.agreement, "examples": before}, then)
                if not differs:
                    self.load_state_dict(state)
                break
            except Exception as error:  # a torn or foreign file raises anything
                # its name, for torch's words take several lines, and advise to unpickle what is not trusted
                unreadable.append(f"The checkpoint {file} cannot be read ({type(error).__name__})")
        else:
            raise ValueError(f"{'; '.join(unreadable)}; start the run anew.")
        if unreadable:
            warnings.warn(f"{unreadable[0]}; going on from {file.name}.", RuntimeWarning, stacklevel=2)
        other = f"The checkpoint {path} belongs to another configuration: {differs}."
        require(not differs, f"{other} Resume with the configuration it has, or start the run anew.")
        if now and before and now != before:
            goes_on = "goes on with these; its result will not be that of a run that was never stopped"
            changed = f"The checkpoint {path} was trained on other data: {before}, now {now}. It {goes_on}."
            warnings.warn(changed, RuntimeWarning, stacklevel=2)

    def resume(
        self, checkpoint: str | Path | None, resume: bool, data: Sequence[Dataset], most: int
    ) -> Path | None:
        """The checkpoint's path, ready to be written; its state is taken over if ``resume`` and it exists.

        Warns where it was trained on other ``data`` (empty: they are read later, and not compared).

        Raises:
            ValueError: there is nothing to resume from, a run to overwrite, or one longer than ``most``.
        """
        if checkpoint is None:
            nothing = "There is nothing to resume from: give the checkpoint=... of the run as well."
            require(not resume, nothing)
            return None
        path = Path(checkpoint)
        go_on = "pass resume=True to continue that run, or choose another file."
        require(resume or not kept(path), f"The checkpoint {path} exists already; {go_on}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.agreement["examples"] = fingerprint(data)
        if kept(path):
            self.load(path)
            longer = f"The checkpoint {path} has completed {self.completed}, more than the {most} asked for"
            require(self.completed <= most, f"{longer}; ask for as many, or choose another file.")
        return path


def rows_at_once(device: torch.device, samples: int) -> int:
    """Examples that are evaluated together: on a CPU, as many as stay in its cache."""
    return max(1, (256 if device.type == "cpu" else 2048) // samples)
