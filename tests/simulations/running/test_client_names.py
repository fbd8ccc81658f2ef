"""Clients of a data set that names them are told by their names, from the file to every table of clients."""

import json
from pathlib import Path

import pytest
import yaml
from command_line import fedpart, refused, shown

from simulations.building.data import client_names, load_data
from simulations.config.load import ExperimentConfig
from simulations.folders.run_directory import read_summary
from simulations.results.personal import ClientGain, Gains
from simulations.results.scores import client_text
from simulations.results.terminal.panel import limit_rows

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

ODD = ["<b>bob</b>", "[red]carl[/red]", "alice", "d\x1b[31mora" + "x" * 60]  # in ascending order
FILE = {"data": "table", "data_dir": "named.csv", "split": {"recipe": "natural"}, "beside": None}
FILE |= {"data_options": {"target": "y", "client": "who", "standardise": True}, "clip": {"multiple": 0.01}}
FILE |= {"model": "mlp", "model_options": {"hidden": [8]}, "hyperparameters": {"dropout": {}}}
FILE |= {"samples": 1, "rounds": 1}


def named(names, **changes):
    rows = (f"{i % 7},{i % 3},{i % 2},{names[i % len(names)]}\n" for i in range(30 * len(names)))
    Path("named.csv").write_text("a,b,y,who\n" + "".join(rows))
    return FILE | {"clients": len(names), "cohort": len(names)} | changes


@pytest.mark.slow
def test_names_are_in_the_card_the_tables_and_the_report_also_of_a_run_that_goes_on():
    Path("named.yaml").write_text(yaml.safe_dump(named(ODD)))
    assert fedpart("run", "named.yaml", "--out", "run").exit_code == 0
    more = fedpart("run", "--resume", "run", "--set", "rounds=3")
    assert more.exit_code == 0, more.output
    assert read_summary(Path("run"))["client_names"] == ODD
    assert "longer were client <b>bob</b> " in " ".join(more.output.replace("│", " ").split())
    assert "\x1b[31m" not in more.output
    done = fedpart("personalise", "run", "--client", "alice", "--client", "1")
    assert done.exit_code == 0, done.output
    assert "alice" in done.output and "[red]carl[/red]" in done.output
    written = json.loads(Path("run/personal.json").read_text())["clients"]
    assert [(row["client"], row["name"]) for row in written] == [(1, ODD[1]), (2, "alice")]
    refused(fedpart("personalise", "run", "--client", "allice"), "called 'allice': did you mean 'alice'?")
    assert fedpart("report", "run").exit_code == 0
    page = Path("run/report.html").read_text()
    assert "&lt;b&gt;bob&lt;/b&gt;" in page and "<b>bob" not in page


def test_a_client_without_training_rows_takes_nobodys_name():
    rows = ["1,0,carol"] * 5 + ["2,1,carol"] * 5 + ["3,0,dan"] * 9 + ["4,1,dan"]
    Path("folder").mkdir()
    Path("folder/train.csv").write_text("\n".join(["a,y,who", *rows]) + "\n")
    Path("folder/test.csv").write_text("a,y,who\n1,0,abel\n2,1,carol\n")
    config = ExperimentConfig.from_dict(named(["a", "b"], data_dir="folder", method="fedavg"))
    splits = load_data(config)
    assert splits.client_names == ("abel", "carol", "dan")
    assert client_names(config, splits) == ("carol", "dan")
    spread = config.model_copy(update={"split": config.split.model_copy(update={"recipe": "iid"})})
    assert client_names(spread, splits) == ()


def test_numbers_stay_where_there_are_no_names():
    config = ExperimentConfig.from_dict(named([0, 1, 2, 3]))
    assert client_names(config, load_data(config)) == ()
    assert client_text(3) == "3"
    summary = {"clip": {"multiple": 2.0, "clipped": {"0": 1, "3": 5}}}
    assert "client 3 5 times, client 0 1 time" in dict(limit_rows(summary))["clip"]
    told = dict(limit_rows(summary | {"client_names": ODD}))["clip"]
    assert "client d?[31mora" in told and "... 5 times, client <b>bob</b> 1 time" in told
    scores = {"nll": 1.0}, {"nll": 0.5}
    Gains([ClientGain(0, 1, 9, 2, *scores), ClientGain(1, 1, 9, 2, *scores, "eve")], [], {}, "").write(Path())
    rows = json.loads(Path("personal.json").read_text())["clients"]
    assert [row["name"] for row in rows] == [None, "eve"]


def test_odd_names_are_shown_as_they_are_and_without_what_moves_a_terminal():
    clients = [ClientGain(i, 1, 9, 2, {"nll": 1.0}, {"nll": 0.5}, name) for i, name in enumerate(ODD)]
    text = shown(Gains(clients, [], {}, "").table(), 120)
    assert all(name in text for name in ODD[:3]) and "\x1b" not in text
    assert client_text(0, ["a\nb\u202ec"]) == "a?b?c"
