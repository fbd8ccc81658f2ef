"""What came out of training: a network with its hyperparameters, the reports of the run; and load()."""

import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from fedpart.checks import NetworkError, require
from fedpart.data.dataset import Dataset, has_labels
from fedpart.data.given import Examples, as_dataset, as_inputs
from fedpart.data.preprocessing import Behind, Preprocessing
from fedpart.registry import trusting
from fedpart.task.task import Task
from fedpart.training.state import ModelState
from fedpart.trees import Tree, leaves


def as_task(given: Any) -> Task:
    """A task as it is; a network alone as ``Task(network, samples=1)``, which is a classification."""
    if isinstance(given, Task):
        return given
    if isinstance(given, nn.Module):
        return Task(given, samples=1)
    kind = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
    write = "write Task(module), with transforms if there are any."
    raise ValueError(f"What is trained is a Task or an nn.Module, got {kind}; {write}")


Report = TypeVar("Report")


def remarks_on(state: ModelState) -> list[str]:
    """What a person should know of the psi found: what nothing has taught, and what transforms remark of
    themselves, by :meth:`.HyperModule.remarks`."""
    why = "no gradient has reached it, so it is as it began; use it in forward(), or leave it out"
    physical, remarks = state.task.physical(state.psi), [f"{name}: {why}" for name in state.unreached()]
    for name, transform in state.task.transforms.items():
        of_transform = {key.removeprefix(f"{name}."): value for key, value in physical.items()}
        remarks += [f"{name}: {remark}" for remark in transform.remarks(of_transform)]
    return remarks


def held_out(state: ModelState, given: Examples | None, name: str) -> Dataset | None:
    """Data to score ``state`` on, refused before anything is trained; None if there are none."""
    if given is None:
        return None
    data = as_dataset(given)
    state.check(data, name)
    try:
        state.evaluate(_largest(data), name=name)
    except RuntimeError as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"The {name} data do not fit the network: {reason}.") from error
    return data


def check_shards(state: ModelState, shards: Sequence[Dataset]) -> None:
    """Look at clients' examples that are in memory, before the first round.

    The network scores the example with the largest label, and one of each shape and type that there is.
    """
    for client, shard in enumerate(shards):
        require(len(shard), f"Client {client} has no examples; give it some, or leave it out of the list.")
    labels = [int(shard.targets.max()) if has_labels(shard) else 0 for shard in shards]
    largest, kinds = labels.index(max(labels)), set[Any]()
    for client, shard in enumerate(shards):
        parts = [*leaves(shard.inputs, "inputs"), *leaves(shard.targets, "targets")]
        kind = tuple((name, part.shape[1:], part.dtype) for name, part in parts)
        try:
            state.check(shard)
            if shard.evaluation is not None:
                state.check(shard.evaluation)
            if kind not in kinds or client == largest:
                state.evaluate(_largest(shard), name="training")
        except NetworkError:
            raise
        except Exception as error:
            if isinstance(error, ValueError) or kinds:  # of the first kind, the round says what does not fit
                reason = " ".join(str(error).split()).rstrip(".")
                least = min((int(part.targets.min()) for part in shards if has_labels(part)), default=0)
                if least and "labels" in reason:
                    reason = f"classes begin at 0, but labels at {least}: write targets - {least} ({reason})"
                raise ValueError(f"The data of client {client} do not fit: {reason}.") from error
        kinds.add(kind)


def remark_outputs(state: ModelState, parts: Sequence[Dataset]) -> None:
    """Say of a classification which outputs no label names, for they may be of classes that are to come; and
    whether outputs are probabilities already."""
    name, of = state.task.likelihood_name, [part for part in parts if len(part)]
    if name not in ("classification", "multilabel") or not of:
        return
    try:
        few = next(state.predict(of[0].subset(range(min(8, len(of[0])))).inputs)).float()
    except Exception:  # who trains on them says what does not fit
        return
    *_, last = state.task.module.modules()
    ones = few.sum(-1).allclose(few.new_ones(()), atol=1e-3) if name == "classification" else False
    if bool(((few >= 0) & (few <= 1)).all()) and (ones or isinstance(last, nn.Sigmoid)):
        end = f"The outputs look like probabilities, of which {name} would make others"
        warnings.warn(f"{end}; leave the last Softmax or Sigmoid out.", RuntimeWarning, stacklevel=3)
    labels = [int(part.targets.max()) for part in of if has_labels(part)]
    if name != "classification" or not labels:
        return
    outputs = few.shape[-1]
    if outputs > (classes := max(labels) + 1):
        more = f"The network has {outputs} outputs, and the labels name {classes} classes, 0..{max(labels)}"
        warnings.warn(f"{more}; is its last layer right?", RuntimeWarning, stacklevel=3)


def _largest(data: Dataset) -> Dataset:
    """The example with the largest label, or the first one; none if there are none."""
    largest = int(data.targets.argmax()) if len(data) and has_labels(data) else 0
    return data.subset([largest] if len(data) else [])


