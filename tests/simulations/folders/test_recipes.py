"""The comparisons that come with folders to start from run on the folder's own data, row by row."""

import csv
from pathlib import Path

import pytest
import yaml
from command_line import succeeds

from simulations.folders.starting import TEMPLATES

KINDS = sorted(path.parent.name for path in TEMPLATES.glob("*/recipes.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_runs(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    succeeds("new", kind, "mine")
    monkeypatch.chdir("mine")
    recipes = {**yaml.safe_load(Path("recipes.yaml").read_text()), "seeds": [0]}
    Path("recipes.yaml").write_text(yaml.safe_dump(recipes, sort_keys=False))
    succeeds("table", "recipes.yaml", "rounds=4", "--out", "out")
    with open("out/table.csv", newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert len(rows) == len(recipes["rows"]) >= 5
    for row in rows:
        assert (float(row["upload_ratio"]) == 1) == row["row"].startswith("FedAvg"), row


def test_each_kind_of_data_has_recipes():
    assert KINDS == ["images", "signals", "table", "text"]
