"""What methods refuse: options, networks, and settings of the run that they cannot work with."""

import dataclasses
import math
from functools import partial

import refusals
import torch
from evidences import draws, five_inputs, of_five_inputs, training, weights
from problems import augmentation, chain_net, settings, shards, smooth_net
from tiny import tiny
from torch import nn

from fedpart import (
    AdamSettings,
    Batch,
    ClipSettings,
    ConcreteMask,
    Dataset,
    FixedMask,
    HyperModule,
    LocalSettings,
    PrivacySettings,
    Protocol,
    SGDSettings,
    Task,
    TrainingError,
    federate,
)
from fedpart.methods.augerino import Augerino
from fedpart.methods.evidence import estimates
from fedpart.methods.evidence.estimates import Kfac, LastLayer
from fedpart.methods.evidence.laplace import diagonal_laplace, optimal_precision
from fedpart.methods.partitioned import ValidationSet
from fedpart.partition.nodes import rolled
from fedpart.partition.space import ParameterSpace
from simulations.config.load import ConfigError

SIZES = [10, 7, 1, 12, 5, 2]
FEDEX = [
    ({"arms": {"dropout": []}}, "need a list of values for dropout, at least one"),
    ({"arms": {"dropout": [0.1, 0.1]}}, "differ from one another, but two are dropout=10%"),
    ({"arms": {"dropout": [0.0, 0.1]}}, "drop rates lie strictly between 0 and 1, got 0.0"),
    ({"arms": {"dropout": [0.1, 1.0]}}, "drop rates lie strictly between 0 and 1, got 1.0"),
    ({"arms": {}}, "a mapping from keys to lists of values"),
    ({"arms": [0.1]}, "is a mapping such as"),
    ({"arms": [{"learning_rate": 0}]}, "cannot set learning_rate to 0: learning_rate is above 0"),
    ({"arms": {"psi_batch": [1, 2]}}, "set learning_rate, momentum, .*, but not 'psi_batch'"),
    ({"arms": {"epochs": [1, 1.5]}}, "need whole numbers for epochs, got 1.5"),
    ({"arms": [{"momentum": 1.0}, {}]}, "cannot set momentum to 1.0: momentum is .* below 1"),
    ({"arms": 0}, "at least one arm"),
    ({"arms": 3, "eps": 2.0}, "eps lies above 0"),
    ({"arms": 3, "space": [0.5, 0.1]}, "space is a mapping with at least one key"),
    ({"arms": [{}, {}]}, "differ from one another, but two are own"),
    ({"arms": 3, "space": {"momentum": [0.5, 0.1]}}, "a low end below the high one for momentum"),
    ({"arms": [{}], "space": {"momentum": [0, 0.9]}}, "give a number as arms, or leave space out"),
    ({"held_out": 1.0}, "FedEx's held_out lies strictly between 0 and 1, got 1.0"),
    ({"score": "f1"}, "FedEx's score is error or loss, got 'f1'"),
    ({"schedule": "fast"}, "one of aggressive, adaptive, auto, constant, scale, got 'fast'"),
    ({"discount": -0.1}, "FedEx's discount lies between 0 and 1"),
    ({"cutoff": 1.2}, "below 1.1, the entropy of the arms"),
    ({"arm": [0.1]}, "does not take the options"),
    ({"held_out": "much"}, "cannot be made with the options"),
]


def fedex(network=chain_net, options=None, **of_task):
    arms = {"arms": {"dropout": [0.05, 0.1, 0.3]}, **(options or {})}
    task = Task(network(), samples=2, **of_task)
    return Protocol(task, settings(6, method="fedex", method_options=arms))


def test_options_of_fedex():
    refusals.check((f"{o}", partial(fedex, options=o), ValueError, says) for o, says in FEDEX)


def test_what_fedex_cannot_score():
    """Everybody votes for one arm: the trimmed mean of ten such uploads over four arms is zero."""
    bounds = {"clip": {"weights": 1.0, "psi": 1.0}}
    rows = []
    for name, safeguard in (
        ("defence", {"defence": "trim"}),
        ("privacy", {**bounds, "privacy": {"noise_multiplier": 1.0}}),
        ("clip.psi", bounds),
    ):
        changes = {"weighting": "uniform", "checkpoint_every": 1, **safeguard}
        other = dataclasses.replace(tiny(**changes).settings(), method="fedex")  # fits other methods
        task, scores = Task(chain_net()), rf"'fedex' scores .*; leave {name} out, or"
        configured, left = partial(tiny, method="fedex", **changes), f"which {name} does not leave"
        rows.append((f"a configuration of {name}", configured, ConfigError, scores))
        rows.append((f"{name} in code", partial(Protocol, task, other), ValueError, left))
    fused = partial(federate, Task(chain_net()), shards(SIZES), rounds=1, method="fedex", execution="fused")
    loop = "which the method 'fedex' asks for; use execution: loop"
    arms = {"arms": {"dropout": [0.1, 0.2]}}
    rows += [
        ("no drop rates", partial(fedex, smooth_net), ValueError, "the network has no ConcreteDropout layer"),
        ("no classes", partial(fedex, likelihood="gaussian"), ValueError, "set its score to loss"),
        ("fused clients", partial(fused, method_options=arms), ValueError, loop),
    ]
    refusals.check(rows)


