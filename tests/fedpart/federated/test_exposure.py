"""Who sends which partition, and whether the defence bears a hostile client among so few."""

import pytest
from problems import augmentation, chain_net, settings

from fedpart import Protocol, Task
from fedpart.federated.report import contributors, exposed


def protocol(clients=20, **changes):
    task = Task(chain_net(), transforms=[augmentation()])
    options = {"chunks": (0.7, 0.2, 0.1), "cohort": 10, "weighting": "uniform", **changes}
    return Protocol(task, settings(clients, **options))


def test_contributors_of_a_cohort():
    assert contributors(protocol()) == {"psi": 3.0, "w_1": 7.0, "w_2": 9.0, "w_3": 10.0}
    capped = protocol(caps={1: 0.5, 3: 0.5})
    assert contributors(capped) == {"psi": 3.0, "w_1": 7.0, "w_2": 4.0, "w_3": 5.0}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, ""),
        ({"defence": "median"}, ""),
        ({"defence": "krum", "cohort": 4}, "psi from 1.2"),
        ({"defence": "median", "cohort": 3}, "psi from 0.9, w_1 from 2.1"),
    ],
)
def test_few_contributors_are_named(changes, named):
    said = exposed(protocol(**changes))
    assert (named in said and "larger cohort" in said) if named else said == ""
