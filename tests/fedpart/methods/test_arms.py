"""What FedEx's clients try: values at a distance from the run's own, and what configurations are called."""

import pytest

from fedpart.methods.arms import Near, grids_of
from fedpart.randomness.streams import generator


@pytest.mark.parametrize(
    ("near", "of_run", "value"),
    [
        (Near(8, 128, log=True, whole=True, shift=1), 16, 32),  # doublings
        (Near(8, 128, log=True, whole=True, shift=0), 12, 12),
        (Near(8, 128, log=True, whole=True, shift=3), 12, 96),
        (Near(8, 128, log=True, whole=True, shift=-1), 16, 8),
        (Near(8, 128, log=True, whole=True, shift=-2), 16, 8),
        (Near(8, 128, log=True, whole=True, shift=4), 16, 128),
        (Near(1, 5, log=False, whole=True, shift=2), 2, 4),  # steps
        (Near(1, 5, log=False, whole=True, shift=-2), 2, 1),
        (Near(1, 5, log=False, whole=True, shift=2), 4, 5),
        (Near(1.0, 3.0, log=False, whole=False, shift=0.25), 1.5, 2.0),  # shares of the range
        (Near(1.0, 3.0, log=False, whole=False, shift=-0.5), 1.5, 1.0),
        (Near(1.0, 3.0, log=False, whole=False, shift=0.5), 2.5, 3.0),
        (Near(1e-4, 1.0, log=True, whole=False, shift=0.25), 0.01, 0.1),  # of four decades
        (Near(1e-4, 1.0, log=True, whole=False, shift=-0.25), 0.01, 0.001),
        (Near(1e-5, 0.1, log=True, whole=False, shift=0.25), 0.0, 1e-4),  # no logarithm: from the low end
        (Near(1e-5, 0.1, log=True, whole=False, shift=0.5), 0.05, 0.1),
    ],
)
def test_a_value_lies_at_its_distance_and_within_the_ends(near, of_run, value):
    result = near.at(of_run)
    assert result == pytest.approx(value, rel=1e-12) and near.low <= result <= near.high
    assert type(result) is (int if near.whole else float)


def test_distances_are_drawn_arm_by_arm_and_key_by_key_but_for_the_runs_own():
    """In the order of the keys, whatever a file's; of whole numbers the steps eps reaches, rounded up."""
    space = {"batch_size": {"log": [8, 128]}, "epochs": [1, 5], "momentum": [0.0, 0.9]}
    (grid,) = grids_of(3, space, 0.4, 7)
    assert grid.arms[0] == {} and grid.labels == ("0", "1", "2")
    for arm in (1, 2):
        rng = generator(7, "FedEx's arms", arm)
        assert grid.arms[arm] == {
            "momentum": Near(0.0, 0.9, False, False, rng.uniform(-0.4, 0.4)),
            "epochs": Near(1, 5, False, True, rng.integers(-2, 3)),  # 0.4 of 4 steps
            "batch_size": Near(8, 128, True, True, rng.integers(-2, 3)),  # 0.4 of 4 doublings
        }
    assert [grid.arms for grid in grids_of(1, None, 0.1, 0)] == [({},)]
    assert len(grids_of(2, None, 1, 0)[0]) == 2


def test_labels_say_what_is_tried():
    arms = {"dropout": [0.025, 0.4], "learning_rate": [0.01, 1], "batch_size": [16]}
    assert [grid.labels for grid in grids_of(arms, None, 0.1, 0)] == [
        ("dropout=2.5%", "dropout=40%"),
        ("learning_rate=0.01", "learning_rate=1"),
        ("batch_size=16",),
    ]
    (grid,) = grids_of([{"learning_rate": 0.1, "epochs": 2}, {}], None, 0.1, 0)
    assert grid.labels == ("learning_rate=0.1,epochs=2", "own")
    assert grid.arms == ({"learning_rate": 0.1, "epochs": 2}, {})