class Trained:
    """A trained network with its hyperparameters.

    Attributes:
        state: the final state: a :class:`.Federation` or :class:`.Training`, or as :func:`.load` has it.
    """

    def __init__(self, state: ModelState) -> None:
        self.state = state

    @property
    def psi(self) -> dict[str, float]:
        """The hyperparameters found, in units that a person reads."""
        return self.state.task.physical(self.state.psi)

    def module(self) -> nn.Module:
        """The trained network alone; see :meth:`ModelState.module`."""
        return self.usable().module()

    def usable(self) -> ModelState:
        """The state; a ValueError where clients keep a part of its network."""
        require(not self.state.parted, self.state.parted)
        return self.state

    def predict(self, x: Any) -> Tensor:
        """Outputs ``[n, ...]`` of the full network for ``x [n, ...]``, S samples averaged, dropout off.

        Args:
            x: inputs as those of the training data: tensors, arrays, lists of numbers, or trees of them; of a
                :class:`Dataset` its inputs. One example alone counts as n = 1.

        Raises:
            ValueError: these are no inputs, or do not fit the network; or clients keep a part of it.
        """
        inputs = as_inputs(x, like := self.usable().like)
        try:
            outputs = list(self.state.predict(inputs))
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            shape, wanted = _told(inputs), "" if like is None else _told(like)
            if like is None or shape == wanted:
                raise
            what = f"The {shape} do not fit the network, which was trained on {wanted}"
            raise ValueError(f"{what}; bring them to that form.") from error
        require(outputs, "There are no examples to predict; give at least one.")
        return torch.cat(outputs)


def _told(inputs: Tree) -> str:
    """``inputs [n, 1, 28, 28]``: parts and shapes."""
    parts = leaves(inputs, "inputs")
    return ", ".join(f"{name} [{', '.join(map(str, ('n', *leaf.shape[1:])))}]" for name, leaf in parts)


class Result(Trained, Generic[Report]):
    """What a run has learned.

    Args:
        state: the final one.
        metrics: see below.
        test: data to test on; None: none.
        samples: S of that test; None: the task's.

    Attributes:
        metrics: one report per round, or per evaluation of centralised training; of a run that was resumed
            those before, too, which are beside its checkpoint.
        test_accuracy: on the test data, a fraction; None without them, or without classes.
        test_nll: nats per example; None without test data.

    Warns:
        RuntimeWarning: what a person should know of the psi found, see :func:`remarks_on`.
    """

    def __init__(
        self, state: ModelState, metrics: list[Report], test: Dataset | None = None,
        samples: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(state)
        self.metrics = metrics
        scores: dict[str, Any] = {} if test is None else state.evaluate(test, samples=samples)
        self.test_accuracy: float | None = scores.get("accuracy")
        self.test_nll: float | None = scores.get("nll")
        for remark in remarks_on(state):
            warnings.warn(remark, RuntimeWarning, stacklevel=3)

    @property
    def scores(self) -> dict[str, float | None]:
        """Those on the test data, by name; empty without them."""
        if self.test_nll is None:
            return {}
        return {"test_accuracy": self.test_accuracy, "test_nll": self.test_nll}


GROUP = "fedpart.runs"  # of the entry point that reads folders: (Path) -> Loaded


class Loaded(Trained):
    """What a run has left in its folder.

    Attributes:
        config: the run's configuration, as plain data by key.
        classes: names of the classes, in the order of the outputs; empty where they have none.
        preprocessing: what makes inputs of raw examples; None where the run does not know it.
        about: the run in a line, which ``print`` shows.
    """

    def __init__(
        self, state: ModelState, config: Mapping[str, Any], classes: Sequence[str] = (),
        preprocessing: Preprocessing | None = None, about: str = "",
    ) -> None:  # fmt: skip
        super().__init__(state)
        self.config, self.classes, self.preprocessing = dict(config), tuple(classes), preprocessing
        self.about = about

    def __str__(self) -> str:
        return self.about or repr(self)

    def predict(self, x: Any) -> Tensor:
        """Outputs as :meth:`.Trained.predict`. A run that knows its preprocessing takes raw examples: files,
        data frames, rows or pixels, see :meth:`.Rows.inputs` and :meth:`.Pictures.inputs`; and inputs that
        are made already as a :class:`Dataset`. Other runs take inputs."""
        if self.preprocessing is not None and not isinstance(x, Dataset):
            return super().predict(self.preprocessing.inputs(x))
        fault = "This run does not know how its inputs are made of files"
        require(not isinstance(x, (str, Path)), f"{fault}; give predict the inputs, as tensors.")
        return super().predict(x)

    def with_preprocessing(self) -> nn.Module:
        """The trained network as :meth:`module` gives it, behind its preprocessing: it takes rows, or pixels,
        ``[n, ...]``; the network alone where the run does not know any."""
        if self.preprocessing is None:
            return self.module()
        return Behind(self.preprocessing, self.module(), self.state.task.dtype).eval()


def load(run: str | Path, trust_code: bool = False) -> Loaded:
    """The network of a finished run, on the CPU: of ``fedpart run``, ``up``, ``train`` or ``retrain``.

    It can predict, and be evaluated; it cannot be trained on, for it has no optimisers' moments.

    Args:
        run: its folder. The data need not be there. What the configuration names in files of your own must
            be importable.
        trust_code: whether code that the folder names, ``package.module:callable``, may run.

    Raises:
        ValueError: the folder holds no finished run, or not what its configuration says, or names code that
            is not trusted; one sentence.
        RuntimeError: fedpart is imported, but not installed.
    """
    for reader in entry_points(group=GROUP):
        with trusting(trust_code):
            loaded: Loaded = reader.load()(Path(run))
        return loaded
    entry = f"the entry point {GROUP} of the installed fedpart, which is not there"
    again = "install fedpart anew, in a checkout by `uv sync`."
    raise RuntimeError(f"What reads folders of runs is found by {entry}; {again}")
