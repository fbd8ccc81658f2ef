"""From a configuration to everything a run needs: task, data, and what the kind of run adds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

from fedpart import Dataset, Federation, Protocol, Task
from fedpart.centralised.fit import Training, check_psi
from fedpart.centralised.scores import check_laplace, laplace_evidence
from fedpart.data import random_subset
from fedpart.data.dataset import has_labels
from fedpart.data.preprocessing import Preprocessing, Rows
from fedpart.data.trained_on import counted
from fedpart.data.transformed import corrupted
from fedpart.federated.report import exposed, unsteady, untaught
from fedpart.training.settings import check_device
from fedpart.training.state import ModelState
from fedpart.trees import leaves
from fedpart.updates.stages.personal import parted
from simulations.building.data import client_names, load_data
from simulations.building.sites import data_of, rows_told
from simulations.building.task import build_task
from simulations.config.load import Config, ExperimentConfig, TrainingConfig
from simulations.folders.data_files import digest_of, listed_data


@dataclass(frozen=True, eq=False)
class Experiment:
    """What a federated configuration describes, built: the same bits in every process."""

    config: ExperimentConfig
    task: Task
    protocol: Protocol
    shards: Sequence[Dataset]  # client i holds shards[i]
    validation: Dataset  # complete if the last rounds need that
    test: Dataset
    num_classes: int
    classes: tuple[str, ...] = ()  # their names, where there are any
    preprocessing: Preprocessing | None = None  # of raw examples
    client_names: tuple[str, ...] = ()  # of client 0, 1, ...; none where these are mere numbers

    @property
    def notes(self) -> list[str]:
        said = (tell(self.protocol) for tell in (untaught, parted, unsteady, exposed))
        rows = rows_told(self.preprocessing)
        told = f"{counted(len(rows), 'client')} shared sums of {counted(sum(rows), 'row')}"
        what = "counts of levels and classes, means and deviations by column, which are not private"
        told = [f"{told}: {what}."] if rows else []
        return [*told, *self._spent(), *self.protocol.task.notes, *filter(None, said)]

    def _spent(self) -> Iterator[str]:
        """What epsilon does not tell of a private run."""
        config, made = self.config, self.preprocessing
        if config.privacy is not None and isinstance(made, Rows) and made.learned:
            yield (
                "epsilon does not cover the preprocessing: means, ranges and names of levels are of all "
                "clients' rows and stand in the run's files; write numbers of a known range into the table, "
                "and leave standardise, categorical and missing out, if nobody may learn of these."
            )
        if config.privacy is not None and config.beside is not None:
            yield f"beside: {config.beside} is left out, as a second run would spend privacy as well."

    def start(self) -> Federation:
        return Federation(self.protocol)

    def validation_of(self, round: int) -> Dataset:
        """What ``round`` is evaluated on: ``validation_points``, or everything in the last rounds."""
        config = self.config
        if round > config.rounds - config.full_validation_rounds:
            return self.validation
        return self._reduced_validation

    @cached_property
    def _reduced_validation(self) -> Dataset:
        return random_subset(self.validation, self.config.validation_points, self.config.data_seed)


@dataclass(frozen=True, eq=False)
class TrainingExperiment:
    """What a centralised configuration describes, built: the same bits in every process."""

    config: TrainingConfig
    task: Task
    train: Dataset  # all training data, in the order in which chunks are drawn from them
    validation: Dataset
    test: Dataset
    num_classes: int
    classes: tuple[str, ...] = ()  # their names, where there are any
    preprocessing: Preprocessing | None = None  # of raw examples

    @property
    def notes(self) -> list[str]:
        return [*self.task.notes]

    @property
    def shards(self) -> list[Dataset]:
        """All training data, as if they were one client's."""
        return [self.train]

    def start(self) -> Training:
        evidence = laplace_evidence if self.config.evidence == "laplace" else None
        settings = self.config.settings()
        training = Training(self.task, self.train, settings, self.config.identity(), evidence)
        if evidence is not None:
            check_laplace(training)
        if self.config.corrupted and len(self.test):
            corrupted(self.test.subset([0]), "contrast", 1)  # refused here, and not after the training
        check_psi(training)
        return training


def check_network(state: ModelState, data: Dataset, num_classes: int) -> None:
    """Compute two examples: a network that does not fit the data is refused before the first round."""
    largest = int(data.targets.argmax()) if has_labels(data) else len(data) - 1
    few = data.subset([0, largest])
    taken = ", ".join(str([*leaf.shape]) for _, leaf in leaves(few.inputs))
    gives = ""
    try:
        gives = f" gives outputs {[*next(state.predict(few.inputs)).shape]} for inputs {taken}"
        state.evaluate(few)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        unfit = f"{gives}, which do not fit {num_classes} classes"
        what = unfit if gives else f" does not take inputs {taken}"
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ValueError(f"The network{what} ({reason}); change model or model_options.") from error


@overload
def build(config: ExperimentConfig) -> Experiment: ...
@overload
def build(config: TrainingConfig) -> TrainingExperiment: ...
def build(config: Config) -> Experiment | TrainingExperiment:
    """Load the data, build the model, and split or partition; torch's random state stays as it was."""
    check_device(config.device)
    shards: Sequence[Dataset] = ()
    if isinstance(config, TrainingConfig):
        splits = load_data(config)
    else:
        splits, shards = data_of(config)
    task = build_task(config, splits.num_classes, splits.train.input_shape, splits.preprocessing)
    described = (splits.num_classes, splits.classes, splits.preprocessing)
    if isinstance(config, TrainingConfig):
        return TrainingExperiment(config, task, *splits.parts().values(), *described)
    most = max(max(len(shard), len(shard.evaluation or ())) for shard in shards)
    most = max(most, *rows_told(splits.preprocessing), 1)
    settings = replace(config.settings(), max_examples=most)
    files = None if config.apart else listed_data(config)  # then each client has files of its own
    protocol = Protocol(task, settings, config.identity(), digest_of(files))
    scored = (splits.validation, splits.test)
    return Experiment(config, task, protocol, shards, *scored, *described, client_names(config, splits))


def ready(config: Config) -> tuple[Any, Any]:
    """What a run needs, and its state before it, after a look at all that can be known to fail."""
    experiment = build(config)
    state = experiment.start()
    for name in ("validation", "test"):
        state.check(getattr(experiment, name), name)
    check_network(state, experiment.shards[0], experiment.num_classes)
    return experiment, state
