"""The README's example is run as it stands there, in a folder of its own."""

import os
import re
import subprocess
import sys

import pytest
from places import ROOT

BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
EXAMPLES = [block for block in BLOCKS if "federate(" in block]
CENTRALISED = [block for block in BLOCKS if "fit(" in block]


@pytest.fixture(scope="module")
def example():
    assert len(EXAMPLES) == 1, (
        f"README.md must show one Python block that applies fedpart to the reader's own module; it has "
        f"{len(EXAMPLES)} that call federate()"
    )
    return EXAMPLES[0]


def test_it_has_at_most_40_lines(example):
    assert len(example.splitlines()) <= 40


def test_it_shows_module_data_hyperparameter_and_export(example):
    assert "nn.Module" in example or "nn.Sequential" in example
    assert "(HyperModule)" in example and "federate(" in example and ".module()" in example


def run(code, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_the_same_task_in_one_place(example, tmp_path):
    """The second block goes on where the first has defined data and task."""
    (block,) = CENTRALISED
    done = run(example.partition("for method in")[0] + block, tmp_path)
    none, partitioned = (float(number) for number in re.findall(r"([\d.]+)% correct", done.stdout))
    assert none < 70 and partitioned > 90, done.stdout
    (reach,) = re.findall(r"reach \[% of a period\]': ([\d.]+)", done.stdout)
    assert float(reach) > 15, "it began at 5"
    (lml,) = re.findall(r"L_ML (-[\d.]+) nats", done.stdout)
    assert float(lml) > -60 * 1.1, "60 recordings are scored; chance is log 3 for each"


@pytest.mark.slow
def test_it_runs_and_says_what_it_says(example, tmp_path):
    done = run(example, tmp_path)
    accuracy = [float(number) for number in re.findall(r"([\d.]+)% correct", done.stdout)]
    fedavg, partitioned, alone = accuracy
    assert fedavg < 70 and partitioned > 90 and alone > 85, done.stdout
    (reach,) = re.findall(r"reach \[% of a period\]': ([\d.]+)", done.stdout)
    assert float(reach) > 8, "it began at 5"
    assert [path.name for path in tmp_path.iterdir()] == ["waves.pt"]
