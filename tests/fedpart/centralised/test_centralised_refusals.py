"""What training without federation refuses: settings, data, steps, losses, and what is told of a training."""

from functools import partial

import refusals
import torch
from evidences import five_inputs, of_five_inputs
from problems import chain_net, shard, smooth_net
from test_training import chunks, run, training
from torch import nn

from fedpart import (
    AdamSettings,
    AdamWSettings,
    AffineAugmentation,
    ConcreteMask,
    Dataset,
    SGDSettings,
    Task,
    TrainingError,
    fit,
)
from fedpart.centralised.scores import laplace_evidence, of_ensemble
from fedpart.nn.models import digits_cnn
from fedpart.nn.models.ensembles import Ensemble


def fitted(data, **changes):
    fit(Task(smooth_net(), samples=1), data, **{"iterations": 1, **changes})


def of_first(outputs, targets):
    return nn.functional.cross_entropy(outputs[:, 0], targets, reduction="none")


SETTINGS = [
    ({"method": "augerino", "method_options": {"weight": "x"}}, "Augerino's weight is a number"),
    ({"method": "separate", "defaults": "zeros"}, "leave parameters, scheme, defaults away"),
    ({"chunks": (0.5, 0.3, 0.3)}, "must sum to 1"),
    ({"parameters": (0.5, 0.5)}, "3 chunk proportions but 2 parameter"),
    ({"method": "fedavg"}, "federated only"),
    ({"method": "validation"}, "training and a validation part"),
    ({"method": "validation", "chunks": (1.0,)}, "training and a validation part"),
    ({"chunks": (1.0, 0.0)}, "must be positive"),
    ({"method": "none", "keep_best": True}, "keep_best needs L_ML"),
    ({"method_options": {"x": 1}}, "does not take the options"),
    ({"psi_every": 0}, "psi_every is at least 1"),
    ({"chunks": 3}, "one number per chunk"),
    ({"optimiser": "adam"}, "optimiser is one of SGDSettings.*got 'adam'"),
    ({"optimiser_psi": torch.optim.Adam}, "optimiser_psi is one of SGDSettings"),
    ({"optimiser": AdamSettings(hypergradient=0.1)}, "A hypergradient is of psi; leave it out of optimiser"),
    ({"method_options": {"draw_sizes": True}}, "draw_sizes is of clients with architectures"),
    ({"iterations": 0}, "iterations is at least 1"),
    ({"final_rate": 0.0}, "final_rate is"),
    ({"weight_decay": -1.0}, "weight_decay is at least 0, got -1.0"),
    ({"decay_scaling": "x"}, "decay_scaling is one of"),
    ({"schedule": "x"}, "schedule is one of"),
    (
        {"method": "validation", "chunks": (0.5, 0.5), "method_options": {"finetune_epochs": -1}},
        "finetune_epochs",
    ),
]


def test_settings():
    of_fit = [
        ({"chunks": (1.0,)}, "give two chunks or more, or use method: none"),
        ({"psi_every": 21}, "psi_every is 21, but there are 20 iterations"),
    ]
    calls = [(partial(training, data=shard(40), **changes), changes, says) for changes, says in SETTINGS]
    calls += [
        (partial(fitted, shard(40), iterations=20, **changes), changes, says) for changes, says in of_fit
    ]
    refusals.check((str(changes), call, says) for call, changes, says in calls)


def test_data():
    no_data = r"Data are a Dataset, a torch\.utils\.data\.Dataset or the two tensors"
    wrong = [torch.zeros(4, 2), (torch.zeros(4, 2),), [], "digits"]
    rows = [(f"fit to {type(data)}", partial(fitted, data), no_data) for data in [*wrong, None]]
    rows += [(f"score {type(data)}", partial(fitted, shard(40), validation=data), no_data) for data in wrong]
    rows += [
        ("a chunk of none", lambda: training(data=shard(2)), "Chunk 3 of 3 gets none of the 2 examples"),
        ("a chunk too few", lambda: training(data=chunks()[:2]), "2 chunks of data for 3 proportions"),
    ]
    refusals.check((*row, ValueError, says) for *row, says in rows)


def test_steps():
    state = training()
    rows = [
        (f"{first} to {last}", partial(state.examples, first, last), f"1 to 3, got {first} to {last}")
        for first, last in ((0, 1), (2, 1), (2, 4))
    ]
    rows.append(("reports at once", lambda: state.run(0, print), "at least one iteration apart, got 0"))
    for net, options, says in (
        (chain_net(dropout=False), {}, "'partitioned' trains no hyperparameter"),
        (smooth_net(), {"method": "none"}, "'none' trains no hyperparameter"),
        (smooth_net(), {"chunks": (1.0,)}, r"one chunk here; call step\(\) instead"),
    ):
        whole = training(Task(net), shard(40), **options)
        rows.append((f"psi, {says}", partial(whole.psi_step, 2, whole.chunks[0]), says))
    refusals.check((*row, ValueError, says) for *row, says in rows)


def test_training_that_stops():
    labels = Dataset(torch.rand(40, 1, 6, 6), torch.full((40,), 7))
    small = Dataset(torch.rand(40, 1, 5, 5), torch.zeros(40, dtype=torch.int64))
    widths = Task(chain_net(dropout=False), transforms=[AffineAugmentation("augerino", 0.0)], samples=1)
    unsafe = {"method": "augerino", "method_options": {"safe": False, "weight": 1.0, "limit": 1e30}}
    at_once = training(widths, shard(40), optimiser_psi=SGDSettings(1e4), **unsafe)
    steep = training(optimiser=SGDSettings(1e30), iterations=200)
    rows = [
        ("labels beyond the classes", training(data=labels), "every label must be below"),
        ("images of another size", training(data=small), r"Training stopped at iteration 1: .*[^.]\.$"),
        ("an unsafe Augerino that blows up at once", at_once, "safe variant"),
        ("a loss that is not finite", steep, "lower the learning rates"),
    ]
    refusals.check((what, partial(run, state), TrainingError, says) for what, state, says in rows)


def test_checkpoints_of_another_optimiser(tmp_path):
    training(optimiser=AdamSettings(0.01)).save(tmp_path / "a.pt")
    load = partial(training(optimiser=AdamWSettings(0.01)).load, tmp_path / "a.pt")
    refusals.check([("AdamW", load, "AdamSettings.*AdamWSettings")])


def test_what_is_told_of_a_training():
    images = Dataset(torch.rand(30, 1, 8, 8), torch.arange(30) % 3)
    points, linear = five_inputs(), of_five_inputs()
    network = Ensemble([digits_cnn(3, (1, 8, 8), width=0.5)])
    graded = Task(network, likelihood=of_first, samples=1)
    masked = Task(linear, transforms=[ConcreteMask(5)], samples=1)
    of_task = partial(training, chunks=(1.0,), method="none")
    subsets = partial(of_ensemble, of_task(graded, images), images)
    at_random = partial(laplace_evidence, of_task(masked, points, method_options={"augment": True}))
    parted = partial(laplace_evidence, training(Task(linear), points))
    refusals.check(
        [
            ("subsets of another likelihood", subsets, TypeError, "an ensemble has Task"),
            ("evidence of partitions", parted, "method 'none'"),
            ("evidence at random inputs", at_random, "at random"),
        ]
    )
