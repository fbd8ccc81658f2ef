"""The notebooks run from top to bottom, as Jupyter runs them: cell after cell in one namespace."""

import json
from pathlib import Path

import pytest
from documents import DOCS

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
FEWER = {'"rounds": 200': '"rounds": 2', "rounds=150": "rounds=2", "iterations=600": "iterations=10"}


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    content = json.loads(notebook.read_text())
    assert (content["nbformat"], content["metadata"]["kernelspec"]["name"]) == (4, "python3")
    namespace: dict[str, object] = {}
    found = set()
    for cell in content["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "a notebook is committed without outputs"
            for many, few in FEWER.items():
                found |= {many} if many in text else set()
                text = text.replace(many, few)
            exec(compile(text, cell["id"], "exec"), namespace)
    assert found, "the notebook trains at full length in this test"
    assert list(tmp_path.glob("*.pt"))
