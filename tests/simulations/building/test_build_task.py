"""From a configuration's sections to the task: where transforms act, and what builders are given."""

from pathlib import Path

import pytest
import torch
from tiny import tiny_file
from torch import nn

from simulations.building.experiment import build
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


def test_a_part_of_one_tensor_is_refused(tmp_path: Path) -> None:
    options = {"affine": None, "transforms": [{"use": "noise", "part": "image"}]}
    experiment = build(load_config(tiny_file(tmp_path, model="mlp", hyperparameters=options)))
    x = experiment.test.inputs[:2]
    with pytest.raises(ValueError, match=r"cannot act on a part 'image' of them; .* its key `part`\.$"):
        experiment.task.transformed(experiment.task.psi_space.initial(), x)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"hyperparameters": [{"use": "flip"}, {"use": "noise", "options": {"std": "0.1"}}]},
            r"^hyperparameters\.transforms\[1\]\.options\.std cannot be '0\.1'; for the transform 'noise' it "
            r"should be a valid number\.$",
        ),
        (
            {"hyperparameters": [{"use": "blur", "options": {"kernel_size": 9.0}}]},
            r"options\.kernel_size cannot be 9\.0; .* a valid integer",
        ),
        (
            {"hyperparameters": [{"use": "test_build_task:brittle", "options": {"by": 2}}]},
            r"^The transform 'test_build_task:brittle' cannot be made: .*NoneType.*; check hyperp.*\[0\]",
        ),
        (
            {"model": "frozen_resnet"},
            r"^model_options\.weights is missing, and the model 'frozen_resnet' needs it \(str\); set it\.",
        ),
        ({"model": "mlp", "model_options": {"hidden": 8}}, r"model_options\.hidden cannot be 8; .*mlp"),
        (
            {"likelihood": "gaussian", "likelihood_options": {"learned": "yes"}},
            r"likelihood_options\.learned cannot be 'yes'; for the likelihood 'gaussian' .*boolean",
        ),
    ],
)
def test_an_option_that_does_not_fit_names_its_key(changes: dict[str, object], message: str) -> None:
    hyperparameters = {"affine": None, "transforms": changes.pop("hyperparameters", [])}
    config = ExperimentConfig.from_dict({"hyperparameters": hyperparameters, **changes})
    with pytest.raises(ValueError, match=message):
        build_task(config, 3, (1, 8, 8))


def brittle(by: int) -> None:
    """Breaks in a way of its own."""
    return None + by  # type: ignore[operator]


@pytest.mark.parametrize("hidden", [[8], [8, 4], []])
def test_lists_are_sequences(hidden: list[int]) -> None:
    config = ExperimentConfig.from_dict(
        {"model": "mlp", "model_options": {"hidden": hidden}, "hyperparameters": {"affine": None}}
    )
    assert len(
        [layer for layer in build_task(config, 3, (5,)).module if isinstance(layer, nn.Linear)]
    ) == 1 + len(hidden)


@pytest.mark.parametrize("model", ["mlp", "digits_cnn", "resnet9"])
def test_a_model_of_one_tensor_refuses_inputs_of_parts(model: str) -> None:
    config = ExperimentConfig.from_dict({"model": model, "hyperparameters": {"affine": None}})
    with pytest.raises(ValueError, match=rf"^The model '{model}' takes inputs of one shape, .*int.*'left'"):
        build_task(config, 3, PAIR)
