"""A search: what it tries, that it goes on as if nothing had been, what it costs, what it refuses."""

import csv
import io
import json
import signal

import command_line
import pytest
import yaml
from fake_runs import write_run
from rich.console import Console
from tiny import tiny

from simulations.config.load import load_config
from simulations.folders.run_directory import read_metrics, read_summary
from simulations.running.run import run_experiment
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.search.search import run_search
from simulations.sweeps.search.study import Study

SPACE = {
    "local.learning_rate": {"log": [1e-3, 1.0]},
    "server.learning_rate": {"choice": [1e-6, 0.02]},
    "local.epochs": [1, 2],
    "chunks": {"choice": [[0.5, 0.3, 0.2], [0.5, 0.5]]},
}
SHORT = {"rounds": 6, "evaluate_every": 1, "samples": 1, "checkpoint_every": 1}


def searched(space=SPACE, trials=5, **changes):
    section = {"space": space, "trials": trials, "min_rounds": 1, "objective": "val_nll"}
    for key in ("sampler", "pruner", "objective"):
        section |= {key: changes.pop(key)} if key in changes else {}
    return tiny(**{**SHORT, **changes, "search": section})


def run(config, out, **how):
    return run_search(config, out, CellRunner(console=Console(file=io.StringIO()), **how))


def pretend(config, out, watch, **_):
    """In place of a run: losses that follow from the rates that it has been given."""
    accuracy = 0.5 - config.local.learning_rate / 10 - config.server.learning_rate
    write_run(out, config, [accuracy] * config.rounds)
    for line in read_metrics(out):
        watch(line)


def trials_of(out):
    """All that Optuna knows of each, but for when it was."""
    return [
        (trial.number, trial.state, trial.params, trial.values, trial.intermediate_values)
        for trial in Study(out, load_config(out / "config.yaml")).trials
    ]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("search") / "asha"
    return out, run(searched(pruner="asha", trials=6), out)


@pytest.mark.slow
def test_every_byte_round_and_second_of_all_trials_is_counted(found):
    out, result = found
    assert {row.state for row in result.rows} == {"complete", "pruned"}
    lines = [read_metrics(folder) for folder in sorted((out / "trials").iterdir())]
    assert len(lines) == 6 and len({len(run) for run in lines}) > 1
    for key in ("download_bytes", "upload_bytes", "examples", "client_seconds"):
        assert getattr(result.spent, key) == pytest.approx(sum(line[key] for run in lines for line in run))
    assert result.spent.rounds == sum(map(len, lines))
    rows = list(csv.DictReader((out / "search.csv").open()))
    assert int(rows[-1]["spent_upload_bytes"]) == result.spent.upload_bytes
    assert int(rows[-1]["spent_examples"]) == result.spent.examples == sum(int(r["examples"]) for r in rows)
    seconds = [float(row["spent_seconds"]) for row in rows]
    assert seconds == sorted(seconds)


@pytest.mark.slow
def test_the_best_configuration_is_one_that_runs_and_says_the_same(found, tmp_path):
    out, result = found
    best = min((row for row in result.rows if row.objective is not None), key=lambda row: row.objective)
    assert result.best.objective == best.objective
    config = load_config(out / "best.yaml")
    assert config.local.learning_rate == result.best.values["local.learning_rate"]
    assert list(config.chunks) == result.best.values["chunks"]
    run_experiment(config, tmp_path / "again")
    assert read_metrics(tmp_path / "again")[-1]["val_nll"] == result.best.objective
    assert json.loads((out / "search.json").read_text())["best"]["values"] == result.best.values
    assert (out / "spent.png").stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", "tpe", "gp"])
def test_what_a_trial_tries_follows_from_those_before_it(sampler, tmp_path):
    """A search of four is one of two that goes on."""
    for trials, folder in ((2, "part"), (4, "part"), (4, "whole")):
        run(searched(sampler=sampler, trials=trials, rounds=1), tmp_path / folder, run=pretend)
    assert trials_of(tmp_path / "part") == trials_of(tmp_path / "whole")
    assert len({str(params) for _, _, params, _, _ in trials_of(tmp_path / "whole")}) == 4


