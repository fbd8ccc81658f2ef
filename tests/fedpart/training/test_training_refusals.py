"""Settings and checkpoints that make no sense, and slips of people who come from other libraries."""

import re
import warnings
from functools import partial

import numpy as np
import pytest
import refusals
import torch
from problems import Shift, augmentation, chain_net, shards
from torch import nn

from fedpart import (
    AdamSettings,
    AdamWSettings,
    ClientError,
    ConcreteDropout,
    Dataset,
    FederationSettings,
    LocalSettings,
    SGDSettings,
    Task,
    federate,
    fit,
)
from fedpart.training.optimisers import SlicedOptimiser

SETTINGS = [
    ({"local": {"lr": 1.0}}, "no setting 'lr' in local: did you mean 'learning_rate'"),
    ({"local": 5}, r"local is one of LocalSettings\(...\), or a mapping of its settings, got 5"),
    ({"local": None}, "local is one of"),
    ({"clip": "adaptve"}, "clip is one of .*ClipSettings"),
    ({"local": {"epochs": 0}}, "local does not fit: epochs is at least 1, got 0"),
    ({"server": {"name": "adamw"}}, "server is one of adam, sgd, got the name 'adamw'"),
    ({"privacy": {}}, "privacy does not fit: .*noise_multiplier"),
    ({"seed": "a"}, "seed is a whole number and at least 0, got 'a'"),
    ({"cohort": 2.0}, "cohort is a whole number and at least 1, got 2.0"),
    ({"deadline": "soon"}, "deadline is a number and above 0, got 'soon'"),
    ({"min_replies": None}, "min_replies is a whole number"),
]


def test_steps_that_do_not_fit_their_slice():
    vector = torch.zeros(5)
    sliced = SlicedOptimiser(vector, [slice(0, 3), slice(3, 5)], AdamSettings())
    shape = r"takes a gradient \[3\] of torch.float32, .* got {}"
    decays = partial(SlicedOptimiser, vector, [slice(0, 5)], SGDSettings(), [0.1, 0.2])
    rows = [
        ("short", partial(sliced.step, 0, torch.ones(2)), shape.format(r"\[2\]")),
        ("one number", partial(sliced.step, 0, torch.ones(1)), shape.format(r"\[1\]")),
        ("double", partial(sliced.step, 0, torch.ones(3).double()), "float64"),
        ("decays", decays, "1 slices need as many weight decays, got 2"),
    ]
    refusals.check((what, call, ValueError, says) for what, call, says in rows)
    assert not vector.any()


def test_settings():
    optimisers = [
        (lambda: SGDSettings(0.0), "learning_rate is above 0, got 0.0"),
        (lambda: SGDSettings(momentum=1.0), "momentum is at least 0 and below 1"),
        (lambda: AdamSettings(-1.0), "learning_rate is above 0, got -1.0"),
        (lambda: AdamWSettings(eps=0.0), "eps is above 0"),
        (lambda: AdamSettings(betas=(0.9, 1.0)), r"betas are two numbers.*got \(0.9, 1.0\)"),
    ]
    calls = [(partial(FederationSettings, **changes), says) for changes, says in SETTINGS]
    refusals.check((says, call, ValueError, says) for call, says in calls + optimisers)


def run(rounds, path, task=None, **changes):
    task = task or Task(chain_net(), transforms=[augmentation()], samples=2)
    common = {"chunks": (0.5, 0.3, 0.2), "cohort": 3, "seed": 6, "local": LocalSettings(batch_size=4)}
    data = shards([4, 7, 3, 9, 5, 6, 2, 8])
    federate(task, data, rounds=rounds, checkpoint=path, **{**common, **changes})


def test_checkpoints_of_another_configuration(tmp_path):
    path = tmp_path / "run.pt"
    run(1, path)
    before = path.read_bytes()
    rows = [
        ({"seed": 7}, "seed was 6, is 7"),
        ({"cohort": 4}, "cohort was 3, is 4"),
        ({"local": LocalSettings(0.1, 4)}, "local was .*'learning_rate': 0.05.* is .*'learning_rate': 0.1"),
        ({"method": "fedavg"}, "method was 'partitioned', is 'fedavg'"),
        ({"task": Task(chain_net(), transforms=[augmentation()])}, "samples was 2, is 10"),
        ({"task": Task(chain_net(seed=1), transforms=[augmentation()], samples=2)}, "default values"),
    ]
    another = "belongs to another configuration.*{}.*Resume with"
    told = [(changes, another.format(says)) for changes, says in rows]
    refusals.check_keywords(partial(run, 5, path, resume=True), told)
    new = "exists already; pass resume=True"
    refusals.check([("a new run", partial(run, 5, path), ValueError, rf"run\.pt {new}")])
    assert path.read_bytes() == before


def test_files_that_are_no_checkpoints(tmp_path):
    folders = {name: tmp_path / name for name in ("empty", "text", "other", "torn")}
    paths = {name: folder / "run.pt" for name, folder in folders.items()}
    run(1, paths["torn"])
    for name in ("empty", "text", "other"):
        folders[name].mkdir()
    paths["empty"].write_bytes(b"")
    paths["text"].write_bytes(b"not a checkpoint")
    torch.save({"epoch": 3}, paths["other"])
    paths["torn"].write_bytes(paths["torn"].read_bytes()[:-200])
    unread = r"run\.pt cannot be read"
    refusals.check(
        (name, partial(run, 5, path, resume=True), ValueError, f"{unread} .*start the run anew")
        for name, path in paths.items()
    )


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