class Root(HyperModule):
    """Finite, but its derivative is not."""

    hyperparameters = ("amount",)

    def __init__(self):
        super().__init__()
        self.amount = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x * (1 + self.amount.sqrt())


def test_training_by_evidence():
    bad = [
        ({"evidence": "elbo"}, "evidence is kfac or last_layer, got 'elbo'"),
        ({"burn_in": -1}, "burn_in is a whole number, 0 or more, got -1"),
        ({"precision_steps": 1.5}, "precision_steps is a whole number, 0 or more, got 1.5"),
        ({"batches": 0}, "batches is a whole number, 1 or more, got 0"),
        ({"batch": True}, "batch is a whole number, 1 or more, got True"),
        ({"final_rate": 0}, "final_rate is above 0 and at most 1, got 0"),
        ({"burn_in": 5}, "after a burn-in of 5, first at iteration 24 of 20; train for longer"),
    ]
    decay = "learns the prior of the weights; set weight_decay to 0"
    endless = "iteration 12: the gradient of the evidence is not finite; lower"
    state = training(task=Task(chain_net(), transforms=[Root()], samples=2))
    rows = [(str(options), partial(training, options=options), ValueError, says) for options, says in bad]
    rows.append(("decay beside the prior", partial(training, weight_decay=0.01), ValueError, decay))
    rows.append(("no gradient", lambda: [state.step() for _ in range(12)], TrainingError, endless))
    refusals.check(rows)
    assert training("last_layer", weight_decay=0.01).settings.weight_decay == 0.01  # no prior of these


def test_augerino_and_a_validation_set():
    prepare, both = partial(Augerino().prepare, Task(nn.Linear(2, 2))), partial(Augerino, psi_gradient="both")
    endless = partial(ValidationSet, finetune_epochs=math.inf)
    rates, positive = (0, -0.1, math.inf, math.nan), "finetune_learning_rate is positive, got "
    refusals.check(
        [
            ("no transform", prepare, "No transform of the task has widths"),
            ("both places", both, "psi_gradient is training or server, got 'both'"),
            ("endless", endless, "finetune_epochs is a number >= 0, got inf"),
            *((f"{rate}", partial(ValidationSet, 1.0, rate), f"{positive}{rate}") for rate in rates),
        ]
    )


def dense(width=1.0):
    units = round(4 * width)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, units), nn.Tanh(), nn.Linear(units, 3))


def frozen(width=1.0):
    module = dense(width)
    module[1].requires_grad_(False)
    return module


def normed(width=1.0):
    return nn.Sequential(dense(width), nn.LayerNorm(3))


def averaging(width=1.0):
    mean = nn.Unflatten(1, (1, 6)), nn.AdaptiveAvgPool1d(3), nn.Flatten()
    return nn.Sequential(dense(width), nn.Linear(3, 6), *mean)


def of_widths(method, build=dense, of_task=None, **changes):
    task = Task(build(), transforms=[augmentation()], samples=1, sizes=build, **(of_task or {}))
    sizes = [{"share": 0.5, "model_options": {"width": width}} for width in (1.0, 0.5)]
    known = {"server": SGDSettings(1.0), "local": LocalSettings(0.3), "architectures": sizes}
    federate(task, shards(SIZES), rounds=1, method=method, **{**known, **changes})


