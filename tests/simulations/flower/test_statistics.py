"""Statistics of clients with files of their own: the run of a common file, to the bit."""

import contextlib
import csv
import json

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from inprocess_grid import InProcessGrid

import simulations.running.server_app as served
from fedpart import load
from fedpart.flower.client import _clients
from simulations.config.load import ExperimentConfig
from simulations.flower.client import app
from simulations.flower.config import run_config_of
from simulations.folders.run_directory import read_summary
from simulations.running.run import run_experiment

SITES = ("east", "north", "south")
CONFIG = {
    "data": "table",
    "data_dir": "/proc/self/cwd/rows.csv",  # of each process its own
    "data_options": {
        "target": "ill",
        "client": "site",
        "standardise": True,
        "categorical": "auto",
        "missing": "indicator",
        "statistics": "federated",
    },
    "clients": 3,
    "cohort": 2,
    "rounds": 2,
    "evaluate_every": 1,
    "chunks": [0.6, 0.4],
    "samples": 1,
    "model": "mlp",
    "model_options": {"hidden": [4]},
    "hyperparameters": {"dropout": {}},
    "node_timeout": 0.5,
}


def rows(seed=0):
    draw = np.random.default_rng(seed)
    for number in range(90):
        age = "" if draw.random() < 0.1 else f"{draw.normal(50, 9):.3f}"
        day = f"2024-01-{draw.integers(1, 29):02d}"
        ill = draw.choice(["no", "yes"] if number % 3 else ["no", "maybe"])
        yield SITES[number % 3], age, str(draw.choice(["a", "b"])), day, str(ill), f"{draw.normal(9, 2):.3f}"


HEAD = ("site", "age", "ward", "day", "ill", "cost")


def write(file, lines, head=HEAD):
    with open(file, "w", newline="") as opened:
        csv.writer(opened).writerows([head, *lines])


@pytest.fixture
def sites(tmp_path, monkeypatch):
    """A file of each site's alone, as its node calls it, and the common one, where no site looks."""
    (tmp_path / "common").mkdir()
    (tmp_path / "server").mkdir()  # which has no rows
    write(tmp_path / "common" / "rows.csv", rows())
    for name in SITES:
        (tmp_path / name).mkdir()
        write(tmp_path / name / "rows.csv", [line for line in rows() if line[0] == name])
    monkeypatch.chdir(tmp_path / "server")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    return tmp_path


class Sites(InProcessGrid):
    """Every message meets a process of its own, which has loaded nothing; queries are tampered with too."""

    def __init__(self, sites, config, told=None, **options):
        super().__init__(app, 0, run_config_of(config), **options)
        self.told, self.asked = told or {}, []
        self.sites = sites
        for client in range(3):
            self.join({"partition-id": client, "num-partitions": 3})

    def _answer(self, message):
        _clients.cache_clear()
        client = self.nodes[message.metadata.dst_node_id]["partition-id"]
        with contextlib.chdir(self.sites / SITES[client]):
            reply = super()._answer(message)
        if message.metadata.message_type == "query.statistics":
            self.asked.append(client)
            if client in self.told:
                self.told[client](reply)
        return reply


def run(sites, config, out, **options):
    grid = Sites(sites, config, **options)
    run_config = {**run_config_of(config), "out": str(out), "resume": out.exists()}
    served.main(grid, Context(0, 0, {}, RecordDict(), run_config))
    return grid


def made(**changes):
    options = CONFIG["data_options"] | changes.pop("data_options", {})
    return ExperimentConfig.from_dict({**CONFIG, "data_options": options, **changes})


KINDS = {
    "classes": {},
    "numbers": {
        "likelihood": "gaussian",
        "data_options": {"target": "cost", "ignore": ["ill"], "missing": "mean"},
    },
    "evaluated by clients": {"evaluation": "clients", "evaluation_share": None},
}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_sites_alone_end_with_the_bytes_of_a_common_file(sites, changes):
    config = made(**changes)
    out = sites / "out"
    grid = run(sites, config, out)
    assert grid.asked == [0, 1, 2]
    common = config.model_copy(update={"data_dir": str(sites / "common" / "rows.csv")})
    expected = run_experiment(common, sites / "local")
    two = run_experiment(common.model_copy(update={"workers": 2}), sites / "two")
    assert two["preprocessing"] == expected["preprocessing"]
    for name in ("local", "two"):
        assert (out / "state.safetensors").read_bytes() == (sites / name / "state.safetensors").read_bytes()
    summary = read_summary(out)
    for key in ("inputs", "num_classes", "preprocessing"):
        theirs = dict(expected["preprocessing"], read=None) if key == "preprocessing" else expected[key]
        ours = dict(summary[key], read=None) if key == "preprocessing" else summary[key]
        assert json.loads(json.dumps(ours)) == json.loads(json.dumps(theirs)), key
    if config.evaluation == "clients":
        assert summary["client_nll"] == expected["client_nll"]
    predicted = (
        load(out).preprocessing.inputs([{"age": "41", "ward": "a", "day": "2024-01-03", "cost": "9"}])
        if not changes
        else None
    )
    assert predicted is None or predicted.shape == (1, summary["inputs"]["kinds"]["inputs"][1])
