"""Settings of a federation."""

from fedpart import FederationSettings


def test_proportions_are_kept_as_numbers_whatever_they_came_as():
    given = FederationSettings(clients=4, cohort=2, chunks=[1], parameters=["1"])
    assert given.chunks == given.parameters == (1.0,)
    assert type(given.chunks[0]) is float
