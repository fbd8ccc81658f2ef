"""The likelihood of a configuration: its options, its measures in the summary, and what is wrong with it."""

from pathlib import Path

import pytest
import yaml
from tiny import tiny, tiny_training

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


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"likelihood_options": {"temperatur": 2}}, "has no option 'temperatur': did you mean 'temperature'"),
        ({"likelihood": "gausian"}, "did you mean 'gaussian'"),
        ({"likelihood": "ordinal"}, r"'ordinal' needs classes; .*likelihood_options: \{classes: \.\.\.\}"),
        ({"likelihood_options": {"label_smoothing": 1.5}}, "strictly between 0 and 1, got 1.5"),
    ],
)
def test_a_likelihood_that_cannot_be_is_one_sentence(changes, says: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, ValueError), match=says):
        run_experiment(tiny(rounds=1, **changes), tmp_path / "run")
