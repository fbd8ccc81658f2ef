"""Settings as keyword arguments: their types for editors, and mappings in place of groups."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from fedpart import (
    AdamSettings,
    AdamWSettings,
    ClipSettings,
    FederationSettings,
    LocalSettings,
    SGDSettings,
    TrainingSettings,
)
from fedpart.centralised.settings import TrainingOptions
from fedpart.federated.options import FederationOptions
from fedpart.training.settings import Settings


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
