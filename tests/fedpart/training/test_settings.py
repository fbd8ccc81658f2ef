"""A setting says its default, range and meaning once."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import refusals
import torch
from torch import nn

from fedpart import (
    AdamSettings,
    AdamWSettings,
    ClipSettings,
    DeviceSettings,
    FederationSettings,
    LocalSettings,
    PrivacySettings,
    SGDSettings,
    Task,
    TrainingSettings,
    federate,
    fit,
    personalise,
)
from fedpart.centralised.settings import TrainingOptions
from fedpart.federated.options import FederationOptions
from fedpart.randomness.streams import generator
from fedpart.training.settings import Settings, documented, setting


@documented
@dataclass(frozen=True)
class Oven(Settings):
    """What bread needs."""

    shelf: int = setting(description="from below", ge=1, le=4)
    heat: float = setting(220.0, "degrees Celsius", gt=0)
    fan: Literal["off", "slow", "fast"] = setting("off", "its speed", decides="course")
    name: str | None = setting(None, "for the display", decides="nothing")


def test_what_is_out_of_range_is_refused_by_its_name():
    rows = [
        ({"shelf": 0}, "shelf is at least 1 and at most 4, got 0"),
        ({"shelf": 5}, "shelf is at least 1 and at most 4, got 5"),
        ({"heat": 0.0}, "heat is above 0, got 0.0"),
        ({"heat": math.nan}, "heat is finite and above 0, got nan"),
        ({"heat": math.inf}, "heat is finite and above 0, got inf"),
        ({"shelf": True}, "shelf is a whole number and at least 1 and at most 4, got True"),
        ({"heat": True}, "heat is a number and above 0, got True"),
        ({"shelf": np.float32(2)}, r"shelf is a whole number .*, got np.float32\(2.0\)"),
        ({"shelf": np.int64(-1)}, "shelf is at least 1 and at most 4, got -1"),
        ({"heat": np.float32(-1)}, "heat is above 0, got -1.0"),
        ({"heat": np.float32(-math.inf)}, "heat is finite and above 0, got -inf"),
        ({"fan": "on"}, "fan is one of off, slow or fast, got 'on'"),
    ]
    refusals.check_keywords(partial(Oven, shelf=1), ((changes, f"^{says}\\.$") for changes, says in rows))
    assert Oven(4, 1e-9).heat == 1e-9


def test_numbers_of_numpy_are_pythons():
    oven = Oven(np.uint8(4), np.float32(0.1))
    assert (type(oven.shelf), type(oven.heat)) == (int, float) and oven == Oven(4, float(np.float32(0.1)))
    x = torch.eye(4).repeat(3, 1)
    given = {"shards": [(x, torch.arange(12) % 3)] * 3, "rounds": 2, "local": {"learning_rate": 0.25}}
    for kind in (np.int64, np.int32, np.uint8):
        torch.manual_seed(0)
        net = nn.Linear(4, 3)
        found = federate(net, **given, seed=kind(3), cohort=kind(2))
        assert torch.equal(found.state.w, federate(net, **given, seed=3, cohort=2).state.w)
    assert generator(np.int64(-3), "a").random() == generator(-3, "a").random()


def test_only_what_decides_numbers_must_be_agreed_on_and_settings_that_are_gone_keep_their_places():
    """Residuals and releases of earlier runs lie, and are sealed, under the text of all settings."""
    assert Oven(2, fan="slow", name="left").deciding() == {"shelf": 2, "heat": 220.0}
    shared = FederationSettings(clients=10).deciding()
    adam = {"learning_rate": 1e-3, "eps": 1e-8, "betas": (0.9, 0.999), "hypergradient": 0.0}
    assert shared["server"] == adam
    kept = {"device", "on_client_error", "max_examples", "min_replies", "round_timeout", "node_timeout"}
    assert not kept & shared.keys()
    settings = FederationSettings(clients=10)
    keys = [*settings.deciding()]
    pace = "devices overselect deadline aggregation buffer concurrency staleness"
    assert keys[keys.index("bucket") :][:3] == ["bucket", "trim", "privacy"]
    assert [*settings.of_server()] == pace.split()
    private = {"privacy": {"noise_multiplier": 1.0}, "clip": {"weights": 1.0}, "weighting": "uniform"}
    assert [*FederationSettings(clients=10, **private).of_server()] == pace.split()


def test_the_docstring_lists_the_fields():
    assert Oven.__doc__.splitlines()[0] == "What bread needs."
    assert "    heat: degrees Celsius." in Oven.__doc__
    assert "    cohort: clients per round" in FederationSettings.__doc__


def accepted(hint):
    """What an argument may be where the setting is that: any sequence, and a mapping for a group."""
    alternatives = get_args(hint) if get_origin(hint) is Union or "|" in str(hint) else (hint,)
    found = set()
    for one in alternatives:
        if get_origin(one) is tuple and get_args(one)[1:] == (...,):
            found.add(Sequence[get_args(one)[0]])
        elif get_origin(one) is dict:
            found.add(Mapping[get_args(one)])
        else:
            found.add(one)
        if isinstance(one, type) and issubclass(one, Settings):
            found |= {Mapping[str, Any], *(Literal[word] for word in one.short)}
    return found


@pytest.mark.parametrize(
    ("options", "settings", "without"),
    [(FederationOptions, FederationSettings, {"clients"}), (TrainingOptions, TrainingSettings, set())],
)
def test_the_options_are_the_settings(options, settings, without):
    given, known = get_type_hints(options), get_type_hints(settings)
    names = {field.name for field in fields(settings)} - without
    assert given.keys() == names and not options.__required_keys__
    for name in names:
        assert accepted(given[name]) == accepted(known[name]), name


def test_a_mapping_says_what_differs_from_the_default():
    groups = {"local": {"epochs": 3}, "server": {"eps": 1e-3}, "server_psi": {"betas": (0.5, 0.9)}}
    made = FederationSettings(clip={"weights": 2.0}, **groups)
    assert made.local == LocalSettings(epochs=3) and made.server == AdamSettings(eps=1e-3)
    assert made.server_psi == AdamSettings(3e-3, betas=(0.5, 0.9)), "at psi's own rate"
    assert made.clip == ClipSettings(2.0)
    assert FederationSettings(server={"name": "sgd"}).server == SGDSettings(1.0), "the plain mean, as in YAML"
    for name, kind in {"sgd": SGDSettings, "adam": AdamSettings, "adamw": AdamWSettings}.items():
        assert TrainingSettings(optimiser={"name": name, "learning_rate": 0.2}).optimiser == kind(0.2)


KINDS = (FederationSettings, TrainingSettings, LocalSettings, ClipSettings, SGDSettings, AdamSettings)
KINDS += (AdamWSettings, DeviceSettings, partial(PrivacySettings, noise_multiplier=1.0))
ODD = [None, True, "x", 5, 2.5, {}, {"a": 1}, [], [1], ["x"], {1}, b"x", 1 + 2j, math.nan, object()]
ODD += [np.zeros(2), np.ones(1, dtype=bool)[0], torch.zeros(2)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: getattr(kind, "func", kind).__name__)
def test_a_value_of_another_kind_is_refused_by_its_name(kind):
    """Whatever the field: it is taken because its type says so, or refused in a sentence that names it."""
    settings = getattr(kind, "func", kind)
    wanted = get_type_hints(settings)
    taken = {field.name: [] for field in fields(settings)}
    for name, odd in ((name, odd) for name in taken for odd in ODD):
        try:
            kind(**{name: odd})
            taken[name].append(odd)
        except ValueError as error:
            said = {"chunks": "chunk", "parameters": "parameter"}.get(name, name)
            clip = "Norms to clip" if kind is ClipSettings else said
            assert "\n" not in str(error) and re.search(f"{said}|{clip}", str(error)), error
    for name, values in taken.items():
        whole = wanted[name] in (int, int | None)
        assert whole <= all(value is None or type(value) is int for value in values), (name, values)
        assert (wanted[name] is not bool) <= all(value is not True for value in values), (name, values)


def test_arguments_of_another_kind():
    net = nn.Linear(4, 3)
    data = torch.rand(12, 4), torch.arange(12) % 3
    result = federate(net, [data] * 3, rounds=1)

    def rows(call, name, values, says):
        what = f"{call.func.__name__}, {name}="
        return [(f"{what}{odd!r}", partial(call, **{name: odd}), f"^{name} is {says}") for odd in values]

    task, one, tuned = partial(Task, net), partial(fit, net, data), partial(personalise, result, data)
    numbers = (True, None, "x", 1.5, {})
    refused = [
        *rows(task, "samples", numbers, "a number of aug.*, at least 1"),
        *rows(task, "hyperparameters", (None, 5, "weight", {"weight": 1}, [1]), "a list of names"),
        *rows(task, "average", (None, True, 5), "a text"),
        *rows(task, "precision", (None, 16), "a text"),
        *rows(task, "stacked", (True, ["x"]), "a mapping"),
        *rows(task, "sizes", (5, {}), "a function"),
        *rows(one, "evaluate_every", numbers, "a number of iterations, at least 1"),
        *rows(one, "iterations", numbers, "a whole number"),
        *rows(one, "batch_size", numbers, "a whole number"),
        *rows(one, "progress", (None, 1), "True or False"),
        *rows(one, "on_report", (5, True), "a function"),
        *rows(one, "chain", ("fc", {"fc": 1}, 5, [1]), "a list of names of layers"),
        *rows(tuned, "client", numbers, "a whole number, at least 0"),
        *rows(tuned, "weight_decay", (True, None, "x", math.nan), "a number, at least 0"),
        *rows(tuned, "layers", (None, 5, "weight", {"weight": 1}), "a list of names of layers"),
    ]
    for name in ("share_dropout_mask", "channels_last", "learn_dropout"):
        refused += rows(task, name, (None, 1, "yes"), "True or False")
    for name in ("epochs", "batch_size"):
        refused += rows(tuned, name, numbers, "a whole number, at least 1")
    refused.append(("samples", partial(tuned, samples=True), "^samples is a whole number"))
    refused.append(("a share", partial(LocalSettings, psi_batch=True), "'shard' or a number of examples"))
    refusals.check(refused)
    assert FederationSettings(device=torch.device("cpu")).device == "cpu"
    assert LocalSettings(psi_batch=np.int64(3)).psi_batch == 3
