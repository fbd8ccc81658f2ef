"""A run whose clients do not answer while there is a file ``held`` beside its configuration."""

from pathlib import Path
from typing import Any

import yaml

MODEL = """
import time
from pathlib import Path

from torch import nn

HELD = Path(__file__).with_name("held")


class Held(nn.Flatten):
    def forward(self, x):
        while HELD.exists():
            time.sleep(0.1)
        return super().forward(x)


def build(num_classes, input_shape):
    return nn.Sequential(Held(), nn.Linear(input_shape[1] * input_shape[2], num_classes))
"""
CONFIG: dict[str, Any] = {
    "data": "digits",
    "model": "held_model:build",
    "clients": 4,
    "cohort": 2,
    "chunks": [0.5, 0.5],
    "engine": "ray",
    "rounds": 1_000_000,
    "checkpoint_every": 1_000_000,
    "evaluation": "none",
    "hyperparameters": {"affine": {}},
    "training_points": 40,
}


def configuration(folder: Path, **changes: Any) -> Path:
    """Its file, ``held.yaml``, with the model beside it."""
    (folder / "held_model.py").write_text(MODEL)
    file = folder / "held.yaml"
    file.write_text(yaml.safe_dump(CONFIG | changes))
    return file