@pytest.mark.quick(1)
@pytest.mark.parametrize("sampler", ["random", "tpe", "gp"])
def test_the_first_trial_has_the_configurations_own_values_if_all_are_offered(sampler, tmp_path):
    own = {"local.learning_rate": 0.25, "server.learning_rate": 0.02, "local.epochs": 2, "chunks": [0.5, 0.5]}
    settings = {"local": {"learning_rate": 0.25, "epochs": 2}, "chunks": [0.5, 0.5]}
    settings |= {"sampler": sampler, "rounds": 1, "server": {"learning_rate": 0.02}}
    found = run(searched(trials=2, **settings), tmp_path / "out", run=pretend)
    assert found.rows[0].values == own and all(row.values != own for row in found.rows[1:])
    other = {**settings, "server": {"learning_rate": 0.5}}
    drawn = run(searched(trials=1, **other), tmp_path / "drawn", run=pretend)
    assert all(drawn.rows[0].values[key] != own[key] for key in ("local.learning_rate", "chunks"))


def test_no_values_are_tried_twice_while_there_are_others(tmp_path):
    space = {"local.learning_rate": {"choice": [0.05, 0.1]}, "server.learning_rate": {"choice": [0.01, 0.02]}}
    found = run(searched(space=space, trials=5, sampler="random", rounds=1), tmp_path / "out", run=pretend)
    tried = [tuple(row.values.items()) for row in found.rows]
    assert len(set(tried[:4])) == 4 and tried[4] in tried[:4]


def begun(config, out, *options):
    """The command in a process of its own, with what it prints."""
    file = out.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(config.resolved()))
    return command_line.begun("search", *options, file, "--out", out)


@pytest.mark.slow
def test_after_a_kill_it_ends_with_the_trials_of_an_undisturbed_one(found, tmp_path):
    (undisturbed, expected), out = found, tmp_path / "killed"
    config = load_config(undisturbed / "config.yaml")
    process = begun(config, out)
    for line in process.stdout:
        if line.startswith("Trial 2 of 6"):
            break
    while not (out / "trials" / "002" / "metrics.jsonl").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    resumed = run(load_config(out / "config.yaml"), out)
    assert trials_of(out) == trials_of(undisturbed)
    assert resumed.best.values == expected.best.values
    assert read_summary(out / "trials" / f"{resumed.best.number:03d}") is not None


@pytest.mark.slow
def test_clients_may_be_the_judges(tmp_path):
    space = {"local.learning_rate": [0.01, 0.2]}
    options = {"evaluation": "clients", "objective": "client_accuracy", "trials": 2, "rounds": 2}
    judged = run(searched(space=space, **options), tmp_path / "out")
    assert all(row.summary["client_accuracy"] == row.objective for row in judged.rows)
    assert judged.spent.evaluation_bytes > 0


@pytest.mark.slow
def test_a_trial_that_fails_costs_what_it_has_used_and_the_search_goes_on(tmp_path):
    space = {"local.learning_rate": {"choice": [0.05, 1e30]}}
    result = run(searched(space=space, sampler="random", trials=5, rounds=2), tmp_path / "out")
    states = {row.values["local.learning_rate"]: row.state for row in result.rows}
    assert states == {0.05: "complete", 1e30: "failed"}
    assert result.best.values == {"local.learning_rate": 0.05}


@pytest.mark.slow
def test_values_that_fit_alone_and_not_together_are_a_failed_trial_and_more_trials_are_kept(tmp_path):
    space = {"clients": {"choice": [10, 20]}, "cohort": {"choice": [10, 20]}}
    config = {"space": space, "sampler": "random", "rounds": 1, "clients": 20, "cohort": 10}
    run(searched(**config, trials=1), tmp_path / "out", run=pretend)
    found = run(searched(**config, trials=6), tmp_path / "out", run=pretend)
    misfits = [row.values["clients"] < row.values["cohort"] for row in found.rows]
    assert [row.state == "failed" for row in found.rows] == misfits and any(misfits)
    assert load_config(tmp_path / "out" / "config.yaml").search.trials == 6
