"""Updates that a server refuses, and states of another defence."""

import math
from functools import partial

import refusals
import torch
from problems import chain_net, settings, update_of

from fedpart import Federation, Protocol, Task
from fedpart.updates.defences import DEFENCES
from fedpart.updates.errors import LONGEST, ClientError, Refusal
from fedpart.updates.update import validate


def update(ks=(2, 3), w2=None, w3=None, **changes):
    """A good update, but for the changes."""
    deltas = {k: torch.ones(5 - k) for k in ks} | {k: w for k, w in ((2, w2), (3, w3)) if w is not None}
    known = {"unseen_loss": 3.0, "unseen_examples": 5, "psi": torch.ones(2)}
    known |= {"examples": 5, "loss": 1.5, "visited": 15, "seconds": 1.25}
    return update_of(deltas, **known | changes)


def check(answer):
    validate(answer, max_examples=100)


def test_updates():
    check(update())
    check(update(w2=torch.full((3,), 1e15)))
    no_number, both, large = ([0.0, math.nan, 0.0], [math.inf, -math.inf, 0.0], [0.0, -1e38, 0.0])
    rows = [
        (update(w2=torch.tensor(no_number)), "w_2 has values that are not finite"),
        (update(w2=torch.tensor(both)), "w_2 has values that are not finite"),
        (update(w2=torch.tensor(large)), r"w_2 has values beyond 1e\+15, the most"),
        (update(psi=torch.tensor([0.0, math.inf])), "psi gradient has values that are not finite"),
        (update(examples=0), "claims 0 examples"),
        (update(examples=-3), "claims -3 examples"),
        (update(examples=math.nan), "claims nan examples"),
        (update(loss=math.nan), "its loss is nan, not between -1e[+]15 and 1e[+]15"),
        (update(unseen_loss=math.inf), "its unseen_loss is inf, not between"),
        (update(unseen_loss=-2e15), "its unseen_loss is -2000000000000000.0, not between"),
        (update(loss=math.inf), "its loss is inf, not between"),
        (update(visited=-1), "its visited is -1, not between 0 and 1e[+]15"),
        (update(seconds=math.nan), "its seconds is nan, not between"),
    ]
    calls = [(partial(check, answer), says) for answer, says in rows]
    refusals.check((f"{i}: {says}", call, ValueError, says) for i, (call, says) in enumerate(calls))


def defended(**changes):
    options = {"weighting": "uniform", "defence": "centred", "chunks": (0.5, 0.3, 0.2), **changes}
    return Federation(Protocol(Task(chain_net(), samples=1), settings(10, **options)))


def test_checkpoints_of_another_defence(tmp_path):
    defended(defence_options={"bucket": 2}).save(tmp_path / "checkpoint.pt")
    others = [{}, {"defence": None}, {"defence_options": {"bucket": 2, "momentum": 0.5}}]
    loads = {f"{changes}": defended(**changes).load for changes in others}
    says = "another configuration: .*(defence|bucket)"
    refusals.check(
        (what, partial(load, tmp_path / "checkpoint.pt"), ValueError, says) for what, load in loads.items()
    )


def test_what_a_refusal_quotes_of_an_upload_is_cut():
    """A number of examples may be a list of ten thousand; a log line is a line."""
    refusal = Refusal("malformed", f"its examples are {[2**40] * 3000}\nand more")
    assert len(str(refusal)) == LONGEST and str(refusal).startswith("its examples are [1099511627776, ")
    for error in (ClientError.refused(3, 1, refusal), ClientError.of(3, 1, ValueError("9" * 10**5))):
        assert len(str(error)) < LONGEST + 100 and "\n" not in str(error)


DEFENDED = [
    ("trim", {"share": 0.0}, "above 0 and below 0.5, got 0.0"),
    ("krum", {"share": 0.5}, "above 0 and below 0.5, got 0.5"),
    ("geometric", {"smoothing": 0.0}, "smoothing of the defence 'geometric' is above 0"),
    ("centred", {"radius": 0.0}, "radius of the defence 'centred' is above 0, or null"),
    ("centred", {"reach": 0.5}, "reach of the defence 'centred' is at least 1, or null"),
    ("centred", {"momentum": 1.0}, "momentum of the defence 'centred' is from 0 to below 1"),
]


def test_options_that_make_no_sense():
    refusals.check(
        (f"{name} {options}", partial(DEFENCES.make, name, options), says) for name, options, says in DEFENDED
    )
