"""The README's way from a run to a model, after a run that is as its first command's, but tiny."""

import pytest
from command_line import succeeds
from documents import blocks
from places import ROOT
from tiny import TINY

(BLOCK,) = [one for one in blocks(ROOT / "README.md") if "fedpart.load(" in one.text]
SETS = [f"{key}={value}" for key, value in TINY.items() if not isinstance(value, dict | list)]


@pytest.mark.slow
def test_it_reads_what_the_first_command_leaves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    succeeds("run", "quickstart", *SETS, "chunks=[0.5,0.3,0.2]", "engine=local", "rounds=2")
    defined = {}
    exec(BLOCK.text, defined)
    assert len(BLOCK.text.splitlines()) <= 6
    run, images = defined["run"], defined["images"]
    assert run.config["rounds"] == 2 and run.psi
    assert defined["outputs"].shape == (len(images), 10)
    assert defined["module"](images[:2]).shape == (2, 10)
    succeeds("show", "runs/quickstart-partitioned-seed0")
