"""Real processes of sites that have files of their own: the bytes of a run with a common file."""

import contextlib
import csv

import numpy as np
import pytest
import three_sites
from places import ROOT
from three_sites import SITES

from simulations.config.load import ExperimentConfig
from simulations.deployment.up import Deployment, complete
from simulations.flower.config import deployed_run_config
from simulations.folders.run_directory import STATE, read_summary
from simulations.running.run import run_experiment

CONFIG = {**three_sites.CONFIG, "cohort": 3, "clip": "adaptive"}


class Apart(Deployment):
    """Every executor runs in a folder of its own."""

    def start_executor(self, name, address):
        with contextlib.chdir(self.private / name):
            super().start_executor(name, address)


def write(folder, lines):
    folder.mkdir()
    with open(folder / "rows.csv", "w", newline="") as opened:
        csv.writer(opened).writerows([("site", "age", "ward", "ill"), *lines])


@pytest.mark.deployment
@pytest.mark.slow
def test_sites_end_with_the_bytes_of_a_common_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    draw = np.random.default_rng(0)
    lines = [
        (SITES[number % 3], "" if number % 11 == 0 else f"{draw.normal(50, 9):.3f}", *map(str, words))
        for number in range(60)
        for words in [(draw.choice(["a", "b"]), draw.choice(["no", "yes"]))]
    ]
    write(tmp_path / "common", lines)
    for client, name in enumerate(SITES):
        write(tmp_path / f"clientapp-{client}", [line for line in lines if line[0] == name])
    (tmp_path / "serverapp").mkdir()  # which has no rows
    config, said = ExperimentConfig.from_dict(CONFIG), []
    with Apart(3, tmp_path, tmp_path / "logs") as federation:
        run = complete(federation, deployed_run_config(config, tmp_path / "out", False), said.append)
        assert run.completed, "".join(said)
    assert "3 clients shared sums of" in "".join(said)
    common = config.model_copy(update={"data_dir": str(tmp_path / "common" / "rows.csv")})
    expected = run_experiment(common, tmp_path / "local")
    assert (tmp_path / "out" / STATE).read_bytes() == (tmp_path / "local" / STATE).read_bytes()
    ours = read_summary(tmp_path / "out")["preprocessing"]
    assert ours["columns"] == expected["preprocessing"]["columns"]