def test_a_loss_that_is_not_finite_names_the_rate_and_fit_its_settings():
    with pytest.raises(ClientError, match=r"local.learning_rate 1e\+30"):
        federated(local={"learning_rate": 1e30, "epochs": 9, "batch_size": 2}, rounds=5)
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


@pytest.mark.parametrize(
    ("layer", "way"),
    [
        (nn.Identity(), r"to learn: put in a ConcreteDropout layer, or transforms="),
        (nn.Dropout(), r"to learn: Task\(network, learn_dropout=True\) learns the rate"),
        (
            ConcreteDropout(0.2).requires_grad_(False),
            r"to learn: call requires_grad_\(\) on those that",
        ),
    ],
)
def test_a_network_that_learns_no_psi_is_told_what_would(layer, way, capsys):
    net = nn.Sequential(nn.Flatten(), layer, nn.Linear(X[0].numel(), 2))
    federate(Task(net), [(X, Y)] * 3, rounds=1, chunks=(0.5, 0.5), cohort=3)
    assert re.search(way, capsys.readouterr().out)


class Unused(nn.Sequential):
    """Has a hyperparameter, which its pass does not use, beside one that it does."""

    def __init__(self):
        super().__init__(nn.Flatten(), ConcreteDropout(0.2), nn.Linear(X[0].numel(), 2))
        self.spare = ConcreteDropout(0.3)

    def forward(self, x):
        return self[2](self[1](self[0](x)))


def apart(method):
    return federate(Task(Unused()), [(X, Y)] * 3, rounds=10, method=method, chunks=(0.5, 0.5), cohort=3)


def together(method):
    return fit(Task(Unused()), (X, Y), iterations=10, chunks=(0.5, 0.5), method=method, psi_every=1)


@pytest.mark.parametrize(
    ("train", "method"),
    [(apart, "partitioned"), (apart, "fedavg"), (together, "partitioned"), (together, "none")],
)
def test_what_no_gradient_reaches_is_told_of_what_is_learned(train, method, recwarn):
    result, learns = train(method), method == "partitioned"
    assert result.state.unreached() == ["spare.logit"] * learns
    told = [str(warning.message) for warning in recwarn if "no gradient" in str(warning.message)]
    assert len(told) == learns and all(text.startswith("spare.logit: ") for text in told)


def test_what_a_method_does_not_learn_or_a_branch_that_begins_at_0_is_not_told(recwarn):
    images = Dataset(torch.rand(12, 1, 6, 6), torch.arange(12) % 3)
    task = Task(chain_net(), transforms=[augmentation()], samples=2)  # its dropout is not Augerino's
    result = federate(task, [images] * 3, rounds=11, method="augerino", cohort=3)
    assert (
        result.state.learned == [*task.transform_psi]
        and result.state.optimiser_psi.state_dict()[0]["step"] > 9
    )

    class Branch(Unused):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return self[2](self[1](self[0](x))) + self.scale * self.spare(self[0](x)).sum(1, keepdim=True)

    assert federate(Task(Branch()), [(X, Y)] * 3, rounds=11, chunks=(0.5, 0.5)).state.unreached() == []
    federate(Task(Unused()), [(X, Y)] * 3, rounds=2, chunks=(0.5, 0.5), cohort=3)
    assert not [warning for warning in recwarn if "no gradient" in str(warning.message)]


class Told(Shift):
    def __init__(self, said):
        super().__init__()
        self.said = said

    def physical(self):
        return {"amount": self.said(self)}


@pytest.mark.parametrize("said", [lambda told: "wide", lambda told: None, lambda told: torch.ones(2)])
@pytest.mark.parametrize("train", [federate, fit])
def test_a_physical_value_that_is_no_number_is_told_before_anything_is_trained(said, train):
    data = (X, Y) if train is fit else [(X, Y)] * 3
    options = {"iterations": 3} if train is fit else {"rounds": 3}
    with pytest.raises(ValueError, match=r"Told.physical\(\) has no number for 'amount' but a .*\.item\(\)"):
        train(Task(Unused(), transforms=[Told(said)]), data, chunks=(0.5, 0.5), **options)


@pytest.mark.parametrize("said", [lambda told: told.amount, lambda told: np.float32(0.5)])
def test_what_has_one_number_is_one(said):
    task = Task(Unused(), transforms=[Told(said)], samples=2)
    warnings.simplefilter("error")
    assert task.physical(task.psi_space.initial())["told.amount"] == 0.5
    assert type(task.physical(task.psi_space.initial())["told.amount"]) is float


def test_reports_print_as_a_short_line():
    report = federated().metrics[-1]
    assert str(report) == f"round 1: loss {report.train_loss:.3f}"
    centralised = fit(network(), (X, Y), iterations=1, evaluate_every=1, chunks=(0.5, 0.5), method="none")
    assert str(centralised.metrics[-1]).startswith("iteration 1: loss ")
