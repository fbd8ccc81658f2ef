"""All networks that nobody changed, on Ray: weights, hyperparameters and scores of one process, to the bit.

``test_stock.py`` has them in workers, and ``test_workers_killed.py`` with two real clients.
"""

import pytest
from places import importing

from simulations.config.load import ExperimentConfig
from simulations.running.run import run_experiment
from stock.bundle import CONFIG, ONE_ROUND, assert_same


@pytest.mark.slow
def test_a_round_on_ray_is_that_of_one_process(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", importing(__file__))
    for name, changes in (("local", {}), ("ray", {"engine": "ray", "workers": 1})):
        run_experiment(ExperimentConfig.from_dict({**CONFIG, **ONE_ROUND, **changes}), tmp_path / name)
    assert_same(tmp_path / "ray", tmp_path / "local")
