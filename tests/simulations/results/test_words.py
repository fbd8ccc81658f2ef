"""Ranges in words, and what a run has learned: one notation, one answer."""

import math

import pytest
from fake_runs import small_config, write_run

from simulations.results.curves import Run
from simulations.results.psi_parts import all_words, compact, in_words
from simulations.results.words import span


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((14.13, -12.4), "-12.4..+14.1"),
        ((-180, 179.96), "-180..+180"),
        ((0.9312, 1.0699), "+0.93..+1.07"),
        ((-0.0412, 0.0412), "-0.04..+0.04"),
        ((-0.00123, 0.0004), "-0.001..+0.000"),
        ((0, 0), "+0.00..+0.00"),
        ((-math.inf, 2), "-inf..+2.00"),
    ],
)
def test_a_range_has_three_digits_and_no_more_than_a_person_reads(ends: tuple, text: str) -> None:
    assert span(*ends) == text
    assert span(*ends, "deg") == f"{text} deg" and span(*ends, "%") == f"{text}%"


def test_wherever_it_stands_a_range_is_written_alike() -> None:
    psi = {"affine.angle_min [deg]": 14.13, "affine.angle_max [deg]": -12.4}
    wide = {"affine.shift_x_min [%]": -1.361, "affine.shift_x_max [%]": 1.36}
    assert compact(psi) == "rotation -12.4..+14.1 deg"
    assert in_words(psi | wide) == ["rotation -12.4..+14.1 deg", "shift x -1.36..+1.36%"]
    assert all_words(psi | wide, []) == ["affine: angle -12.4..+14.1 deg, shift_x -1.36..+1.36%"]


def test_what_a_run_has_learned_is_what_its_summary_says(tmp_path) -> None:
    """From the start, which is no line of the metrics; both ends of a range."""
    psi = {"affine.angle_min [deg]": -12.0, "affine.angle_max [deg]": 14.0, "mine.gain": 2.0}
    one = small_config(rounds=1)
    write_run(tmp_path / "one", one, [0.5], physical=[psi], psi=psi, psi_learned=["affine.angle_max [deg]"])
    run = Run.load(tmp_path / "one")
    assert [*run.learned()] == ["affine.angle_min [deg]", "affine.angle_max [deg]"]
    assert run.courses() == {}  # a point is no course
    moved = [psi | {"mine.gain": float(n)} for n in range(2)]
    write_run(tmp_path / "going", small_config(rounds=2), [0.5, 0.5], physical=moved, finished=False)
    assert [*Run.load(tmp_path / "going").courses()] == ["mine.gain"]
