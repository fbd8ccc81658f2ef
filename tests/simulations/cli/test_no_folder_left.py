"""What is refused before anything is trained leaves no folder, whatever the command is."""

from pathlib import Path

import pytest
import yaml
from command_line import fedpart, refused
from torch import nn

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

SPACE = {"space": {"samples": [1, 10]}, "trials": 1}
FEDERATED = {"clients": 4, "cohort": 2, "rounds": 1, "beside": None, "model": "mlp", "data": "table"}
CENTRAL = {"iterations": 1, "model": "mlp", "data": "table"}
COMMANDS = {
    "run": (FEDERATED, []),
    "compare": (FEDERATED, ["--methods", "fedavg"]),
    "search": (FEDERATED | {"search": SPACE}, []),
    "up": (FEDERATED, []),
    "train": (CENTRAL, []),
    "select": (CENTRAL | {"select": {"key": "batch_size", "values": [1, 2]}}, []),
    "table": (
        {"title": "T", "config": "base.yaml", "columns": {"accuracy": "test_accuracy"}},
        ["--jobs", "2"],
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_file_leaves_no_folder(command):
    data = {"data_dir": "nowhere.csv", "data_options": {"target": "y"}}
    refused(typed(command, data), "There is no table at", "nowhere.csv", "set data_dir to")
    assert sorted(Path().iterdir()) == [Path("base.yaml"), Path("file.yaml")]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "up"])
def test_a_network_that_does_not_take_the_data_leaves_no_folder(command):
    data = {"data": "digits", "model": "test_no_folder_left:five"}
    refused(typed(command, data), "The network does not take inputs [2, 1, 28, 28]", "change model or")
    assert sorted(Path().iterdir()) == [Path("base.yaml"), Path("file.yaml")]


def five(num_classes, input_shape):
    """A network of rows of five numbers."""
    return nn.Linear(5, num_classes)


def typed(command, data):
    own, options = COMMANDS[command]
    Path("base.yaml").write_text(yaml.safe_dump(CENTRAL | data))
    rows = {"seeds": [0], "rows": {"a": {"set": {"batch_size": 1}}}} if command == "table" else data
    Path("file.yaml").write_text(yaml.safe_dump(own | rows))
    return fedpart(command, "file.yaml", "--out", "deep/folder", *options)
