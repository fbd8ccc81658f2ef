"""The likelihood of a configuration: its options, its measures in the summary, and what is wrong with it."""

from pathlib import Path

import pytest
import yaml
from tiny import tiny, tiny_training

from fedpart.nn.likelihoods import Classification
from simulations.config.load import ConfigError
from simulations.running.run import run_experiment

OPTIONS = {"temperature": 1.5, "label_smoothing": 0.1}
MEASURED = {"test_f1", "test_calibration_error"}
MAKE = {"federated": lambda **of: tiny(rounds=1, **of), "centralised": lambda **of: tiny_training(**of)}


@pytest.mark.parametrize("kind", MAKE)
def test_options_are_learned_and_measures_are_in_the_summary(kind: str, tmp_path: Path) -> None:
    config = MAKE[kind](likelihood_options=OPTIONS, measures=True)
    summary = run_experiment(config, tmp_path / "run")
    assert summary.keys() >= MEASURED and all(0 <= summary[name] <= 1 for name in MEASURED)
    assert summary["psi"].keys() >= {"likelihood.temperature", "likelihood.label_smoothing [%]"}
    assert summary["psi"]["likelihood.temperature"] != pytest.approx(OPTIONS["temperature"], rel=1e-6)
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["likelihood_options"] == OPTIONS and written["measures"] is True


def test_without_them_the_summary_has_none(tmp_path: Path) -> None:
    assert not run_experiment(tiny(rounds=1), tmp_path / "run").keys() & MEASURED


def test_a_shipped_network_ends_in_as_many_outputs_as_the_likelihood_takes(tmp_path: Path) -> None:
    config = tiny(rounds=1, likelihood="ordinal", likelihood_options={"classes": 10}, measures=True)
    summary = run_experiment(config, tmp_path / "run")
    assert 0 <= summary["test_accuracy"] <= 1 and summary["test_mae"] >= 0
    assert len([name for name in summary["psi"] if name.startswith("likelihood.cut")]) == 9


class NoMeasures(Classification):
    """Measures fail, as torchmetrics does where something does not fit."""

    def measures(self, outputs, targets):
        raise RuntimeError("expected\nsomething else")


@pytest.mark.parametrize("kind", MAKE)
def test_measures_that_fail_lose_no_finished_run(kind: str, tmp_path: Path) -> None:
    config = MAKE[kind](likelihood=f"{__name__}:NoMeasures", measures=True)
    summary = run_experiment(config, tmp_path / "run")
    assert "cannot be computed (expected something else); leave" in summary["test_measures_missing"]
    assert summary["test_accuracy"] is not None


class Positive(Classification):
    """Takes every class but 1, and says so before anything is computed."""

    def faults(self, targets, classes):
        yield targets == 1, "the class 1", "leave them out"


@pytest.mark.parametrize("kind", MAKE)
def test_held_out_data_are_looked_at_before_there_is_a_folder(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"of the (validation|training) data have the class 1; leave"):
        run_experiment(MAKE[kind](likelihood=f"{__name__}:Positive"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
