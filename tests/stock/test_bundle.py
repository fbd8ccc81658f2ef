"""All networks that nobody changed, on every engine: in workers, on Ray, in a federation of two real clients.

The runs end with the same weights and hyperparameters, to the bit, and with the same scores of their clients.
"""

import pytest
import torch
from places import importing
from safetensors.torch import load_file

from simulations.config.load import ExperimentConfig
from simulations.deployment.up import Deployment, watch
from simulations.flower.config import deployed_run_config
from simulations.folders.run_directory import STATE, read_metrics, read_summary
from simulations.running.run import run_experiment
from stock.bundle import CONFIG

HEADER = 4096  # bytes of a message besides its numbers, at most


def configured(**changes):
    return ExperimentConfig.from_dict({**CONFIG, **changes})


@pytest.fixture(scope="module", autouse=True)
def importable():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", importing(__file__))
        yield


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The run in this process."""
    folder = tmp_path_factory.mktemp("bundle") / "run"
    run_experiment(configured(), folder)
    return folder


def assert_same(folder, local):
    one, two = load_file(folder / STATE), load_file(local / STATE)
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []
    lines = [read_metrics(one) for one in (folder, local)]
    assert all(line["replies"] == CONFIG["clients"] for line in lines[0])
    for which in ("lml", "client_nll"):
        scores, expected = ([line.get(which) for line in run] for run in lines)
        assert scores == expected and expected[-1] is not None


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"workers": 2}, {"engine": "ray", "workers": 2}], ids=["workers", "ray"])
def test_elsewhere_on_this_machine(changes, local, tmp_path):
    run_experiment(configured(**changes), tmp_path / "run")
    assert_same(tmp_path / "run", local)


@pytest.mark.deployment
@pytest.mark.slow
def test_two_real_clients_whose_messages_have_no_constants(tmp_path):
    """A process for each message, which loads all that these networks need: one round of the two."""
    out, local, said = tmp_path / "run", tmp_path / "local", []
    few = {"rounds": 1, "evaluate_every": 1, "clip": "adaptive"}
    run_experiment(configured(**few), local)
    with Deployment(2, tmp_path, tmp_path / "logs") as federation:
        config = deployed_run_config(configured(**few), out, False)
        run = watch(federation, federation.control.start(config), said.append)
    assert run.status == "finished:completed", "".join(said)
    assert_same(out, local)
    for line, predicted in zip(read_metrics(out), read_metrics(local), strict=True):
        for which in ("download_bytes", "upload_bytes"):  # here of messages, there of the cohort's numbers
            assert abs(line[which] - predicted[which]) < HEADER * CONFIG["cohort"]
            assert line[which] < 4 * read_summary(out)["parameters"]["frozen"] / 5, "they would be seen"
