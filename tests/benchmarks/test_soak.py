"""The soak benchmark tells a leak from a process that is flat, and notices one that has died."""

import pytest

from benchmarks.checks.memory import MODULE, judged

ROUNDS = range(200, 1001, 100)


def samples(**sizes):
    """A row per sample; a size is a function of the round, None where the process is not there."""
    rows = []
    for round in ROUNDS:
        found = {name: size(round) for name, size in sizes.items()}
        rows.append({"round": round, "mb": {name: mb for name, mb in found.items() if mb is not None}})
    return rows


def verdicts(engine, rows):
    return {found["process"]: found["flat"] for found in judged(engine, rows)}


@pytest.mark.parametrize(("per_round", "flat"), [(0.0099, True), (0.0101, False), (-0.02, True)])
def test_growth_of_a_hundredth_per_hundred_rounds_is_a_leak(per_round, flat):
    rows = samples(**{MODULE: lambda round: 100 + per_round * (round - 200)})
    (found,) = judged("local", rows)
    assert found["flat"] is flat
    assert found["growth_per_100_rounds"] == pytest.approx(per_round, abs=1e-5)


def test_a_sawtooth_without_growth_is_flat():
    rows = samples(**{MODULE: lambda round: 100 + 3 * (round // 100 % 2)})
    assert verdicts("local", rows) == {MODULE: True}


def test_a_process_that_was_replaced_is_missed_and_a_passing_one_is_not_judged():
    rows = samples(
        **{
            f"1 {MODULE}": lambda round: 100,
            f"2 {MODULE}": lambda round: 50,
            f"3 {MODULE}": lambda round: 50 if round < 500 else None,
            f"4 {MODULE}": lambda round: 50 if round >= 500 else None,
        }
    )
    found = judged("workers", rows)
    assert found[-1] == {"process": MODULE, "expected": 3, "lasted": 2, "flat": False}
    assert [entry["flat"] for entry in found[:-1]] == [True, True]
