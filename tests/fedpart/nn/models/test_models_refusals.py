"""What networks refuse: sizes, options, members of ensembles, and weights that are not there."""

import math
from functools import partial

import refusals
import torch
from torch import nn
from torchvision.models import resnet18

from fedpart import Dataset, ParameterSpace, Task, Training, TrainingSettings
from fedpart.nn.models import MODELS, digits_cnn, fixup_resnet, heterofl_cnn, mlp, resnet9, resnet_v2, wrn
from fedpart.nn.models.ensembles import Ensemble, UniversallySlimmable, batch_ensemble, slimmable
from fedpart.nn.models.pretrained import frozen_resnet

TWO = {"num_classes": 2, "input_shape": (4,)}
CNN = {"model": "digits_cnn", "width": 0.5}
WRN = {"model": "wrn", "depth": 10}


def test_options_of_networks():
    whole_groups = "use a share of at most 1 that leaves a multiple of 4"
    refusals.check(
        (f"{build.__name__}({options})", partial(build, **options), says)
        for build, options, says in [
            (digits_cnn, {"input_shape": (1, 3, 8)}, "pools twice and needs images of at least 4x4, got 3x8"),
            (mlp, {**TWO, "activation": "gel"}, "Unknown activation 'gel': did you mean 'gelu'"),
            (mlp, {**TWO, "hidden": (8, 0)}, r"at least one unit, got \[8, 0\]"),
            (resnet9, {"dropout_in": "block"}, "dropout_in is residual or stage, got 'block'"),
            (resnet9, {"input_shape": (3, 8, 7)}, "pools three times and needs .* at least 8x8, got 8x7"),
            (resnet9, {"width": 48}, "groups must divide width, got 32 and 48"),
            (fixup_resnet, {"depth": 9}, r"6 n \+ 2, as 8, 14 or 20, got 9"),
            (fixup_resnet, {"width": 0}, "1 or more, got 0"),
            *((heterofl_cnn, {"width": width}, whole_groups) for width in (0.3, 0.0, 2.0)),
            (wrn, {"depth": 12}, "6 n"),
            (wrn, {"width": 1.2}, "a multiple of 0.5"),
            (resnet_v2, {"depth": 16}, r"6 n \+ 2"),
            (resnet_v2, {"groups": 3}, "must divide"),
        ]
    )
    data = Dataset(torch.rand(4, 3), torch.arange(4) % 2)
    scalars = TrainingSettings(chunks=(1.0,), method="none", scalars=0.1)
    train = partial(Training, Task(nn.Linear(3, 2)), data, scalars)
    refusals.check([("a rate of no scalars", train, "no stacked scales and biases")])


def ensemble(**changes):
    options = {"num_classes": 3, "input_shape": (1, 8, 8), "kind": "deep", "members": [CNN, CNN], **changes}
    return partial(MODELS.make, "ensemble", options)


def test_ensembles():
    budget = {"sharing": {"kind": "bank", "budget": 100}}
    small = {"kind": "composed", "members": [WRN, WRN], "options": budget}
    several = ensemble(kind="mimo", members=[WRN | {"width": 1, "times": 2}])()
    wide, narrow = wrn(3, (1, 8, 8), 10, 2), wrn(5, (1, 8, 8), 10, 1)
    foreign = digits_cnn(3, (1, 8, 8), width=0.5)
    rows = [
        (f"{changes}", ensemble(**changes), says)
        for changes, says in [
            ({"members": []}, "needs members; for instance"),
            ({"members": [{"depth": 10}]}, "names its model"),
            ({"members": [{"model": "wnr"}]}, "did you mean 'wrn'"),
            ({"members": [CNN | {"wide": 2}]}, "does not take the options"),
            ({"members": [CNN | {"times": 0}]}, "times is a whole number"),
            ({"members": [CNN | {"dropout": 0.5}]}, "no dropout of its own"),
            ({"kind": "shallow"}, "Unknown kind of ensemble 'shallow'"),
            ({"options": {"own_norms": True}}, "does not take the options"),
            ({"kind": "batch", "members": [CNN, CNN | {"width": 1.0}]}, "two of them differ"),
            (small, "raise the budget"),
        ]
    ]
    rows += [
        ("no member", lambda: Ensemble([]), "at least one network"),
        ("two depths", lambda: batch_ensemble([wrn(depth=10), wrn(depth=16)]), "the layers of two differ"),
        ("partitions of Mimo", lambda: ParameterSpace(several, 3), "Mimo at the top level cannot be part"),
        (
            "four of three",
            lambda: UniversallySlimmable([wide] * 3),
            "2 to 3 members; its option drawn is 4",
        ),
        ("more classes", lambda: slimmable([wide, narrow]), "no leading slice"),
        ("another network", lambda: slimmable([wide, foreign]), "that the widest one does not have"),
    ]
    refusals.check(rows)


def test_frozen_resnets(tmp_path):
    weights, linear, text = (str(tmp_path / f"{name}.pt") for name in ("resnet18", "linear", "text"))
    torch.save(resnet18(num_classes=9).state_dict(), weights)
    torch.save(nn.Linear(2, 2).state_dict(), linear)
    (tmp_path / "text.pt").write_text("no weights")
    three = "mean and std have three numbers each, .* give those that the weights"
    no_weights = r"{}\.pt holds no weights of torchvision's resnet18 \(.+\)"
    missing = r"not in no\.pt; make them with python -m simulations\.pre"
    refusals.check(
        (says, partial(frozen_resnet, 4, (channels, 32, 32), file, **constants), error, says)
        for file, channels, constants, error, says in [
            ("no.pt", 1, {}, FileNotFoundError, missing),
            (text, 1, {}, ValueError, no_weights.format("text")),
            (linear, 1, {}, ValueError, no_weights.format("linear")),
            (weights, 2, {}, ValueError, "1 or 3 channels, got 2"),
        ]
    )
    refusals.check(
        (str(constants), partial(frozen_resnet, 4, (3, 32, 32), weights, **constants), three)
        for constants in ({"mean": [0.5]}, {"std": [1.0, 0.0, 1.0]}, {"mean": [0.0, 0.0, math.nan]})
    )
