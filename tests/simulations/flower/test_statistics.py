"""Statistics of clients with files of their own: the run of a common file, to the bit."""

import contextlib
import csv
import json
from functools import partial

import numpy as np
import pytest
import refusals
import three_sites
from flwr.app import Array, ArrayRecord, Context, RecordDict
from inprocess_grid import InProcessGrid
from three_sites import SITES

import simulations.running.server_app as served
from fedpart import load
from fedpart.flower.client import _clients
from simulations.building.experiment import build
from simulations.config.load import ConfigError, ExperimentConfig
from simulations.errors import RunError
from simulations.flower.client import app
from simulations.flower.config import run_config_of
from simulations.folders.run_directory import read_metrics, read_summary, saved_config
from simulations.running.run import run_experiment

OPTIONS = {**three_sites.CONFIG["data_options"], "missing": "indicator"}
TIMES = {"cohort": 2, "evaluate_every": 1, "node_timeout": 0.5}
CONFIG = {**three_sites.CONFIG, "data_options": OPTIONS, **TIMES}


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

    def __init__(self, sites, config, told=None, silent=()):
        super().__init__(app, 0, run_config_of(config), tamper=self._left)
        self.told, self.silent, self.asked = told or {}, silent, []
        self.sites = sites
        for client in range(3):
            self.join({"partition-id": client, "num-partitions": 3})

    def _left(self, reply):
        """None of a client that is silent when it is asked for its sums."""
        client = self.nodes[reply.metadata.src_node_id]["partition-id"]
        return None if client in self.silent and reply.metadata.message_type == "query.statistics" else reply

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


@pytest.mark.quick(1)
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
    if not changes:
        row = {"age": "41", "ward": "a", "day": "2024-01-03", "cost": "9"}
        inputs = load(out).preprocessing.inputs([row])
        assert list(inputs.shape) == [1, *summary["inputs"]["kinds"]["inputs"][1:]]


def put(value):
    """In the place of what a client tells."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()

    def change(reply):
        array = Array("uint8", (len(text),), "numpy.ndarray", text)
        reply.content["arrays"] = ArrayRecord({"statistics": array})

    return change


def nothing(reply):
    del reply.content["arrays"]


BAD = {
    "bytes": (put(b"\x00\xff"), "what it has told cannot be read"),
    "a list": (put([1]), "they are no mapping of client, rows and columns"),
    "nested": (put(b"[" * 100_000), "what it has told cannot be read"),
    "not a number": (put(b'{"client": "north", "rows": NaN, "columns": {}}'), "the number of rows is nan"),
    "nothing": (nothing, "what it has told cannot be read"),
}


def test_sums_that_cannot_be_taken_end_a_run_by_the_name_of_their_client(sites):
    told = "^The rows of client 1 are not in the statistics: "
    failing = partial(run, sites, made(on_client_error="fail"), sites / "out")
    refusals.check(
        (name, partial(failing, told={1: change}), RunError, rf"{told}{says}.*skip\.$")
        for name, (change, says) in BAD.items()
    )
    assert not (sites / "out").exists()


def test_a_site_whose_column_differs_is_named_or_left_out_and_shifts_nobody(sites, caplog):
    """North calls a column by another name."""
    head = ["years" if name == "age" else name for name in HEAD]
    write(sites / "north" / "rows.csv", [line for line in rows() if line[0] == "north"], head)
    with pytest.raises(RunError, match="client 1 are not in the statistics: its column 'age' is not there"):
        run(sites, made(on_client_error="fail"), sites / "out")
    run(sites, made(on_client_error="skip", cohort=3), sites / "out")
    assert "client 1 are not in the statistics: its column 'age'" in caplog.text
    summary = read_summary(sites / "out")
    assert summary["preprocessing"]["sums"]["rows"].keys() == {"0", "2"}
    skipped = [skip for line in read_metrics(sites / "out") for skip in line["skipped"]]
    assert {skip["client"] for skip in skipped} == {1}
    assert all("has no column 'age'" in skip["reason"] for skip in skipped)


def test_who_was_silent_takes_part_later_with_the_others_statistics(sites, caplog):
    run(sites, made(on_client_error="skip", cohort=3), sites / "out", silent={1})
    lines = read_metrics(sites / "out")
    assert all(line["cohort"] == [0, 1, 2] and not line["skipped"] for line in lines)
    assert "client 1 are not in the statistics: it has not answered" in caplog.text
    assert read_summary(sites / "out")["preprocessing"]["sums"]["rows"].keys() == {"0", "2"}


@pytest.mark.slow
def test_a_run_that_is_resumed_keeps_its_statistics_and_asks_nobody(sites):
    whole, out = sites / "whole", sites / "out"
    run(sites, made(rounds=4), whole)
    run(sites, made(rounds=2), out)
    grid = run(sites, made(rounds=4), out)
    assert not grid.asked and len(read_metrics(out)) == 4
    assert (out / "state.safetensors").read_bytes() == (whole / "state.safetensors").read_bytes()
    assert saved_config(out).data_options["statistics"] == read_summary(out)["preprocessing"]


def test_a_client_without_its_file_trains_on_nothing(sites):
    (sites / "south" / "rows.csv").unlink()
    run(sites, made(on_client_error="skip", cohort=3), sites / "out")
    skipped = [skip for line in read_metrics(sites / "out") for skip in line["skipped"]]
    assert {skip["client"] for skip in skipped} == {2}
    assert all("There is no table" in skip["reason"] for skip in skipped)


def test_a_run_says_what_is_shared(sites):
    config = made().model_copy(update={"data_dir": str(sites / "common" / "rows.csv")})
    said = "3 clients shared sums of 66 rows: counts of levels and classes, means and deviations by column"
    assert [note for note in build(config).notes if note.startswith(said)]
    assert not [note for note in build(config.with_statistics("pooled")).notes if "shared" in note]


def test_where_they_mean_nothing_or_the_data_have_none_they_are_refused():
    clipped = {"weighting": "uniform", "clip": {"weights": 1.0, "psi": 1.0}}
    rows = [
        {"privacy": {"noise_multiplier": 1.0}, **clipped},
        {"training_points": 9},
        {"data_options": {"classes": [0, 1]}},
        {"split": {"recipe": "iid"}},
    ]
    says = "statistics: federated sums all training rows"
    refusals.check((f"{changes}", partial(made, **changes), ConfigError, says) for changes in rows)
    federated = {"data_options": {"statistics": "federated"}}
    for data in ("digits", "image_folder"):
        with pytest.raises(ConfigError, match="has no option 'statistics'"):
            ExperimentConfig.from_dict({"data": data, **federated})
