"""Options of what networks share that do not fit."""

from functools import partial

import refusals
from test_composed import compose, equal_layers

ROWS = [
    ("bank", {"clusters": "width"}, "clusters are layer, depth, or lists"),
    ("bank", {"templates": 0}, "templates is a whole number, at least 1"),
    ("bank", {"budget": "400"}, "budget is a whole number, at least 1"),
    ("bank", {"clusters": ["0", "1"]}, "lists of lists of layers"),
    ("bank", {"clusters": 5}, "lists of lists of layers"),
    ("bank", {"coupled": "yes"}, "coupled is true or false"),
    ("bank", {"clusters": [["convx"]]}, "matches 'convx' of clusters; they are 0, 1, 2"),
    ("bank", {"keep": ["conv*"]}, "No Linear or Conv layer matches 'conv"),
    ("bank", {"keep": "0"}, "keep has lists of names of layers"),
    ("bank", {"budget": 10}, "The budget is 10 numbers, but one template for each bank takes 432"),
    ("bank", {"keep": ["*"]}, "whose weight could be composed"),
    ("basis", {"inputs": 0}, "inputs is a share above 0"),
    ("basis", {"penalty": -1}, "at least 0"),
    ("basis", {"penalty": float("inf")}, "at least 0, and finite"),
    ("basis", {"keep": ["*"]}, "nothing to compose"),
    ("bank", {"numbers": 10}, "does not take the options"),
]


def test_options():
    call = partial(compose, networks=[equal_layers()])
    refusals.check((f"{kind} {of}", partial(call, kind, **of), says) for kind, of, says in ROWS)
