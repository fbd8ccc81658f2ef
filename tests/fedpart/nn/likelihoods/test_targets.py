"""Targets that a likelihood cannot take are refused in one sentence, wherever they come from."""

from collections import UserList as Lazy
from functools import partial

import pytest
import refusals
import torch
from torch import nn
from torch.nn import functional as F

from fedpart import ClientError, Dataset, Task, TrainingError, federate, fit, personalise
from fedpart.nn.likelihoods import LIKELIHOODS, Classification, Likelihood, Ordinal, Poisson
from fedpart.nn.likelihoods import MultiLabel as Labels
from fedpart.nn.likelihoods import TokenClassification as Tokens

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


def test_what_does_not_fit_is_counted():
    rows = [(name, likelihood.check, targets, says) for name, (likelihood, targets, says) in BAD.items()]
    of = {"of": " of the validation data"}
    told = "examples of the validation data have"
    refusals.check((name, partial(check, targets), says) for name, check, targets, says in rows)
    refusals.check((name, partial(check, targets, **of), told) for name, check, targets, _ in rows)
    for likelihood, targets in GOOD.values():
        likelihood.check(targets)
        likelihood.check(targets[:0])
    for make in LIKELIHOODS.values():  # whatever is no tensor is taken as it is
        likelihood = make(K) if make is Ordinal else make()
        likelihood.check({"labels": torch.full((N,), -7)})


def experiment(good, **options):
    """A task whose likelihood sees labels of whole examples, and the data."""
    task = Task(nn.Linear(2, K), likelihood=Labels(), samples=1)
    x = torch.rand(N, 2, generator=torch.Generator().manual_seed(0))
    targets = F.one_hot(CLASSES[:, 0], K)
    return task, Dataset(x, targets if good else changed(targets, 3, to=-1))


SAYS = "1 of 6 examples have targets other than 0 and 1"


def test_every_execution_looks_at_a_shard():
    (task, bad), (_, good) = experiment(False), experiment(True)
    ways = [("loop", "central"), ("loop", "clients"), ("fused", "central"), ("grouped", "clients")]
    calls = [partial(federate, task, rounds=1, execution=how, evaluation=place) for how, place in ways]
    says = f"Client 1 failed in round 1: ValueError: {SAYS}"
    before = f"The data of client 1 do not fit: {SAYS}"
    refusals.check(
        (f"{way}, {kind.__name__}", partial(call, kind([good, bad, good])), error, message)
        for way, call in zip(ways, calls, strict=True)
        for kind, error, message in ((Lazy, ClientError, says), (list, ValueError, before))
    )
    for call in calls:
        call([good] * 3)
    for report in federate(task, [good, bad, good], rounds=2, on_client_error="skip").metrics:
        [one] = report.skipped
        assert one["client"] == 1 and "other than 0 and 1" in one["reason"]


def test_all_other_data_are_looked_at_too():
    (task, bad), (_, good) = experiment(False), experiment(True)
    data = [Dataset(good.inputs, good.targets, evaluation=shard) for shard in (good, bad, good)]
    clients = {"rounds": 1, "evaluation": "clients", "evaluation_share": None}
    state, reports = federate(task, [good] * 3, rounds=1).state, []
    before = partial(federate, task, [good] * 3, rounds=1, validation=bad, on_round=reports.append)
    tokens = Task(nn.Embedding(5, K), likelihood=Tokens(), samples=1)
    x = torch.arange(N * T).view(N, T) % 5
    read = federate(tokens, [Dataset(x, CLASSES)] * 3, rounds=1).state
    beyond = Dataset(x, changed(CLASSES, (2, 1), (2, 2), to=K))
    fitted = partial(fit, task, iterations=1, method="none")
    says = "targets other than 0 and 1"
    outside = r"1 of 6 examples of the evaluation data have labels outside the 3 classes 0\.\.2"
    client = f"The data of client 1 do not fit: {SAYS}"
    refusals.check(
        [
            ("a client's own examples", lambda: federate(task, data, **clients), client),
            ("before the first round", before, f"examples of the validation data have {says}"),
            ("fit", lambda: fitted(bad), f"examples of the training data have {says}"),
            ("validation", lambda: fitted(good, validation=bad), f"of the validation data have {says}"),
            ("evaluation", lambda: state.evaluate(bad), SAYS),
            ("a personal network", lambda: personalise(state, bad), f"1 of . examples have {says}"),
            ("labels of tokens", lambda: read.evaluate(beyond), outside),
        ]
    )
    assert reports == []


