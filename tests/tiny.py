"""A tiny experiment on the embedded digits, seconds long, for tests of runs as a whole."""

import json
from pathlib import Path
from typing import Any

import yaml

from simulations.config.load import ExperimentConfig, TrainingConfig
from simulations.folders.run_directory import read_metrics, read_summary

TINY: dict[str, Any] = {
    "data": "digits",
    "rounds": 5,
    "clients": 6,
    "cohort": 3,
    "chunks": [0.5, 0.3, 0.2],
    "samples": 2,
    "training_points": 60,
    "validation_points": 30,
    "test_points": 40,
    "split": {"alpha": 1.0},
    "evaluate_every": 2,
    "checkpoint_every": 2,
}
KEPT = {"keep_best": "lml", "rounds": 20, "clients": 6, "cohort": 6, "samples": 1}


def tiny(**changes: Any) -> ExperimentConfig:
    """The tiny experiment, with other values for some keys."""
    return ExperimentConfig.from_dict({**TINY, **changes})


def tiny_file(folder: Path, **changes: Any) -> Path:
    """The same as a YAML file."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TINY, **changes}))
    return path


TINY_TRAINING: dict[str, Any] = {
    "data": "input_selection",
    "training_points": 120,
    "validation_points": 40,
    "test_points": 60,
    "iterations": 30,
    "batch_size": 16,
    "chunks": [0.5, 0.25, 0.25],
    "samples": 2,
    "model": "mlp",
    "model_options": {"hidden": [8]},
    "hyperparameters": {"affine": None, "dropout": None, "mask": {}},
    "optimiser_psi": {"learning_rate": 0.05},
    "evaluate_every": 10,
    "checkpoint_every": 10,
}


def tiny_training(**changes: Any) -> TrainingConfig:
    """Tiny centralised training: a mask over 30 inputs."""
    return TrainingConfig.from_dict({**TINY_TRAINING, **changes})


def tiny_training_file(folder: Path, **changes: Any) -> Path:
    """The same as a YAML file."""
    path = folder / "training.yaml"
    path.write_text(yaml.safe_dump({**TINY_TRAINING, **changes}))
    return path


WARDS = 5


def wards_file(folder: Path) -> Path:
    """A table whose row i is of ward i % 5, with the inputs i and i squared."""
    path = folder / "wards.csv"
    rows = [f"{i},{i * i},w{i % WARDS},{i % 2},{i / 8}" for i in range(100)]
    path.write_text("\n".join(["a,b,ward,ill,days", *rows]) + "\n")
    return path


def wards(file: Path, clients: int = WARDS, **changes: Any) -> ExperimentConfig:
    """An experiment whose clients are the wards of that table."""
    options = {"target": "ill", "client": "ward", "ignore": ["days"], **changes.pop("data_options", {})}
    points = {f"{part}_points": None for part in ("training", "validation", "test")}
    about = {"model": "mlp", "model_options": {"hidden": [4]}, "hyperparameters": {"affine": None}}
    of_data = {"data": "table", "data_dir": str(file), "data_options": options, "split": {}, "cohort": 2}
    return tiny(clients=clients, **{**points, **about, **of_data, **changes})


def unnamed(folder: Path) -> Path:
    """A run's folder as those of versions in which runs had no names, so that its files may be changed."""
    config = folder / "config.yaml"
    config.write_text(config.read_text().partition("\n")[2])
    metrics, summary = folder / "metrics.jsonl", folder / "summary.json"
    lines = [_plain(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(f"{line}\n" for line in lines))
    if summary.exists():
        summary.write_text(_plain(summary.read_text()))
    return folder


def _plain(text: str) -> str:
    return json.dumps({k: v for k, v in json.loads(text).items() if k not in ("seal", "state_sha256")})


def same_run(a: Path, b: Path) -> None:
    """Two folders hold the same run, to the bit; how long it took apart."""
    assert (a / "state.safetensors").read_bytes() == (b / "state.safetensors").read_bytes()
    times = {"seconds": 0, "client_seconds": 0, "runs_at_a_time": 1}
    metrics = [[line | times for line in read_metrics(folder)] for folder in (a, b)]
    assert json.dumps(metrics[0]) == json.dumps(metrics[1])
    summaries = [(read_summary(folder) or {}) | times for folder in (a, b)]
    assert summaries[0] == summaries[1]
