"""keep_best: the weights of the round with the best smoothed L_ML, on every engine and after a stop."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tiny import KEPT, tiny
from torch import nn

from fedpart import AffineAugmentation, ConcreteDropout, FederationSettings, Protocol, Task, federate, load
from fedpart.data import random_subset
from fedpart.federated.best import WINDOW, fallen
from simulations.building.data import load_data
from simulations.folders.run_directory import read_metrics, saved_config
from simulations.results.terminal.panel import panel
from simulations.running.recorder import Interrupted
from simulations.running.resume import beside_config
from simulations.running.run import run_experiment
from simulations.sweeps.compare import plan


def shards():
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    return [(x[i::6], (x[i::6, 0] > 0).long()) for i in range(6)]


def console_text(what):
    console = Console(record=True, width=300, force_terminal=False, file=io.StringIO())
    console.print(what)
    return console.export_text()


def task():
    torch.manual_seed(0)
    return Task(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), ConcreteDropout(0.1), nn.Linear(8, 2)), samples=1)


def learned(rounds, **settings):
    fast = {"server": {"learning_rate": 0.3}, "cohort": 6, "chunks": (0.5, 0.5)}  # so that L_ML falls, too
    return federate(task(), shards(), rounds=rounds, **fast, **settings)


@pytest.fixture(scope="module")
def whole():
    return learned(30, keep_best="lml")


def test_it_ends_with_what_the_best_round_has_started_from(whole):
    """The mean of ten L_ML by hand; that round's values are those of a run that ends before it."""
    lmls = [report.lml for report in whole.metrics]
    means = {end: sum(lmls[end - WINDOW : end]) / WINDOW for end in range(WINDOW, 31)}
    best = max(means, key=means.get)
    assert whole.state.best.round == best < 30 and whole.state.best.lml == pytest.approx(means[best])
    before = learned(best - 1).state
    assert torch.equal(whole.state.w, before.w) and torch.equal(whole.state.psi, before.psi)


def test_fewer_rounds_than_a_window_end_with_the_last_and_the_card_says_so(tmp_path):
    summary = run_experiment(tiny(keep_best="lml", rounds=2), tmp_path)
    text = " ".join(console_text(panel(summary, tmp_path)).split())
    assert "kept those of the last round, for fewer than ten have an L_ML" in text
    assert torch.equal(learned(5, keep_best="lml").state.w, learned(5).state.w)


@pytest.mark.parametrize(
    "more", [{"method": "fedavg"}, {"method": "validated"}, {"method": "augerino+yogi"}, {"chunks": (1.0,)}]
)
def test_a_method_without_l_ml_is_refused(more):
    """Before anything is learned, and not ended with the last round's weights in silence."""
    network = Task(task().module, transforms=[AffineAugmentation()]) if "augerino" in str(more) else task()
    settings = {"clients": 6, "cohort": 6, "keep_best": "lml", "chunks": (0.5, 0.5), **more}
    with pytest.raises(ValueError, match=r"keep_best goes by L_ML.* set keep_best to null"):
        Protocol(network, FederationSettings(**settings))


@pytest.mark.parametrize("other", ["fedavg", "fedrep", "validated+scaffold"])
def test_a_method_without_l_ml_is_compared_without_keep_best(other):
    config = tiny(keep_best="lml", beside=other, evaluation="clients")
    assert beside_config(config).keep_best is None
    kept = [cell.config.keep_best for cell in plan(config, ["partitioned+scaffold", other], 1, Path("out"))]
    assert kept == ["lml", None]


PRIVATE = {"privacy": {"noise_multiplier": 1.0}, "clip": {"weights": 1.0, "psi": 1.0}, "weighting": "uniform"}


@pytest.mark.parametrize("more", [{"buffer": 2}, PRIVATE])
def test_where_l_ml_is_not_of_a_round_it_is_refused(more):
    with pytest.raises(ValueError, match=r"keep_best goes by L_ML.* leave keep_best out"):
        learned(1, keep_best="lml", **more)


@pytest.mark.slow
def test_a_checkpoint_holds_the_last_values_and_the_best_so_that_more_rounds_follow(tmp_path, whole):
    options = {"keep_best": "lml", "checkpoint": tmp_path / "c.pt"}
    learned(17, **options)
    again = learned(30, resume=True, **options)
    assert torch.equal(again.state.w, whole.state.w) and again.state.best.round == whole.state.best.round
    with pytest.raises(ValueError, match="keep_best was None, is 'lml'"):
        learned(1, checkpoint=tmp_path / "plain.pt")
        learned(2, keep_best="lml", checkpoint=tmp_path / "plain.pt", resume=True)


@pytest.mark.slow
def test_runs_that_are_stopped_and_of_workers_keep_the_same_and_score_what_they_keep(tmp_path):
    """And Ray, in test_ray.py."""
    summary = run_experiment(tiny(**KEPT), tmp_path / "whole")
    assert summary["kept_round"] <= 20 and summary["kept_lml"] < 0
    validation = random_subset(load_data(tiny(**KEPT)).validation, 30, 0)
    scores = load(tmp_path / "whole").state.evaluate(validation)
    assert summary["val_accuracy"] == scores["accuracy"]
    text = " ".join(console_text(panel(summary, tmp_path / "whole")).replace("│", " ").split())
    assert f"kept weights and psi at the start of round {summary['kept_round']}, with L_ML" in text
    assert "scores are of these" in text and "mean of the last 1" not in text

    def stop(line):
        if line["round"] == 13:
            raise Interrupted(2, "round")

    several = tiny(**KEPT, workers=2)
    with pytest.raises(Interrupted):
        run_experiment(several, tmp_path / "stopped", watch=stop)
    summary = run_experiment(several, tmp_path / "stopped", resume=True)
    states = [(tmp_path / name / "state.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert states[0] == states[1]
    times = {"seconds": 0, "client_seconds": 0}
    lines = [[line | times for line in read_metrics(tmp_path / name)] for name in ("whole", "stopped")]
    assert str(lines[0]) == str(lines[1])
    assert "on the local engine, 2 workers" in console_text(panel(summary, tmp_path))
    assert saved_config(tmp_path / "stopped").workers == summary["workers"] == 2


def test_l_ml_that_falls_for_long_is_told_with_its_round():
    wave = [0.01 * (-1) ** i for i in range(100)]
    course = [-1 + 0.02 * min(i, 40) - 0.02 * max(0, i - 40) for i in range(100)]
    lmls = [x + y for x, y in zip(course, wave, strict=True)]

    def told(of_rounds, first=1, **options):
        return fallen(enumerate(of_rounds, first), **options)

    assert "L_ML has fallen since round 4" in told(lmls) and "set keep_best" in told(lmls)
    assert "keep_best" not in told(lmls, kept=True)
    assert "L_ML has fallen since round 14" in told(lmls, first=101), "earlier rounds may not be known"
    assert told(lmls[:50]) == told(wave) == told([]) == told([None] * 50) == told(course[:41]) == ""
    holes = [lml for value in lmls for lml in (value, None)]
    assert "since round" in told(holes)
