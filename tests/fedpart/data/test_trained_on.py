"""The sentence on what is trained on."""

import pytest
import torch
from torch import nn

from fedpart import ConcreteDropout, Dataset, Task, federate
from fedpart.data.trained_on import trained_on


def rows(targets, *shape):
    return Dataset(torch.zeros(len(targets), *shape), torch.tensor(targets))


def test_a_table_of_clients_is_told_with_its_columns_and_classes():
    shards = [rows([0] * 12, 7), rows([0] * 7 + [1], 7)]
    held_out = {"validation": None, "test": rows([0], 7)}
    names = ["Age", "BMI", "c", "d", "e", "f", "g"]
    assert trained_on(shards, held_out, inputs=names, classes=("no", "yes")) == (
        "7 inputs: Age, BMI, c, d, e, f, ...; 20 examples of 2 clients (8 to 12 each); classes 95% no, "
        "5% yes; held out: 1 for test"
    )


TREE = Dataset({"a": torch.zeros(1, 2), "b": torch.zeros(1)}, torch.tensor([0]))


@pytest.mark.parametrize(
    ("shard", "text"),
    [
        (rows([*range(10)], 1, 4, 4), "inputs of 1x4x4; 10 examples; 10 classes (10% each)"),
        (rows([0, 0, 2], 3), "3 inputs; 3 examples; classes 67% 0, 0% 1, 33% 2"),
        (rows([1.5, -2.0]), "1 input; 2 examples; targets -2 to 1.5"),
        (rows([[0, 1]], 3), "3 inputs; 1 example"),  # of labels
        (TREE, "inputs['a'] of 2, inputs['b'] of 1"),
        (Dataset(torch.zeros(1, 32, dtype=torch.int64), torch.tensor([0])), "32 whole numbers; 1 example"),
    ],
)
def test_other_data_are_told_by_their_shape_and_targets(shard, text):
    told = trained_on([shard], {}, clients=False)
    assert told.startswith(text) and told.endswith("held out: nothing")


@pytest.mark.parametrize(
    ("method", "more", "says"),
    [
        ("fedex", {}, "18 examples of 3 clients (6 each)"),
        ("fedex", {}, "held out: 6 for hyperparameters, 1 for test"),
        ("validated", {}, "held out: 6 for hyperparameters, 1 for test"),
        ("fedavg", {"evaluation": "clients"}, "18 examples of 3 clients (6 each)"),
        ("fedavg", {"evaluation": "clients"}, "held out: 6 for clients' scores, 1 for test"),
        ("fedavg", {}, "24 examples of 3 clients (8 each); classes 50% 0, 50% 1; held out: 1 for test"),
    ],
)
def test_what_clients_hold_out_is_not_counted_as_trained_on(method, more, says, capsys):
    """A fifth of eight, rounded up: two of each client."""
    clients, network = [rows([0, 1] * 4, 3)] * 3, nn.Sequential(nn.Linear(3, 2), ConcreteDropout())
    federate(Task(network), clients, rounds=1, method=method, progress=True, test=rows([0], 3), **more)
    assert says in capsys.readouterr().out


def test_names_from_files_cannot_steer_a_terminal():
    odd = "\x1b[31mAge\r\u202e[red]"
    told = trained_on([rows([0, 1], 1)], {}, inputs=[odd], classes=("\x1b]0;x\x07", "b"))
    assert "?[31mAge??[red]" in told and "50% ?]0;x?" in told and told.isprintable()


def test_federate_says_where_nothing_but_the_network_is_learned(capsys):
    clients = [rows([0, 1], 3)] * 3
    federate(nn.Sequential(nn.Linear(3, 2), nn.Dropout()), clients, rounds=1, progress=True)
    told = capsys.readouterr().out
    assert "Task(network, learn_dropout=True)" in told and "6 examples of 3 clients (2 each)" in told
    task = Task(nn.Sequential(nn.Linear(3, 2), ConcreteDropout()))
    federate(task, clients, rounds=1, chunks=(1.0,))
    assert "give chunks two shares or more" in capsys.readouterr().out
    federate(nn.Linear(3, 2), clients, rounds=1)
    assert "ConcreteDropout layer" in capsys.readouterr().out
    federate(task, clients, rounds=1)
    federate(nn.Sequential(nn.Linear(3, 2), nn.Dropout()), clients, rounds=1, method="fedavg")
    assert capsys.readouterr().out == ""
