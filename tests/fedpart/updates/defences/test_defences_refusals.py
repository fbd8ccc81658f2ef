"""What a defence refuses."""

from functools import partial

import refusals

from fedpart.updates.defences import DEFENCES

BAD = [
    ("trim", {"share": 0.0}, "above 0 and below 0.5, got 0.0"),
    ("krum", {"share": 0.5}, "above 0 and below 0.5, got 0.5"),
    ("geometric", {"smoothing": 0.0}, "smoothing of the defence 'geometric' is above 0"),
    ("centred", {"radius": 0.0}, "radius of the defence 'centred' is above 0, or null"),
    ("centred", {"reach": 0.5}, "reach of the defence 'centred' is at least 1, or null"),
    ("centred", {"momentum": 1.0}, "momentum of the defence 'centred' is from 0 to below 1"),
]


def test_options_that_make_no_sense():
    refusals.check(
        (f"{name} {options}", partial(DEFENCES.make, name, options), says) for name, options, says in BAD
    )
