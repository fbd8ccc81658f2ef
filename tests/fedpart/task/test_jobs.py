"""Jobs travel as plain data."""

from dataclasses import asdict

import pytest

from fedpart.task.jobs import Job


@pytest.mark.parametrize("job", [Job(1, 1), Job(3, None, True), Job(1, 1, True)])
def test_there_and_back(job):
    assert Job.from_dict(asdict(job)) == job


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"subnetwork": "1"},
        {"subnetwork": 1.0},
        {"subnetwork": True},
        {"subnetwork": 1, "partition": "2"},
        {"subnetwork": 1, "psi": 1},
        {"subnetwork": 1, "chunk": 2},
    ],
)
def test_anything_else_is_refused(data):
    with pytest.raises(ValueError, match="This is not a job"):
        Job.from_dict(data)
