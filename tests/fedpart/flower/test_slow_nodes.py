"""Simulated time over Flower: rounds are those of the local engine, and nodes that are gone are missing."""

import pytest
from flower_experiment import CLIENTS, PACES, app, assert_equal_runs, build, local
from inprocess_grid import InProcessGrid

from fedpart import ClientError, Federation
from fedpart.flower.paced import PacedFedPart


def run(rounds, grid=None, federation=None, **config):
    experiment, reports = build(config), []
    federation = federation or Federation(experiment.protocol)
    strategy = PacedFedPart(federation, experiment.shards, on_round=reports.append)
    strategy.run(grid or InProcessGrid(app, CLIENTS, config), rounds)
    return federation, reports


@pytest.mark.parametrize("pace", PACES)
def test_the_strategy_equals_the_local_engine(pace):
    own, other = run(5, pace=pace), local(5, pace=pace)
    assert_equal_runs(own, other)
    for mine, theirs in zip(own[1], other[1], strict=True):
        assert mine.download_bytes == pytest.approx(theirs.download_bytes, rel=0.02)
        assert mine.refused == theirs.refused
    told = [report.refused or report.staleness for report in own[1]]
    assert any(told), "somebody was late, or stale"


@pytest.mark.slow
def test_a_run_goes_on_with_those_under_way(tmp_path):
    federation, _ = run(3, pace="buffered")
    federation.save(tmp_path / "run.pt")
    again = Federation(build({"pace": "buffered"}).protocol)
    again.load(tmp_path / "run.pt")
    whole, reports = run(6, pace="buffered")
    assert_equal_runs(run(6, federation=again, pace="buffered"), (whole, reports[3:]))


def test_a_client_under_way_whose_node_is_gone_has_not_answered():
    config = {"pace": "buffered", "on_client_error": "skip"}
    experiment, grid, reports = build(config), InProcessGrid(app, CLIENTS, config), []
    federation = Federation(experiment.protocol)
    strategy = PacedFedPart(federation, experiment.shards, on_round=reports.append)
    strategy.run(grid, 2)
    (_, gone, _), *_ = federation.pace.state_dict()["pace"]["under_way"]
    grid.leave(gone)
    strategy.run(grid, 8)
    missing = [skip["category"] for report in reports for skip in report.skipped if skip["client"] == gone]
    assert missing == ["no_answer"], "it is not asked again"
    assert all(report.stepped for report in reports)


def test_a_failed_round_has_not_begun():
    """As on the local engine, what could be saved after an error is the state before the round."""
    federation, _ = run(2, pace="buffered")
    before = federation.pace.state_dict()["pace"]
    grid = InProcessGrid(app, CLIENTS, {"pace": "buffered"}, tamper=lambda reply: None)
    with pytest.raises(ClientError, match="did not answer in round"):
        run(3, grid, federation, pace="buffered")
    after = federation.pace.state_dict()["pace"]
    assert federation.round == 2
    assert (before["now"], before["under_way"]) == (after["now"], after["under_way"])