def test_networks_of_nested_widths():
    masked = {"method_options": {"mask_classes": True}}
    private = {"weighting": "uniform", "clip": ClipSettings(1.0), "privacy": PrivacySettings(1.0)}
    shared = {"sharing": {"kind": "bank", "budget": 200}}
    decayed = {"local": LocalSettings(0.3, weight_decay=0.1)}
    probabilities = {"of_task": {"average": "probabilities"}}
    distilled = {"method_options": {"distil": True}, "of_task": {"likelihood": "multilabel"}}
    together = {"architectures": None, "execution": "grouped"}
    adam = "Adam's state and momentum cannot follow"
    earlier = "what clients found in earlier ones cannot follow"
    norm = nn.Sequential(nn.Linear(2, 3), nn.PReLU(3), nn.Linear(3, 2))
    rows = [
        ("heterofl", {"architectures": None, **masked}, "give at least one, "),
        ("heterofl", {**shared, **masked}, "leave sharing and private parameters out"),
        ("heterofl", {**decayed, **masked}, "set local.weight_decay to 0"),
        ("heterofl", {**private, **masked}, "which privacy may not depend on"),
        ("heterofl", {**probabilities, **masked}, "^mask_classes sets logits to 0 of .* the average prob"),
        ("heterofl", together, "the method 'heterofl' gives each its own"),
        ("fedrolex", {"server": AdamSettings()}, adam),
        ("fedrolex", {"server": SGDSettings(1.0, momentum=0.9)}, adam),
        ("fedrolex", {"build": normed}, "LayerNorm at '1'"),
        ("fedrolex", {"build": frozen}, "'weight' of the layer '1' is no weight of its own"),
        ("fedrolex", {"buffer": 2}, earlier),
        ("fedrolex", {"upload": "int8", "error_feedback": True}, earlier),
        ("fjord", distilled, "^distil trains on probabilities of classes, but the likelihood is"),
    ]
    refusals.check(
        (f"{method} {changes}", partial(of_widths, method, **changes), ValueError, says)
        for method, changes, says in rows
    )
    outside = partial(rolled, ParameterSpace(norm), norm, ["0", "2"])
    no_logits = partial(of_widths, "heterofl", averaging, **masked)
    refusals.check(
        [
            ("a layer beside the chain", outside, ValueError, r"'1.weight' does not belong to the chain"),
            ("a mean of outputs at the end", no_logits, RuntimeError, "it has 6 for outputs"),
        ]
    )


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x):
        x = x.flatten(2)
        return self.inner(x, x, x, need_weights=False)[0].flatten(1)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(self.layer(x))


def total(kind, net, *shape):
    task = Task(net, samples=1, precision="fp64")
    batch = Batch(torch.ones(3, *shape).double(), torch.tensor([0, 1, 0]))
    return partial(kind(task).total, weights(task), task.psi_space.initial(), draws(batch))


def convolved(*layers, **options):
    return nn.Sequential(nn.Conv2d(2, 2, 1, **options), *layers, nn.Linear(8, 3))


def test_networks_without_factors(monkeypatch):
    net, flat = nn.Sequential(nn.Flatten(), nn.Linear(2, 2)), nn.Flatten()
    averaged = Task(net, average="probabilities")
    ends = nn.Sequential(nn.Conv2d(1, 3, 2), flat)
    rows = [
        (lambda: Kfac(averaged), "of averaged logits, not probabilities; set average: logits"),
        (lambda: Kfac(Task(nn.LayerNorm(3))), "and the network trains none of these; use"),
        (total(Kfac, Twice(), 2), "layer is used more than once in a pass"),
        (total(Kfac, convolved(flat, groups=2), 2, 2, 2), "convolutions in one group"),
        (total(Kfac, convolved(flat, padding="same"), 2, 2, 2), "padding is a number"),
        (total(Kfac, convolved(Attention()), 2, 2, 2), "out_proj is not called as a module of its own"),
        (total(LastLayer, ends, 1, 2, 2), "in a linear layer of one vector an example; use evidence: kfac"),
    ]
    refusals.check((says, call, says) for call, says in rows)
    monkeypatch.setattr(estimates, "LARGEST", 5)
    says = "networks of up to 5 weights, and this one has 6; use a smaller one"
    refusals.check([("a large network", lambda: Kfac(Task(net)), says)])


def test_what_has_no_diagonal_laplace():
    data, linear = five_inputs(), of_five_inputs()
    evidence = partial(diagonal_laplace, linear, data)
    precisions = [0, -1.0, math.nan, math.inf, "optimal"]
    regression = Dataset(data.inputs, data.targets.float())
    random, fixed = nn.Sequential(ConcreteMask(5), linear), FixedMask(5, 2)
    no_weights = "over weights, but the module has none to train"
    no_labels = "of a classifier; give examples with class labels"
    no_optimum = "prior precision has no optimum"
    positive = "precision is a positive number or 'optimised', got "
    rows = [(f"a precision of {p}", partial(evidence, p), positive) for p in precisions]
    curvature = torch.tensor([1e9, 1e9, 0.0])
    rows += [
        ("random outputs", lambda: diagonal_laplace(random, data, 1.0), "outputs are random in eval"),
        ("no weights", lambda: diagonal_laplace(fixed, data, 1.0), no_weights),
        ("a regression", lambda: diagonal_laplace(linear, regression, 1.0), no_labels),
        ("no data", lambda: diagonal_laplace(linear, data.subset([]), 1.0), no_labels),
        ("empty batches", lambda: evidence(1.0, batch_size=0), "batch size must be at least 1, got 0"),
        ("no weights to find it from", lambda: optimal_precision(curvature.double(), 0.0), no_optimum),
        ("no curvature to find it from", lambda: optimal_precision(torch.zeros(3), 1.0), no_optimum),
    ]
    refusals.check((*row, ValueError, says) for *row, says in rows)
