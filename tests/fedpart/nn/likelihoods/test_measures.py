"""F1, calibration error, perplexity, RMSE and mean absolute error, by hand; and evaluate(measures=True)."""

import math

import pytest
import torch
from torch import nn

from fedpart import Dataset, Task, federate
from fedpart.nn.likelihoods import Classification, Gaussian, MultiLabel, Ordinal, Poisson
from fedpart.nn.likelihoods import EnsembleClassification as Members
from fedpart.nn.likelihoods import TokenClassification as Tokens
from fedpart.nn.likelihoods.base import FromModel

N, K, T, BINS = 60, 3, 4, 15


def random_logits(*shape):
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def random_classes(*shape, classes=K):
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(1))


def f1(predicted, wanted):
    both = (predicted & wanted).sum().item()
    return 2 * both / (predicted.sum().item() + wanted.sum().item())


def calibration_error(p, targets):
    """Mean over bins of |share that is right - mean confidence|, by the bins' numbers of examples."""
    confidence, chosen = p.max(1)
    right, bins = (chosen == targets).float(), (confidence * BINS).ceil().long() - 1
    inside = [bins == b for b in range(BINS)]
    gaps = [abs(right[i].sum() - confidence[i].sum()).item() for i in inside]
    return sum(gaps) / len(targets)


@pytest.mark.parametrize("smoothing", [None, 0.3])
def test_classification(smoothing):
    logits, y = random_logits(N, K), random_classes(N)
    p = (1 - (smoothing or 0)) * logits.softmax(1) + (smoothing or 0) / K
    chosen = p.argmax(1)
    with torch.no_grad():
        found = Classification(label_smoothing=smoothing).measures(logits, y)
    assert found["f1"] == pytest.approx(sum(f1(chosen == k, y == k) for k in range(K)) / K, rel=1e-5)
    assert found["calibration_error"] == pytest.approx(calibration_error(p, y), rel=1e-4)
    assert found.keys() == {"f1", "calibration_error"}


@pytest.mark.parametrize("smoothing", [None, 0.3])
def test_an_ensemble_is_measured_by_its_averaged_probabilities(smoothing):
    """One member as classification is; of several, what classification makes of the mean."""
    logits, y = random_logits(N, 4, K), random_classes(N)
    one, ends = Classification(label_smoothing=smoothing), Members(label_smoothing=smoothing)
    with torch.no_grad():
        alone = one.measures(logits[:, 0], y)
        assert ends.measures(logits[:, :1], y) == pytest.approx(alone, abs=1e-6)
        mean = ends.mean_log_p(logits)
        found, wanted = ends.measures(logits, y), Classification().measures(mean, y)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-6)
    assert found["diversity"] > 0


@pytest.mark.parametrize("average", ["log_probabilities", "probabilities"])
def test_averaged_log_probabilities_are_measured_as_such(average):
    logits, y = random_logits(N, 2, K), random_classes(N)
    likelihood = Classification()
    likelihood.average = average
    p = logits.softmax(2).mean(1)
    if average == "log_probabilities":
        p = logits.log_softmax(2).mean(1).softmax(1)
    found = likelihood.measures(likelihood.over_samples(logits), y)
    assert found["calibration_error"] == pytest.approx(calibration_error(p, y), rel=1e-4)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("smoothing", [None, 0.3])
def test_perplexity_is_of_the_positions_that_have_a_class(shift, smoothing):
    logits, y = random_logits(N, T, K), random_classes(N, T)
    y[::2, 1] = -100
    likelihood = Tokens(shift, label_smoothing=smoothing)
    with torch.no_grad():
        nll, found = likelihood(logits, y), likelihood.measures(logits, y)
        known = (y[:, 1:] if shift else y).ne(-100).sum(1)
    expected = math.exp((nll * known).sum() / known.sum())
    assert found == {"perplexity": pytest.approx(expected, rel=1e-5)}


@pytest.mark.parametrize("labels", [1, 3])
def test_multilabel(labels):
    logits, y = random_logits(N, labels), random_classes(N, labels, classes=2)
    expected = sum(f1(logits[:, k] > 0, y[:, k] == 1) for k in range(labels)) / labels
    for targets in (y, y.bool(), y.float()):
        assert MultiLabel().measures(logits, targets) == {"f1": pytest.approx(expected, rel=1e-5)}
    assert MultiLabel().hits(logits, y).mean() == pytest.approx(((logits > 0) == y).float().mean().item())


def errors(predicted, wanted):
    difference = predicted.reshape(-1) - wanted.reshape(-1)
    rmse, mae = difference.square().mean().sqrt().item(), difference.abs().mean().item()
    return {"rmse": pytest.approx(rmse, rel=1e-5), "mae": pytest.approx(mae, rel=1e-5)}


def test_errors_of_numbers_and_those_of_ordered_classes_in_classes():
    outputs, counts = random_logits(N, 1), random_classes(N)
    assert Gaussian().measures(outputs, counts.float()) == errors(outputs, counts)
    assert Poisson().measures(outputs, counts) == errors(outputs.exp(), counts)
    beyond = Gaussian().measures(torch.tensor([[3e30], [0.0]]), torch.zeros(2))  # float32, when squared
    assert beyond == {"rmse": pytest.approx(3e30 / 2**0.5), "mae": pytest.approx(1.5e30)}
    likelihood, outputs, y = Ordinal(K), random_logits(N, 1), random_classes(N)
    below, above = likelihood.cut_points().tolist()
    predicted = torch.tensor([(f > below) + (f > above) for f in outputs[:, 0].tolist()])
    assert likelihood.measures(outputs, y) == errors(predicted.float(), y)
    assert torch.equal(likelihood.hits(outputs, y), predicted == y)


def test_a_network_with_a_loss_of_its_own_is_measured_by_its_accuracy_alone():
    logits, y = random_logits(N, K), random_classes(N)
    assert FromModel().measures(logits, y) == {}
    assert torch.equal(FromModel().hits(logits, y), logits.argmax(1) == y)
    assert FromModel().hits(logits, y.float()) is None


@pytest.mark.parametrize(
    "likelihood, outputs, targets",
    [
        (Classification(temperature=1.5, label_smoothing=0.1), K, random_classes(N)),
        (MultiLabel(), K, random_classes(N, K, classes=2)),
        (Gaussian(learned=True), 1, random_logits(N)),
        (Poisson(), 1, random_classes(N)),
        (Ordinal(K), 1, random_classes(N)),
    ],
)
def test_evaluate_adds_them_under_the_psi_that_was_learned(likelihood, outputs, targets):
    data = Dataset(random_logits(N, 4), targets)
    task = Task(nn.Linear(4, outputs), likelihood=likelihood, samples=1)
    shards = [data.subset(range(i, N, 3)) for i in range(3)]
    state = federate(task, shards, rounds=2, chunks=(0.6, 0.4)).state
    plain, found = state.evaluate(data), state.evaluate(data, measures=True)
    tensors = state.tensors(None)
    with torch.no_grad():
        predicted = task.outputs(tensors, state.psi, data.inputs, None, dropout=False)
        with task.likelihood_at(state.psi) as learned:
            expected = learned.measures(predicted, data.targets)
    assert expected and found == pytest.approx(plain | expected)
