"""What cannot be searched, and the folders of a search."""

import io
import json
from functools import partial

import pytest
import refusals
from rich.console import Console
from tiny import tiny, tiny_training

from simulations.errors import ConfigError, RunError
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.search.search import run_search

RATES = {"local.learning_rate": {"log": [1e-3, 1.0]}}
SECTIONS = [
    ({}, "search.space"),
    ({"space": {}}, "search.space"),
    ({"space": {"cohort": [5, 2]}}, r"space.cohort cannot be \[5, 2\]; write \[low, high\]"),
    ({"space": {"cohort": {"log": [0, 2]}}}, "with low above 0"),
    ({"space": {"samples": [1.0, float("inf")]}}, r"write \[low, high\]"),
    ({"space": {"cohort": {"choice": [2, 2]}}}, "offers a value twice"),
]


def section(space=RATES, trials=1, objective="val_nll", **more):
    return {"space": space, "trials": trials, "objective": objective, **more}


def begun(config, out):
    run_search(config, out, CellRunner(console=Console(file=io.StringIO())))


def searched(out, **changes):
    begun(tiny(**changes), out)


@pytest.mark.slow
def test_what_cannot_be_searched(tmp_path):
    refusals.check(
        (f"{changes}", partial(tiny, search=changes), ConfigError, says) for changes, says in SECTIONS
    )
    central = tiny_training(search=section({"optimiser.learning_rate": [0.001, 0.1]}, objective="client_nll"))
    rows = [
        (section({"cohrt": [1, 3]}), {}, "unknown key 'cohrt'"),
        (section({"checkpoint_every": [1, 3]}), {}, "space.checkpoint_every decides nothing in a run"),
        (
            section({"data_seed": [0, 9]}),
            {},
            "Values of data_seed cannot be compared by val_.*other examples",
        ),
        (section({"data_options.target": {"choice": ["a", "b"]}}), {}, "cannot be compared by"),
        (section({"cohort": [1, 300]}), {}, "cohort must be between 1 and the number of clients"),
        (section(objective="client_nll"), {}, "set evaluation: clients"),
        (section(), {"evaluation": "none"}, "set evaluation: central"),
    ]
    calls = [(partial(searched, tmp_path / "out", search=of, **more), says) for of, more, says in rows]
    no_clients = r"no clients for search\.objective: client_nll; set it to val_"
    calls.append((partial(begun, central, tmp_path / "out"), no_clients))
    refusals.check((says, call, ConfigError, says) for call, says in calls)
    assert not (tmp_path / "out" / "trials").exists()


MU, MOMENTUM, LAM = (f"method_options.{key}" for key in ("fedprox.mu", "fedavgm.momentum", "ditto.lam"))


def test_options_that_decide_nothing_under_the_method(tmp_path):
    rows = [
        (
            "partitioned",
            MU,
            "space.method_options.fedprox.mu decides nothing in a run of partitioned; leave it",
        ),
        ("partitioned+fedprox", MOMENTUM, "decides nothing in a run of partitioned.fedprox"),
        ("partitioned+fedavgm", "server.learning_rate", "server.learning_rate decides nothing in a run of"),
        (
            "partitioned+fedprox",
            "method_options.fedprox.my",
            "fedprox.*has no option 'my': did you mean 'mu'",
        ),
        ({"choice": ["fedavg", "scaffold"]}, MU, "decides nothing"),
    ]
    calls = []
    for method, key, says in rows:
        space = {key: [0.1, 0.5]} | ({"method": method} if isinstance(method, dict) else {})
        name = {} if isinstance(method, dict) else {"method": method}
        calls.append((says, partial(searched, tmp_path / "out", search=section(space), **name)))
    refusals.check((says, call, ConfigError, says) for says, call in calls)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("partitioned+fedprox+fedavgm", (MU, MOMENTUM)),
        ("ditto", (LAM, "server.learning_rate")),
        ({"choice": ["fedavg", "fedprox"]}, (MU,)),
    ],
)
def test_options_of_ways_to_combine_are_keys_of_the_space(method, keys, tmp_path):
    space = {key: {"choice": [0.1, 0.5]} for key in keys}
    own = {"method": method} if isinstance(method, str) else {}
    space |= {} if own else {"method": method}
    searched(tmp_path, rounds=1, **own, search=section(space, trials=2, sampler="random"))
    tried = json.loads((tmp_path / "search.json").read_text())["trials"]
    assert len(tried) == 2 and all(set(space) <= set(trial) and trial["val_nll"] for trial in tried)


def test_folders(tmp_path):
    out = tmp_path / "out"
    begun(tiny(rounds=1, search=section()), out)
    other, inside = tiny(rounds=1, seed=1, search=section()), tiny(rounds=1, search=section())
    endless = tiny(search=section({"local.learning_rate": {"choice": [1e30]}}))
    another = "holds a search with another configuration"
    a_run = partial(begun, inside, out / "trials" / "000")
    none = partial(begun, endless, tmp_path / "none")
    refusals.check(
        [
            ("another search", partial(begun, other, out), ConfigError, another),
            ("a run", a_run, ConfigError, "holds a run; choose another folder"),
            ("no result", none, RunError, "No trial has a result"),
        ]
    )
