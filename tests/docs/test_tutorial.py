"""The tutorial's example is run as it stands there, in a folder of its own."""

import re

import pytest
import torch
from documents import DOCS, blocks, run_python

pytestmark = pytest.mark.slow

PAGE = DOCS / "tutorial.md"
EXAMPLES = [block.text for block in blocks(PAGE) if "federate(" in block.text]


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tutorial")
    return *run_python(PAGE, folder), folder


def accuracies(printed):
    return [float(number) for number in re.findall(r"([\d.]+)% correct", printed)]


def reach(printed):
    (found,) = re.findall(r"reach \[% of a period\]': ([\d.]+)", printed)
    return float(found)


def test_it_shows_module_data_hyperparameter_and_export_in_at_most_40_lines():
    (example,) = EXAMPLES
    assert len(example.splitlines()) <= 40
    assert "nn.Module" in example or "nn.Sequential" in example
    assert "(HyperModule)" in example and "federate(" in example and ".module()" in example


def test_it_runs_and_says_what_it_says(tutorial):
    (printed, *_), defined, folder = tutorial
    fedavg, partitioned, alone = accuracies(printed)
    assert fedavg < 70 and partitioned > 90 and alone > 85, printed
    assert reach(printed) > 8, "it began at 5"
    assert [path.name for path in folder.iterdir()] == ["waves.pt"]
    defined["net"].load_state_dict(torch.load(folder / "waves.pt"))
    inputs, labels = defined["test"]
    assert (defined["net"](inputs).argmax(1) == labels).float().mean() == pytest.approx(alone / 100, abs=1e-3)


def test_the_same_task_in_one_place(tutorial):
    """The second block goes on where the first has defined data and task."""
    printed = tutorial[0][1]
    none, partitioned = accuracies(printed)
    assert none < 70 and partitioned > 90, printed
    assert reach(printed) > 15, "it began at 5"
    (lml,) = re.findall(r"L_ML (-[\d.]+) nats", printed)
    assert float(lml) > -60 * 1.1, "60 recordings are scored; chance is log 3 for each"


def test_a_loop_of_ones_own(tutorial):
    (lml,) = re.findall(r"L_ML (-[\d.]+) nats", tutorial[0][2])
    assert -120 < float(lml) < 0
