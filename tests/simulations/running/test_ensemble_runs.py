"""`fedpart train` with several members: what its files, its panel and its pictures tell."""

import json

import pytest
from command_line import fedpart, refused
from tiny import tiny_training, tiny_training_file

from simulations.folders.run_directory import read_metrics, read_summary
from simulations.results.pictures.run_figures import anytime_figure, has_costs

MEMBERS = [{"model": "digits_cnn", "width": width} for width in (1.0, 0.5)]
KEYS = {
    "data": "digits",
    "model": "ensemble",
    "model_options": {"kind": "slimmable", "members": MEMBERS},
    "likelihood": "ensemble",
    "hyperparameters": {"affine": None, "dropout": {}, "mask": None},
    "corrupted": True,
    "iterations": 6,
    "evaluate_every": 3,
    "samples": 1,
}


@pytest.fixture(autouse=True)
def _wide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def test_a_partitioned_run_tells_of_its_members(tmp_path):
    done = fedpart("train", tiny_training_file(tmp_path, **KEYS), "--out", "run")
    assert done.exit_code == 0, done.output
    summary = read_summary(tmp_path / "run")
    found, mean = summary["ensemble"], summary["corrupted"]["mean"]
    assert [row["members"] for row in found["subsets"]] == [[0], [1], [0, 1]]
    assert found["accuracy"] == summary["test_accuracy"]
    assert found["nll"] == pytest.approx(summary["test_nll"])
    lines = read_metrics(tmp_path / "run")
    assert lines[-1]["train_loss"] > 1.5 * lines[-1]["val_nll"], "the sum over two members"
    assert lines[-1]["lml"] < 0
    for text in ("ensemble", "members", "diversity", "corrupted", f"{mean['accuracy']:.1%}"):
        assert text in done.output
    assert (tmp_path / "run" / "anytime.png").stat().st_size > 5_000
    assert has_costs(summary) and not has_costs({}) and not has_costs({"ensemble": {"accuracy": 1.0}})
    (axes,) = anytime_figure(summary).axes
    assert [line.get_label() for line in axes.lines] == ["best so far", "1 member", "2 members"]
    shown = sorted(x for line in axes.lines[1:] for x in line.get_xdata())
    assert shown == pytest.approx(sorted(row["multiply_adds"] / 1e6 for row in found["subsets"]))
    json.dumps(summary)


def test_what_does_not_fit_together_is_said(tmp_path):
    run = tiny_training_file(tmp_path, **KEYS, method="none", chunks=[1.0])
    refused(fedpart("train", run, "--set", "model_options.kind=deeep"), "did you mean 'deep'?")
    plain = fedpart("train", run, "--set", "likelihood=classification", "--out", "plain")
    refused(plain, "use likelihood='ensemble'", status=plain.exit_code)
    mimo = ["model_options.kind=mimo", "model_options.members=[{model: digits_cnn, times: 2}]"]
    partitioned = ["method=partitioned", "chunks=[0.5, 0.5]"]
    done = fedpart("train", run, *(part for one in (*mimo, *partitioned) for part in ("--set", one)))
    refused(done, "Mimo at the top level cannot be partitioned")
    with pytest.raises(ValueError, match="corrupted cannot be 3"):
        tiny_training(corrupted=3)
    tokens = tiny_training_file(tmp_path, corrupted=True)
    refused(fedpart("train", tokens, "--out", "tokens"), "Only images", "set corrupted: false")
    assert not (tmp_path / "tokens").exists()
