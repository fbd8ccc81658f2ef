"""The diagonal Laplace evidence of a network in training is that of its network and data."""

import pytest
from evidences import five_inputs, of_five_inputs

from fedpart import AdamSettings, AdamWSettings, Dataset, FixedMask, Task, Training, TrainingSettings
from fedpart.centralised.scores import laplace_evidence
from fedpart.methods.evidence.laplace import diagonal_laplace


def plain(task, data, **settings):
    options = {"method": "none", "method_options": {"augment": True}, **settings}
    state = Training(task, data, TrainingSettings(**options))
    for _ in range(5):
        state.step()
    return state


@pytest.mark.parametrize(
    "settings, precision",
    [
        ({"weight_decay": 0.01}, 0.6),  # decay of the mean loss times 60 examples
        ({}, "optimised"),
        ({"weight_decay": 0.01, "optimiser": AdamWSettings(0.01)}, "optimised"),
        ({"weight_decay": 0.02, "optimiser": AdamSettings(0.01)}, 1.2),
    ],
)
def test_the_evidence_of_a_training_is_that_of_its_network(settings, precision):
    data, linear, mask = five_inputs(), of_five_inputs(), FixedMask(5, 3)
    state = plain(Task(linear, transforms=[mask], samples=1), data, **settings)
    seen = Dataset(mask(data.inputs), data.targets)
    expected = diagonal_laplace(state.module(), seen, precision).log_marginal_likelihood
    assert laplace_evidence(state) == pytest.approx(expected, rel=1e-9)


def test_weights_that_are_hyperparameters_have_no_prior():
    data, linear = five_inputs(), of_five_inputs()
    state = plain(Task(linear, hyperparameters=["bias"], samples=1), data, weight_decay=0.01)
    module = state.module()
    module.bias.requires_grad_(False)
    expected = diagonal_laplace(module, data, 0.6).log_marginal_likelihood
    assert laplace_evidence(state) == pytest.approx(expected, rel=1e-9)
