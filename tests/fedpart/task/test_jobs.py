"""Jobs travel as plain data."""

from dataclasses import asdict

import pytest

from fedpart.task.gradients import Job


@pytest.mark.parametrize("job", [Job(1, 1), Job(3, None, True), Job(1, 1, True)])
def test_there_and_back(job):
    assert Job.from_dict(asdict(job)) == job
