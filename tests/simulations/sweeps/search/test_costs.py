"""What searches and runs have cost, and what cannot be searched."""

import csv
import io
import json
from functools import partial

import pytest
import refusals
import yaml
from command_line import fedpart, refused
from fake_runs import small_config, write_run
from rich.console import Console
from tiny import tiny, tiny_training

from simulations.errors import ConfigError, RunError
from simulations.results.search import Cost
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.search.costs import read_costs
from simulations.sweeps.search.search import run_search

VALIDATION = [(i + 1) / 20 for i in range(12)]  # of a round each, 1,800 bytes


def run(folder, test, **changes):
    write_run(folder, small_config(), VALIDATION, test_accuracy=test, **changes)
    return folder


def search(folder, accuracies, kilobyte=1000):
    """Of trials that take 6 rounds, 10,000 bytes, 50 examples and 4 seconds of clients each."""
    lines = []
    for n, accuracy in enumerate(accuracies, start=1):
        spent = Cost(6 * n, *(kilobyte * n * part for part in (4, 5, 1)), 50 * n, 4.0 * n, 9.0 * n)
        lines.append({f"spent_{name}": value for name, value in vars(spent).items()})
        lines[-1]["best_test_accuracy"] = accuracy
    folder.mkdir()
    (folder / "search.json").write_text(json.dumps({"trials": lines}))
    return folder


@pytest.fixture
def folders(tmp_path):
    runs = [run(tmp_path / "run0", 0.58), run(tmp_path / "run1", 0.60)]
    tried = ([None, 0.7, 0.64], [0.3, 0.9, 0.66])
    return {"run": runs, "search": [search(tmp_path / f"search{i}", own) for i, own in enumerate(tried)]}


def test_a_table_by_hand(folders):
    found = read_costs(folders)
    run, search = (found.estimates(entry) for entry in found.entries)
    assert (run["bytes"].mean, run["rounds"].mean) == (12 * 1800, 12)
    totals = {key: search[key].mean for key in ("bytes", "rounds", "examples", "client_seconds")}
    assert totals == {"bytes": 30_000, "rounds": 18, "examples": 150, "client_seconds": 12}
    assert (run["test_accuracy"].mean, search["test_accuracy"].mean) == pytest.approx((0.59, 0.65))
    assert run["test_accuracy"].error == pytest.approx(0.01)
    for key in ("at_equal_bytes", "at_equal_rounds"):  # two trials are 20,000 bytes and 12 rounds
        assert (run[key].mean, search[key].mean) == pytest.approx((0.59, 0.8))
    assert found.accuracy == 0.58
    assert (run["bytes_to_accuracy"].mean, search["bytes_to_accuracy"].mean) == (12 * 1800, 20_000)


@pytest.mark.parametrize(("accuracy", "of_run", "of_search"), [(0.3, 6 * 1800, 15_000), (0.61, None, 20_000)])
def test_bytes_to_an_accuracy(folders, accuracy, of_run, of_search):
    found = read_costs(folders, accuracy)
    bytes_to = [found.estimates(entry)["bytes_to_accuracy"] for entry in found.entries]
    assert [None if estimate is None else estimate.mean for estimate in bytes_to] == [of_run, of_search]


def test_the_curve_is_the_mean_of_what_the_seeds_deploy(folders):
    run, search = (entry.band() for entry in read_costs(folders).entries)
    assert search.x.tolist() == [20_000, 30_000]  # one of them has nothing after its first trial
    assert search.mean == pytest.approx([0.8, 0.65]) and search.error == pytest.approx([0.1, 0.01])
    assert run.mean[:-1] == pytest.approx(VALIDATION[:-1]) and run.mean[-1] == pytest.approx(0.59)


def test_the_command_writes_table_and_picture(folders, tmp_path):
    named = [f"{label}={','.join(map(str, own))}" for label, own in folders.items()]
    result = fedpart("costs", *named, run(tmp_path / "a=b,c", 0.5), "--out", tmp_path / "out")
    assert result.exit_code == 0 and "costs.csv, costs.md, costs.png" in result.output
    rows = list(csv.DictReader((tmp_path / "out" / "costs.csv").open()))
    assert [(row["method"], row["seeds"]) for row in rows] == [("run", "2"), ("search", "2"), ("a=b,c", "1")]
    assert float(rows[1]["at_equal_bytes"]) == pytest.approx(0.8)
    row = "| search (2) | 65.0 ± 1.0 | 30 kB | 18 | 12 | 150 |"
    assert row in (tmp_path / "out" / "costs.md").read_text()
    assert (tmp_path / "out" / "costs.png").stat().st_size > 5000


def test_what_cannot_be_compared_is_refused(folders, tmp_path):
    one = folders["run"][0]
    unfinished = run(tmp_path / "unfinished", 0.5, finished=False)
    longer = run(tmp_path / "longer", 0.5)
    config = yaml.safe_load((longer / "config.yaml").read_text())
    (longer / "config.yaml").write_text(yaml.safe_dump(config | {"rounds": 100}))
    silent = search(tmp_path / "silent", [0.5], kilobyte=0)  # without federation
    for named, says in (
        ([unfinished], "holds no finished search and no finished federated run"),
        ([longer], "holds no finished search and no finished federated run"),
        ([silent], "has sent nothing"),
        ([run(tmp_path / "untested", None)], "has no accuracy on test data"),
        ([f"a={one},{one}"], "is named twice"),
        ([f"a={one}", "a=b"], "Two arguments are called a"),
        (["a="], "names no folder"),
    ):
        refused(fedpart("costs", *named, "--out", tmp_path / "out"), says)
    assert not (tmp_path / "out").exists()


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
        (section({"cohort": [1, 300]}), {}, "cohort must be between 1 and the number of clients"),
        (section(objective="client_nll"), {}, "set evaluation: clients"),
        (section(), {"evaluation": "none"}, "set evaluation: central"),
    ]
    calls = [(partial(searched, tmp_path / "out", search=of, **more), says) for of, more, says in rows]
    no_clients = r"no clients for search\.objective: client_nll; set it to val_"
    calls.append((partial(begun, central, tmp_path / "out"), no_clients))
    refusals.check((says, call, ConfigError, says) for call, says in calls)
    assert not (tmp_path / "out" / "trials").exists()


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
