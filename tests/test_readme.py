"""The README's example is run as it stands there, in a folder of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
EXAMPLES = [block for block in BLOCKS if "fedpart.federate" in block or "from fedpart import" in block]


@pytest.fixture(scope="module")
def example():
    assert len(EXAMPLES) == 1, (
        f"README.md must show one Python block that applies fedpart to the reader's own module; it has "
        f"{len(EXAMPLES)} with `fedpart.federate` or `from fedpart import`"
    )
    return EXAMPLES[0]


def test_it_has_at_most_40_lines(example):
    assert len(example.splitlines()) <= 40


def test_it_shows_module_data_hyperparameter_and_export(example):
    assert "nn.Module" in example or "nn.Sequential" in example
    assert "(HyperModule)" in example and "federate(" in example and ".module()" in example


def test_it_runs_and_says_what_it_says(example, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    accuracy = [float(number) for number in re.findall(r"([\d.]+)% correct", done.stdout)]
    fedavg, partitioned, alone = accuracy
    assert fedavg < 70 and partitioned > 90 and alone > 85, done.stdout
    (reach,) = re.findall(r"reach \[% of a period\]': ([\d.]+)", done.stdout)
    assert float(reach) > 8, "it began at 5"
    assert [path.name for path in tmp_path.iterdir()] == ["waves.pt"]
