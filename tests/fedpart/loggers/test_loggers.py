"""Loggers of federate() and fit(), and the numbers that they get."""

import json
from functools import partial

import pytest
import refusals
import torch
from logged_points import as_kept_by, in_lines, written
from problems import chain_net, shards

from fedpart import Dataset, Task, federate, fit
from fedpart.loggers import Logger, Loggers
from fedpart.loggers.lines import flat, scalars
from fedpart.loggers.logged import EACH


def task():
    return Task(chain_net(), samples=1)


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_scalars_are_the_numbers_of_a_line_under_the_names_that_it_has():
    line = {
        "round": 3,
        "train_loss": 1.5,
        "lml": None,
        "cohort": [4, 7],
        "stepped": True,
        "refused": {"malformed": 2},
        "skipped": [{"client": 1, "category": "late", "reason": "x"}],
        "client_nll_chunks": [0.5, None, 0.25],
        "client_nll_each": [0.5, 0.5, 0.5],
        "psi": {"raw": {"affine.range": [0.1]}, "physical": {"affine.angle_max [deg]": 5.7}},
    }
    assert scalars(line) == {
        "train_loss": 1.5,
        "stepped": True,
        "refused/malformed": 2,
        "client_nll_chunks/1": 0.5,
        "client_nll_chunks/3": 0.25,
        "psi/affine.angle_max [deg]": 5.7,
    }
    named = flat({"a": {"b": 1, "c": None}, "d": [1, 2], "e": {}})
    assert named == {"a.b": 1, "a.c": "None", "d": "[1, 2]", "e": "{}"}


def test_federate_goes_on_with_the_same_curves_and_the_same_bits(tmp_path):
    data, held_out = shards([12, 9, 10, 8]), shards([20], seed=1)[0]
    common = {"validation": held_out, "evaluate_every": 2, "method": "partitioned", "chunks": (0.6, 0.4)}
    calm = federate(task(), data, rounds=6, **common)
    seen = []

    def die(report):
        if report.round == 5:
            raise RuntimeError("died")

    run = {"checkpoint": tmp_path / "run.pt", "checkpoint_every": 2, "loggers": ["tensorboard", seen.append]}
    with pytest.raises(RuntimeError, match="died"):
        federate(task(), data, rounds=6, on_round=die, **common, **run)
    logs = tmp_path / "run.logs"
    assert [line["round"] for line in lines_of(logs)] == [1, 2, 3, 4, 5]
    result = federate(task(), data, rounds=6, resume=True, **common, **run)
    assert torch.equal(calm.state.w, result.state.w) and torch.equal(calm.state.psi, result.state.psi)
    lines = lines_of(logs)
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert written("tensorboard", logs) == as_kept_by("tensorboard", in_lines(lines))
    assert [line["round"] for line in seen] == [1, 2, 3, 4, 5, 5, 6]  # a function has no past
    assert lines[-1]["psi"]["physical"] == result.psi


def test_fit_logs_its_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"iterations": 6, "chunks": (0.5, 0.5), "batch_size": 8, "evaluate_every": 3}
    fit(task(), shards([40])[0], **options, loggers=["tensorboard"])
    (folder,) = (tmp_path / "runs").iterdir()
    assert [line["iteration"] for line in lines_of(folder)] == [3, 6]
    assert written("tensorboard", folder) == as_kept_by("tensorboard", in_lines(lines_of(folder)))


def test_functions_alone_leave_no_folder_and_the_others_go_on_where_one_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    federate(task(), shards([8, 8, 8]), rounds=2, loggers=[seen.append])
    assert [line["round"] for line in seen] == [1, 2] and not list(tmp_path.iterdir())
    seen = []

    def fails(line):
        raise KeyError("x")

    loggers = Loggers([fails, seen.append])
    with pytest.warns(RuntimeWarning, match="The logger fails has failed"):
        loggers.log({"round": 1})
    loggers.log({"round": 2})
    assert seen == [{"round": 1}, {"round": 2}] and len(loggers) == 1


def test_progress_prints_ten_rounds_then_evaluations_or_as_far_apart_and_the_last(capsys):
    rounds, data = EACH + 5, shards([8, 8, 8])
    shown = {"validation": data[0], "evaluate_every": EACH + 2, "progress": True}
    federate(task(), data, rounds=rounds, **shown)
    told, *printed = [line.partition("/")[0] for line in capsys.readouterr().out.splitlines()]
    assert "24 examples of 3 clients" in told
    assert printed == [f"round {n}" for n in (*range(1, EACH + 1), EACH + 2, rounds)]
    federate(task(), data, rounds=2)
    assert capsys.readouterr().out == ""
    federate(task(), shards([8, 8, 8]), rounds=EACH + 8, evaluate_every=6, evaluation="none", progress=True)
    _, *printed = [line.partition("/")[0] for line in capsys.readouterr().out.splitlines()]
    assert printed[EACH:] == [f"round {n}" for n in (12, 18)]


TWICE = {"iterations": 2, "chunks": (0.5, 0.5)}


class Ends(Logger):
    """Keeps what it is told at the end."""

    def __init__(self):
        self.ends = []

    def log(self, line):
        pass

    def finish(self, summary):
        self.ends.append(summary)


@pytest.mark.parametrize("test", [None, shards([20], seed=1)[0]])
def test_the_end_has_the_scores_of_the_test(test, tmp_path):
    one, other, data = Ends(), Ends(), shards([8, 8, 8])
    done = (
        federate(task(), data, rounds=2, test=test, checkpoint=tmp_path / "a.pt", loggers=[one]),
        fit(task(), data[0], **TWICE, test=test, checkpoint=tmp_path / "b.pt", loggers=[other]),
    )
    for result, (summary,) in zip(done, (one.ends, other.ends), strict=True):
        assert ("test_nll" in summary) == (test is not None)
        assert summary.get("test_nll") == result.test_nll and "train_loss" in summary


class Deaf(Logger):
    def start(self, run):
        raise OSError("nobody answers")


def test_what_is_no_logger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logged = partial(federate, Task(chain_net(), samples=1), shards([8, 8, 8]), rounds=1)
    rows = [
        (["tensorbord"], "Unknown logger 'tensorbord': did you mean 'tensorboard'"),
        ("tensorboard", r"write \['tensorboard'\]"),
        ([{"use": "mlflow", "uri": "x"}], "has the keys use and options"),
        ([3], "'int' is no logger"),
        ([Dataset], "is no logger"),
        ([{"use": "wandb", "options": {"mode": "away"}}], "offline or online, not 'away'"),
        ([{"use": "tensorboard", "options": {"folder": "x"}}], "does not take the options"),
        ([Deaf()], "The logger Deaf cannot start .nobody answers.; mend or leave it out"),
    ]
    refusals.check((says, partial(logged, loggers=loggers), says) for loggers, says in rows)
