"""Courses: what a hyperparameter's values over the rounds are called, and the test of drift behind it."""

import numpy as np
import pytest

from simulations.results.courses import courses, trend
from simulations.results.terminal.psi_rows import learned, psi_rows

NOISE = np.random.default_rng(0).standard_normal(300)
ROUNDS = np.arange(1, 301)


def state(values, start, name="gain"):
    return courses([{"psi": {"physical": {name: float(v)}}} for v in values], {name: start})[name]["state"]


@pytest.mark.parametrize(
    ("values", "start", "word"),
    [
        (10 * np.exp(-ROUNDS / 20) + 0.3 + 0.05 * NOISE, 10.0, "settled"),
        (10 - 0.001 * ROUNDS, 10.0, "not moved"),  # a drop rate from 10.0 to 9.7%, however steadily
        (10 - 0.02 * ROUNDS + 0.1 * NOISE, 10.0, "moving"),
        (NOISE, 0.0, "swinging"),  # through zero
        (0 * ROUNDS + 10, 10.0, "fixed"),
        (0 * ROUNDS, 0.0, "fixed"),
        (5 + NOISE[:24], 10.0, "moved"),  # a last fifth of four
        ([7.0], 10.0, "moved"),
        (10 * np.exp(-ROUNDS / 20) + 1e-6 * ROUNDS, 10.0, "settled"),  # a drift that is none, of the way
    ],
)
def test_a_course_has_the_word_that_its_values_earn(values, start, word):
    assert state(values, start) == word


def test_drift_is_students_t_of_the_slope_through_five_block_means():
    """Against the closed form, on both sides of the critical value: t = slope / error with 3 degrees."""
    rest = np.array([1.0, -2.0, 0.0, 2.0, -1.0])  # no mean and no slope
    error = np.sqrt(rest @ rest / 3 / 10)
    for t, drift in ((3.1, False), (3.3, True), (-3.3, True)):
        change, bound = trend((t * error * np.arange(5) + rest).repeat(12))
        assert change == pytest.approx(5 * t * error) and (abs(change) > bound) is drift


def test_white_noise_rarely_drifts():
    rng = np.random.default_rng(1)
    trends = [trend(rng.standard_normal(60)) for _ in range(1000)]
    assert 0.02 < np.mean([abs(change) > bound for change, bound in trends]) < 0.08


@pytest.mark.parametrize(("size", "word"), [(1.0, "settled"), (3.0, "unclear")])
def test_what_has_settled_cannot_have_drifted_by_half_of_its_way(size, word):
    """No drift is seen in either, but with the larger noise half of the way from 10 to 0 may be one."""
    blocks = size * np.array([0.5, -1.0, 0.0, 1.0, -0.5]).repeat(12)
    change, bound = trend(blocks)
    assert change == pytest.approx(0.0) and (bound < 5.0) is (word == "settled") and np.ptp(blocks) < 10
    steps = 1e-9 * (-1.0) ** np.arange(60)  # a line in which psi is as before does not count
    assert state([*(10 - np.arange(240) / 24), *(blocks + steps)], 10.0) == word


def test_both_ends_of_a_range_have_one_word_and_a_change_is_measured_by_its_half_width():
    low, high = "affine.scale_x_min", "affine.scale_x_max"
    rows = [{"psi": {"physical": {low: 0.98 - 0.0002 * i, high: 1.02}}} for i in range(300)]
    found = courses(rows, {low: 0.98, high: 1.02})
    assert [found[end]["state"] for end in (low, high)] == ["moving", "moving"]  # 6% of 0.98, 3 half-widths


def test_what_is_not_finite_or_not_there_has_no_course():
    assert courses([], {"gain": 1.0}) == {}
    assert courses([{"psi": {"physical": {"gain": None}}}], {"gain": 1.0}) == {}


def summary(states, **more):
    course = {"mean": 2.0, "low": 1.0, "high": 3.0, "last": 2.5}
    told = {name: course | {"state": state} for name, state in states.items()}
    return {"psi": dict.fromkeys(states, 2.5), "psi_course": told, "rounds": 300, **more}


def test_rows_tell_the_mean_and_reach_of_what_has_settled_and_the_last_value_of_what_moves():
    rows = [*psi_rows(summary({"a": "settled", "b": "moving", "c": "not moved", "d": "fixed"}))]
    assert rows[0] == ("settled", "a 2 (1..3)") and rows[1][1].startswith("means and reach")
    assert rows[2] == ("moving", "b 2.5 (1..3)") and rows[3][1].startswith("still drifting")
    assert rows[4] == ("not moved", "c 2.5 (1..3)") and "server_psi.learning_rate" in rows[5][1]
    assert len(rows) == 6


