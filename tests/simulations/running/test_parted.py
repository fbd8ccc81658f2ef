"""Runs whose server has a part of the network: nobody is told that it is a network."""

from contextlib import nullcontext
from functools import partial

import pytest
import refusals
from command_line import fedpart, refused, shown
from tiny import tiny, tiny_file

from fedpart import federate, load
from fedpart.data import load_splits
from fedpart.nn.models import MODELS
from simulations.folders.run_directory import read_metrics, read_summary
from simulations.results.curves import Run
from simulations.results.report.page import write_report
from simulations.results.terminal.panel import panel
from simulations.running.run import run_experiment

PARTED = {"method": "fedrep", "evaluation": "clients", "rounds": 3, "hyperparameters": {}}


def test_the_server_is_not_scored_and_clients_are(tmp_path):
    summary = run_experiment(tiny(**PARTED), tmp_path)
    assert summary["test_accuracy"] is summary["val_accuracy"] is None
    assert summary["client_accuracy"] is not None and "clients keep" in summary["parted"]
    assert not any("val_accuracy" in line for line in read_metrics(tmp_path))
    text = " ".join(shown(panel(read_summary(tmp_path), tmp_path)).replace("│", " ").split())
    assert "on examples that clients hold out" in text and "is not scored" in text
    assert "on test data" not in text and "by guess" not in text
    assert Run.load(tmp_path).last10("client_accuracy") is not None
    write_report(tmp_path)


def test_one_that_has_all_of_it_is_scored(tmp_path):
    summary = run_experiment(tiny(**{**PARTED, "method": "ditto"}), tmp_path)
    assert summary["test_accuracy"] is not None and summary["val_accuracy"] is not None
    assert summary["client_accuracy"] is not None and "parted" not in summary


@pytest.mark.slow
def test_a_comparison_has_its_clients(tmp_path, in_a_folder_of_its_own):
    file = tiny_file(tmp_path, **{**PARTED, "method": "partitioned"})
    done = fedpart("compare", file, "--methods", "fedavg,fedrep,ditto", "--out", "out")
    assert done.exit_code == 0, done.output
    assert "fedrep" in done.output and fedpart("report", "out").exit_code == 0


def test_a_search_for_the_server_s_score_is_refused(tmp_path, in_a_folder_of_its_own):
    search = {"space": {"local.learning_rate": [0.01, 0.1]}, "trials": 2, "objective": "val_accuracy"}
    refused(
        fedpart("search", tiny_file(tmp_path, **PARTED, search=search), "--out", "out"),
        "Nobody evaluates val_accuracy",
    )


def test_nothing_is_made_of_weights_that_nobody_has_trained(tmp_path):
    rows = "".join(f"{i % 7},{i % 3},{'ab'[i % 2]}\n" for i in range(90))
    (tmp_path / "table.csv").write_text("x,who,y\n" + rows)
    table = {"data": "table", "data_dir": str(tmp_path / "table.csv"), "model": "mlp"}
    table |= {"clients": 3, "cohort": 2}
    options = {"data_options": {"target": "y", "client": "who"}, "split": {"recipe": "natural"}}
    sizes = dict.fromkeys(("training_points", "validation_points", "test_points"))
    run_experiment(tiny(**PARTED | table | options | sizes), tmp_path / "run")
    run, says = tmp_path / "run", "With fedrep clients keep"
    new = fedpart("predict", run, tmp_path / "table.csv", "--out", tmp_path / "new.csv")
    for done in (new, fedpart("export", run, "--format", "safetensors")):
        refused(done, "With fedrep clients keep", "; fedpart personalise RUN --save FOLDER, in Python")
    assert not (tmp_path / "new.csv").exists() and not (run / "model.safetensors").exists()
    loaded = load(run)
    calls = (partial(loaded.predict, [{"x": 1, "who": 0}]), loaded.module, loaded.with_preprocessing)
    refusals.check((f"{call}", call, ValueError, says) for call in calls)
    done = fedpart("personalise", run, "--save", tmp_path / "nets")
    assert done.exit_code == 0, done.output
    assert "what clients keep is as it began" in " ".join(done.output.split())
    assert len([*(tmp_path / "nets").iterdir()]) == 3


@pytest.mark.parametrize(("method", "scored"), [("fedrep", False), ("ditto", True)])
def test_federate_likewise(method, scored, capsys):
    digits = load_splits("digits")
    clients = [digits.train.subset(range(i, 60, 6)) for i in range(6)]
    result = federate(
        MODELS.make("mlp", {"num_classes": 10, "input_shape": (1, 28, 28)}), clients, rounds=1, method=method,
        validation=digits.validation, test=digits.test, evaluation="clients",
    )  # fmt: skip
    assert ("is not scored" in capsys.readouterr().out) is not scored
    assert (result.metrics[-1].val_accuracy is not None) is scored
    for use in (result.module, partial(result.predict, digits.test.inputs[:2])):
        with nullcontext() if scored else pytest.raises(ValueError, match=r"^With fedrep clients keep"):
            use()
