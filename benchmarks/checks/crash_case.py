"""A run that something happens to, held to the weights of the same run that nothing happens to."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from fedpart.training.files import kept
from simulations.building.experiment import build
from simulations.config.load import ExperimentConfig
from simulations.folders.run_directory import CHECKPOINT, CONFIG, STATE, read_metrics
from simulations.running.run import run_experiment

EXPERIMENT: dict[str, Any] = {
    "data": "digits",
    "training_points": 60,
    "validation_points": 20,
    "test_points": 20,
    "model": "digits_cnn",
    "clients": 2,
    "cohort": 2,
    "chunks": [0.5, 0.5],
    "samples": 2,
    "checkpoint_every": 1,
    "clip": "adaptive",  # as deployed runs have it
}


class Case:
    """One kind of disturbance of a run of so many rounds, in a folder of its own."""

    def __init__(self, folder: Path, rounds: int, **changes: Any) -> None:
        self.failures = 0
        experiment = {**EXPERIMENT, "rounds": rounds, **changes}
        self.config = ExperimentConfig.from_dict(experiment)
        self.file, self.calm = folder / "crash.yaml", folder / "undisturbed"
        self.file.write_text(yaml.safe_dump(experiment))
        run_experiment(self.config, self.calm)

    def check(self, out: Path, what: str, fits: bool = True) -> None:
        """Compare the weights of a run with the undisturbed one's, and say what has been done to it."""
        same = (out / STATE).exists() and (out / STATE).read_bytes() == (self.calm / STATE).read_bytes()
        skipped = [(line["round"], skip) for line in read_metrics(out) for skip in line["skipped"]]
        self.tell(what, "bit-identical" if same else f"DIFFERENT {skipped}", same and fits)

    def saved(self, out: Path) -> int:
        """Rounds in what a run is resumed from: one that has lost it has the same weights in the end."""
        state = build(self.config).start()
        try:
            if kept(out / CHECKPOINT):
                state.load(out / CHECKPOINT)
        except ValueError as error:
            print(error)
        return state.completed

    def tell(self, what: str, outcome: str, fits: bool) -> None:
        """A line of the report."""
        self.failures += not fits
        print(f"{what}: {outcome}{'' if fits else '  <-- FAILED'}", flush=True)


def fedpart(*arguments: object) -> subprocess.Popen[str]:
    """Start the command."""
    command = [sys.executable, "-c", "from simulations.cli.main import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def go_on(case: Case, out: Path) -> tuple[int, str]:
    """Run ``fedpart run`` to its end, from where it is; the exit status and what it said."""
    process = fedpart("run", *(["--resume", out] if (out / CONFIG).exists() else [case.file, "--out", out]))
    _, errors = process.communicate()
    return process.returncode, errors
