"""load(): the network and the hyperparameters that a run has left in its folder."""

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fedpart.registry import trusting
from fedpart.training.result import Trained
from fedpart.training.state import ModelState

GROUP = "fedpart.runs"  # of the entry point that reads folders: (Path) -> Loaded


class Loaded(Trained):
    """What a run has left in its folder.

    Attributes:
        config: the run's configuration, as plain data by key.
        classes: names of the classes, in the order of the outputs; empty where they have none.
    """

    def __init__(self, state: ModelState, config: Mapping[str, Any], classes: Sequence[str] = ()) -> None:
        super().__init__(state)
        self.config, self.classes = dict(config), tuple(classes)


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
            found: Loaded = reader.load()(Path(run))
        return found
    raise RuntimeError(
        f"What reads folders of runs is found by the entry point {GROUP} of the installed fedpart, which is "
        f"not there; install fedpart anew, in a checkout by `uv sync`."
    )
