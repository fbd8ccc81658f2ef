"""Targets that a likelihood cannot take are refused in one sentence, wherever they come from."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpart import ClientError, Dataset, Task, federate, fit, personalise
from fedpart.likelihoods import LIKELIHOODS, Ordinal, Poisson
from fedpart.likelihoods import MultiLabel as Labels
from fedpart.likelihoods import TokenClassification as Tokens

N, T, K = 6, 4, 3
CLASSES = torch.arange(N * T).view(N, T) % K


def changed(targets, *places, to):
    targets = targets.clone()
    for place in places:
        targets[place] = to
    return targets


ONES = (CLASSES == 0).long()
COUNTS = CLASSES[:, 0].float()
BAD = {
    "unlabelled": (Tokens(), changed(CLASSES, 1, 4, to=-100), "2 of 6 .* no labelled position; leave them"),
    "other unlabelled": (Tokens(ignored=0), changed(CLASSES, 1, to=0), "1 of 6 examples.* no labelled"),
    "first alone": (
        Tokens(shift=True),
        changed(CLASSES, (2, slice(1, None)), to=-100),
        "1 of 6 examples.* no labelled position behind the first",
    ),
    "negative": (Tokens(), changed(CLASSES, (3, 1), to=-1), "1 of 6 .* labels below 0; .* write -100 where"),
    "two": (Labels(), changed(ONES, (0, 1), (0, 2), (5, 1), to=2), "2 of 6 .* other than 0 and 1"),
    "minus one": (Labels(), changed(ONES, (0, 1), to=-1), "1 of 6 .* write 1 where a label applies"),
    "half": (Labels(), changed(ONES.float(), (0, 1), to=0.5), "1 of 6 .* other than 0 and 1"),
    "negative count": (Poisson(), changed(COUNTS, 2, to=-1.0), "1 of 6 .* no counts"),
    "fraction": (Poisson(), changed(COUNTS, 2, to=0.5), "1 of 6 .* no counts.* or use likelihood='gaussian'"),
    "grade": (Ordinal(2), CLASSES[:, 2], r"2 of 6 .* outside the 2 classes 0\.\.1"),
}
GOOD = {
    "tokens": (Tokens(), changed(CLASSES, (slice(None), slice(1, None)), to=-100)),
    "shifted": (Tokens(shift=True), changed(CLASSES, (slice(None), 0), to=-100)),
    "bool": (Labels(), ONES.bool()),
    "real": (Labels(), ONES.float()),
    "counts": (Poisson(), COUNTS),
    "grades": (Ordinal(K), CLASSES[:, 0]),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_counted(name):
    likelihood, targets, says = BAD[name]
    with pytest.raises(ValueError, match=says):
        likelihood.check(targets)
    with pytest.raises(ValueError, match="examples of the validation data have"):
        likelihood.check(targets, of=" of the validation data")


@pytest.mark.parametrize("name", GOOD)
def test_what_fits_passes(name):
    likelihood, targets = GOOD[name]
    likelihood.check(targets)
    likelihood.check(targets[:0])


def test_every_likelihood_takes_whatever_is_no_tensor_as_it_is():
    for make in LIKELIHOODS.values():
        likelihood = make(K) if make is Ordinal else make()
        likelihood.check({"labels": torch.full((N,), -7)})


def experiment(good, **options):
    """A task whose likelihood sees labels of whole examples, and the data."""
    task = Task(nn.Linear(2, K), likelihood=Labels(), samples=1)
    x = torch.rand(N, 2, generator=torch.Generator().manual_seed(0))
    targets = F.one_hot(CLASSES[:, 0], K)
    return task, Dataset(x, targets if good else changed(targets, 3, to=-1))


SAYS = "1 of 6 examples have targets other than 0 and 1"


@pytest.mark.parametrize("execution", ["loop", "fused", "vectorised"])
@pytest.mark.parametrize("evaluation", ["central", "clients"])
def test_every_execution_looks_at_a_shard(execution, evaluation):
    (task, bad), (_, good) = experiment(False), experiment(True)
    options = {"rounds": 1, "execution": execution, "evaluation": evaluation}
    with pytest.raises(ClientError, match=f"Client 1 failed in round 1: ValueError: {SAYS}"):
        federate(task, [good, bad, good], **options)
    federate(task, [good] * 3, **options)


def test_a_skipped_client_is_told_why_in_every_round():
    (task, bad), (_, good) = experiment(False), experiment(True)
    result = federate(task, [good, bad, good], rounds=2, on_client_error="skip")
    for report in result.metrics:
        [one] = report.skipped
        assert one["client"] == 1 and "other than 0 and 1" in one["reason"]


def test_examples_of_the_clients_own_are_looked_at_too():
    (task, bad), (_, good) = experiment(False), experiment(True)
    data = [Dataset(good.inputs, good.targets, evaluation=one) for one in (good, bad, good)]
    with pytest.raises(ClientError, match=f"Client 1 failed in round 1: ValueError: {SAYS}"):
        federate(task, data, rounds=1, evaluation="clients", evaluation_share=None)


def test_validation_data_are_looked_at_before_the_first_round():
    (task, bad), (_, good) = experiment(False), experiment(True)
    reports = []
    with pytest.raises(ValueError, match="examples of the validation data have targets other"):
        federate(task, [good] * 3, rounds=1, validation=bad, on_round=reports.append)
    with pytest.raises(ValueError, match="examples of the validation data have targets other"):
        fit(task, good, validation=bad, iterations=1, method="none")
    with pytest.raises(ValueError, match="examples of the training data have targets other"):
        fit(task, bad, iterations=1, method="none")
    assert reports == []


def test_evaluation_and_personal_networks_look_at_theirs():
    (task, bad), (_, good) = experiment(False), experiment(True)
    state = federate(task, [good] * 3, rounds=1).state
    with pytest.raises(ValueError, match=SAYS):
        state.evaluate(bad)
    with pytest.raises(ValueError, match=r"1 of . examples have targets other than 0 and 1"):
        personalise(state, bad)


def test_labels_of_tokens_beyond_the_outputs_are_counted():
    task = Task(nn.Embedding(5, K), likelihood=Tokens(), samples=1)
    x = torch.arange(N * T).view(N, T) % 5
    data, bad = Dataset(x, CLASSES), Dataset(x, changed(CLASSES, (2, 1), (2, 2), to=K))
    state = federate(task, [data] * 3, rounds=1).state
    with pytest.raises(ValueError, match=r"1 of 6 examples have labels outside the 3 classes 0\.\.2"):
        state.evaluate(bad)


def test_measures_that_cannot_be_computed_are_one_sentence():
    """torchmetrics knows no F1 of a single class."""
    task = Task(nn.Linear(2, 1), samples=1)
    data = Dataset(torch.rand(N, 2), torch.zeros(N, dtype=torch.int64))
    state = federate(task, [data] * 3, rounds=1, method="fedavg").state
    with pytest.raises(ValueError, match=r"measures of the classification likelihood cannot be .*; leave"):
        state.evaluate(data, measures=True)
    assert state.evaluate(data)["accuracy"] == 1
