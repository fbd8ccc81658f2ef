"""Settings that make no sense are refused in a sentence that says what to change."""

import pytest
from problems import chain_net, settings

from fedpart import AdamWSettings, FederationSettings, LocalSettings, Protocol, Task


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"chunks": (0.5, 0.4)}, r"chunk proportions must sum to 1, but \[0.5, 0.4\] sums to 0.9"),
        ({"chunks": (0.5, 0.5, 0.0)}, "must be positive"),
        ({"chunks": (1.5, -0.5)}, "must be positive"),
        ({"chunks": ()}, "between 1 and 255"),
        ({"chunks": [1 / 256] * 256}, "between 1 and 255 chunk proportions, got 256"),
        ({"parameters": (0.5, 0.5)}, "3 chunk proportions but 2 parameter proportions"),
        ({"parameters": (0.5, 0.3, 0.3)}, "parameter proportions must sum to 1"),
        ({"cohort": 0}, "cohort is at least 1, got 0"),
        ({"cohort": 9}, r"between 1 and the number of clients \(8\), got 9"),
        ({"weighting": "size"}, "weighting is one of examples or uniform, got 'size'"),
        ({"non_contributors": "drop"}, "non_contributors is one of ignore or zero, got 'drop'"),
        ({"on_client_error": "retry"}, "on_client_error is one of fail or skip, got 'retry'"),
        ({"server": AdamWSettings()}, r"by Adam or SGD, but server is AdamWSettings\(.*AdamSettings or SGD"),
        (
            {"server_psi": "sgd"},
            r"server_psi is one of AdamSettings.*, SGDSettings.*, or a mapping .*, got 'sgd'",
        ),
    ],
)
def test_a_federation_is_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        settings(8, **changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch_size": 0}, "batch_size is at least 1, got 0"),
        ({"epochs": 0}, "epochs is at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate is above 0, got 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate is finite and above 0, got nan"),
        ({"learning_rate": float("inf")}, "learning_rate is finite and above 0, got inf"),
        ({"momentum": 1.0}, "momentum is at least 0 and below 1, got 1.0"),
        ({"weight_decay": -0.1}, "weight_decay is at least 0, got -0.1"),
        ({"decay_scaling": "x"}, "decay_scaling is one of reciprocal, square_root or none, got 'x'"),
        ({"psi_batch": "all"}, "psi_batch is 'shard' or a number of examples, got 'all'"),
        ({"psi_batch": 0}, "psi_batch is 'shard' or a number of examples, got 0"),
    ],
)
def test_local_training_is_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        LocalSettings(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": "partitoned"}, "Unknown method 'partitoned': did you mean 'partitioned'"),
        ({"method": "nowhere:Method"}, "'nowhere:Method' cannot be imported .*PYTHONPATH"),
        ({"method": "fedpart.methods:Nothing"}, "cannot be imported"),
        ({"method_options": {"augmented": True}, "method": "fedavg"}, r"augmented.*options are \(augment"),
        ({"method_options": {"augment": True}}, r"'partitioned' does not take the options .*augment"),
        ({"chunks": (0.25,) * 4, "clients": 3, "cohort": 2}, "3 clients for 4 chunks"),
        ({"scheme": "rows"}, "Unknown partitioning scheme 'rows': .*Known: node, random"),
        ({"defaults": "random"}, "defaults is one of initial or zeros, got 'random'"),
        ({"parameters": (0.9994, 0.0003, 0.0003)}, "Partition 2 of 3 is empty in the whole model"),
        ({"method": "augerino"}, "No transform of the task has widths"),
    ],
)
def test_a_protocol_is_refused(changes, says):
    clients = changes.pop("clients", 8)
    with pytest.raises(ValueError, match=says):
        Protocol(Task(chain_net()), settings(clients, **changes))


def test_proportions_are_kept_as_numbers_whatever_they_came_as():
    given = FederationSettings(clients=4, cohort=2, chunks=[1], parameters=["1"])
    assert given.chunks == given.parameters == (1.0,)
    assert type(given.chunks[0]) is float