def test_a_drop_rate_has_its_layers_name_where_a_row_has_some_of_them_and_digits_enough_to_have_moved():
    """One that went away and came back."""
    start = {"body.drop.rate [%]": 10.0, "head.rate [%]": 10.0, "gain": 1.0}
    body, head = 10 - np.sin(ROUNDS / 300 * 3.13), 5 + 1e-9 * NOISE
    curves = {"body.drop.rate [%]": body, "head.rate [%]": head}
    lines = [{name: float(curve[i]) for name, curve in curves.items()} for i in range(300)]
    gains = 2 + 1e-9 * NOISE
    physical = [{**line, "gain": gain} for line, gain in zip(lines, gains, strict=True)]
    told = courses([{"psi": {"physical": row}} for row in physical], start)
    known = {"psi": lines[-1], "psi_course": told, "psi_initial": start, "rounds": 300}
    assert told["head.rate [%]"]["state"] == told["gain"]["state"] == "settled"
    rows = dict(psi_rows(known))
    assert rows["moving"].startswith("dropout of body.drop 9.99% (9.41..9.99%) (10.00% at the start)")
    assert rows["settled"].startswith("dropout of head 5.0% (10.0% at the start)")
    assert learned({**known, "method": "partitioned"}) == (
        "and its hyperparameters, 2 of 3 known to have settled"
    )


def test_the_first_sentence_claims_no_more_than_the_courses():
    told = dict.fromkeys(("a.angle_min [deg]", "a.angle_max [deg]", "b"), "settled")
    assert learned(summary(told)) == "and its hyperparameters"
    assert learned(summary({**told, "c": "moving"})).endswith(", 2 of 3 known to have settled")
    assert learned(summary({"a": "moving", "b": "moved"})).endswith(", none of 2 known to have settled")
    assert learned(summary({"a": "fixed", "b": "not moved"})).startswith("alone")
    assert learned(summary({})) == learned(summary({"a": "fixed"}, untaught="Why.")) == "alone"


def test_what_finetuning_leaves_as_it_is_has_not_settled_and_a_norm_tells_of_a_length_alone():
    """Thirty lines of a drift, and as many in which nothing steps psi."""
    drift = [10 - 0.1 * step for step in range(1, 31)]
    assert state([*drift, *[drift[-1]] * 30], 10.0) == "moving"
    norm = "fc.weight.norm"
    assert state(drift, 10.0, norm) == "length" and state([10.0], 10.0, norm) == "fixed"


@pytest.mark.parametrize(("steps", "state"), [(24, "moved"), (25, "moving")])
def test_a_first_line_that_steps_nothing_does_not_count(steps, state):
    lines = [1.0, *(1.0 + 0.1 * step for step in range(1, steps + 1))]
    told = courses([{"psi": {"physical": {"a": value}}} for value in lines], {"a": 1.0})
    assert told["a"]["state"] == state
    assert courses([{"psi": {"physical": {"a": 1.0}}}], {"a": 1.0})["a"]["state"] == "fixed"


def test_what_stands_still_while_others_move_is_held():
    lines = [{"a": min(step, 20.0), "b": float(step)} for step in range(1, 31)]
    told = courses([{"psi": {"physical": line}} for line in lines], {"a": 0.5, "b": 0.5})
    assert {name: course["state"] for name, course in told.items()} == {"a": "held", "b": "moving"}


def test_the_end_of_a_finetuned_run_is_what_is_kept_and_only_an_earlier_one_is_told():
    """The last iteration of all stages; without an evidence nothing was chosen."""
    stages = [{"name": "trained", "iteration": 60}, {"name": "finetuned", "iteration": 90}]
    ended = {**summary({"a": "moving"}), "iterations": 60, "stages": stages}
    for iteration, lml, told in ((90, None, False), (90, -1.0, False), (50, None, False), (50, -1.0, True)):
        rows = [*psi_rows({**ended, "lml_iteration": iteration, "lml": lml})]
        assert any(name == "kept" for name, _ in rows) is told
    early = {**summary({"a": "settled", "b": "moving"}), "kept_round": 3, "kept_lml": -1.0}
    assert learned(early) == "and its hyperparameters"  # of the end, which is not kept
    assert ("kept", "weights and psi at the start of round 3, with L_ML -1.000 nats, a mean of ten: scores "
            "are of these") in psi_rows(early)  # fmt: skip
