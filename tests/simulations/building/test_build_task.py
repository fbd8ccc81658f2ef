"""From a configuration's sections to the task: where transforms act, and what builders are given."""

from pathlib import Path

import pytest
import torch
from torch import nn

from simulations.building.task import build_task
from simulations.config.load import ExperimentConfig, load_config

PAIR = {"left": (3,), "right": (3,)}


class Both(nn.Module):
    """Adds what it sees on both sides."""

    def __init__(self, num_classes: int, input_shape: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.fc = nn.Linear(*input_shape["left"], num_classes)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.fc(left) + self.fc(right)


def test_a_transform_acts_on_the_part_that_a_file_names(tmp_path: Path) -> None:
    path = tmp_path / "parts.yaml"
    path.write_text(
        "model: test_build_task:Both\n"
        "hyperparameters: {affine: null, transforms: [{use: noise, part: right}]}\n"
    )
    task = build_task(load_config(path), 3, PAIR)
    x = {"left": torch.zeros(4, 3), "right": torch.zeros(4, 3)}
    seen = task.transformed(task.psi_space.initial(), x)
    assert not seen["left"].any() and seen["right"].all()


@pytest.mark.parametrize("hidden", [[8], [8, 4], []])
def test_lists_are_sequences(hidden: list[int]) -> None:
    config = ExperimentConfig.from_dict(
        {"model": "mlp", "model_options": {"hidden": hidden}, "hyperparameters": {"affine": None}}
    )
    assert len(
        [layer for layer in build_task(config, 3, (5,)).module if isinstance(layer, nn.Linear)]
    ) == 1 + len(hidden)
