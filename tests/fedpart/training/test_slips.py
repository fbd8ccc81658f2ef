"""Slips of people who come from other libraries: each is told in a sentence, with what was meant."""

import pytest
import torch
from torch import nn

from fedpart import ClientError, Task, federate, fit

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def network(outputs=2):
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, outputs))


def federated(targets=Y, net=None, **changes):
    clients = [(X[i::3], targets[i::3]) for i in range(3)]
    return federate(
        net or network(), clients, **{"rounds": 1, "method": "fedavg", "chunks": (1.0,), **changes}
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lr": 0.1}, r"did you mean local=\{'learning_rate': \.\.\.\} or server=\{'learning_rate'"),
        ({"batch_size": 8}, r"did you mean local=\{'batch_size': \.\.\.\}\?"),
        ({"epochs": 2}, r"did you mean local=\{'epochs': \.\.\.\}\?"),
        ({"num_rounds": 3}, "did you mean 'rounds'"),
        ({"device": "gpu"}, r"The device 'gpu' cannot be used \(.*\); set device: cpu"),
        ({"targets": Y + 1}, "classes begin at 0, but labels at 1: write targets - 1"),
        ({"targets": Y[:, None]}, r"targets.flatten\(\).long\(\)"),
    ],
)
def test_settings_and_data(changes, said):
    with pytest.raises(ValueError, match=said):
        federated(**changes)


def test_a_loss_that_is_not_finite_names_the_rate():
    with pytest.raises(ClientError, match=r"local.learning_rate 1e\+30"):
        federated(local={"learning_rate": 1e30, "epochs": 9, "batch_size": 2}, rounds=5)


def test_settings_of_fit():
    with pytest.raises(ValueError, match=r"did you mean optimiser=\{'learning_rate': \.\.\.\}"):
        fit(network(), (X, Y), lr=0.1)


@pytest.mark.parametrize(
    ("likelihood", "meant"),
    [
        ("mse", "gaussian"),
        ("cross_entropy", "classification"),
        ("bce", "multilabel"),
        (nn.CrossEntropyLoss(), "classification"),
        (nn.CrossEntropyLoss, "classification"),
        (nn.MSELoss(), "gaussian"),
        (nn.BCEWithLogitsLoss(), "multilabel"),
    ],
)
def test_losses_of_torch_have_names_here(likelihood, meant):
    with pytest.raises(ValueError, match=f"'{meant}'"):
        Task(network(), likelihood=likelihood)


@pytest.mark.parametrize("call", [federated, lambda net: fit(net, (X, Y), iterations=1, chunks=(0.5, 0.5))])
def test_more_outputs_than_classes_are_remarked(call, recwarn):
    call(net=network())
    assert not recwarn
    with pytest.warns(RuntimeWarning, match=r"7 outputs, and the labels name 2 classes, 0\.\.1"):
        call(net=network(7))


def test_reports_print_as_a_short_line():
    report = federated().metrics[-1]
    assert str(report) == f"round 1: loss {report.train_loss:.3f}"
    centralised = fit(network(), (X, Y), iterations=1, evaluate_every=1, chunks=(0.5, 0.5), method="none")
    assert str(centralised.metrics[-1]).startswith("iteration 1: loss ")