def test_measures_that_cannot_be_computed_are_one_sentence():
    """torchmetrics knows no F1 of a single class."""
    task = Task(nn.Linear(2, 1), samples=1)
    data = Dataset(torch.rand(N, 2), torch.zeros(N, dtype=torch.int64))
    state = federate(task, [data] * 3, rounds=1, method="fedavg").state
    with pytest.raises(ValueError, match=r"measures of the classification likelihood cannot be .*; leave"):
        state.evaluate(data, measures=True)
    assert state.evaluate(data)["accuracy"] == 1


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"half": torch.tensor(0.5)}, None),
        (
            {"each": torch.ones(2)},
            r"measures of the .* cannot be computed \(each .*[oO]ne element.*\); leave",
        ),
        ({"word": "good"}, r"\(word could not convert string to float"),
        ({"nll": 0.5}, r"\(nll is the name of a score of every run; change it"),
        ({"half": 0.5, "accuracy": 1.0}, r"\(accuracy is the name"),
    ],
)
def test_measures_of_ones_own_are_numbers_with_names_of_their_own(own, says):
    class Own(Classification):
        def measures(self, outputs, targets):
            return own

    data = Dataset(torch.rand(N, 2), torch.zeros(N, dtype=torch.int64))
    state = federate(Task(nn.Linear(2, 2), likelihood=Own()), [data] * 3, rounds=1, method="fedavg").state
    if says is None:
        scores = state.evaluate(data, measures=True)
        assert scores == {**state.evaluate(data), "half": 0.5} and type(scores["half"]) is float
    else:
        with pytest.raises(ValueError, match=says):
            state.evaluate(data, measures=True)


def test_a_loss_that_holds_each_example_against_all_is_refused_and_others_are_not():
    x = torch.randn(12, 3)
    data, line = (x, x.sum(1)), nn.Linear(3, 1)
    mixed = {
        "[B, B]": lambda o, t: (o - t).square().mean(-1),
        "functional": lambda o, t: nn.functional.mse_loss(o, t, reduction="none").sum(1),
    }

    class Mixed(Likelihood):
        def forward(self, outputs, targets):
            return (outputs - targets).square().mean(-1)

    mixed["a class"] = Mixed()
    mixed["three tensors"] = lambda o, t: F.gaussian_nll_loss(o, t, o.exp(), reduction="none").sum(1)
    apart = {
        "column": lambda o, t: (o[:, 0] - t).square(),
        "random": lambda o, t: (o[:, 0] - t).square() * torch.rand(len(t)),
        "a grid": lambda o, t: F.softplus(o - torch.linspace(-1, 1, 4)).mean(1) + (o[:, 0] - t).square(),
        "ranks": lambda o, t: ((o - o.T) * (t[:, None] - t)).sigmoid().mean(1),
        "squeezed": lambda o, t: F.binary_cross_entropy_with_logits(
            o.squeeze(), (t > 0).float(), reduction="none"
        ),
    }
    for loss in mixed.values():
        for train in (
            lambda task: fit(task, data, method="none", iterations=2, batch_size=4),
            lambda task: federate(task, [data, data], method="fedavg", rounds=1),
        ):
            with pytest.raises(
                (ClientError, TrainingError),
                match=r"against all, .* outputs\[:, 0\]",
            ):
                train(Task(line, likelihood=loss, samples=1))
    skipping = {"method": "fedavg", "rounds": 2, "on_client_error": "skip"}
    for reports in (
        federate(Task(line, likelihood=mixed["[B, B]"], samples=1), [data] * 3, **skipping).metrics,
    ):
        assert [len(report.skipped) for report in reports] == [3, 3], "nobody trains on it"
    for loss in apart.values():
        fit(Task(line, likelihood=loss, samples=1), data, method="none", iterations=2, batch_size=4)


def test_one_yes_or_no_of_a_network_without_a_second_dimension():
    x = torch.randn(12, 3)
    data, flat = (x, (x[:, 0] > 0).float()), nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    for net in (flat, nn.Linear(3, 1)):
        with pytest.raises(
            (ValueError, TrainingError), match=r"targets\[:, None\], and a network that ends in Linear"
        ):
            fit(
                Task(net, likelihood="multilabel", samples=1), data, method="none", iterations=2, batch_size=4
            )


def test_whole_numbers_that_float32_rounds_are_refused_as_targets():
    seconds = torch.tensor([1_700_000_000, 1_700_000_001, 1_700_000_060])
    task = Task(nn.Linear(1, 1), likelihood="gaussian", samples=1)
    with pytest.raises(ValueError, match="float32"):
        fit(task, (torch.ones(3, 1), seconds[:, None]), method="none", iterations=1, batch_size=3)
