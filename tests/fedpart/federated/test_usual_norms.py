"""Bounds that follow the clients: what they are, and who moves them."""

import numpy as np
import pytest
import torch
from flower_experiment import assert_equal_runs, build, deployed, local
from flwr.app import Array
from problems import Recorder, chain_net, settings, update_of
from tiny import tiny

from fedpart import ClipSettings, Federation, Protocol, Task
from fedpart.engines.executor import Executor
from fedpart.updates.stages import Clip, stage_of
from fedpart.updates.stages.clip import ALARM, NEEDED, UsualBounds, UsualNorms
from fedpart.updates.update import FREE, LARGEST, PSI, REACH, UNIT, Bound, clip, largest_change

ROUNDS = 4


def usual(clip="adaptive"):
    kind = UsualNorms if clip is None else UsualBounds
    return kind(Protocol(Task(chain_net(), samples=1), settings(20, clip=clip, chunks=(0.5, 0.3, 0.2))))


def of(part, *norms):
    return {client: {part: norm} for client, norm in enumerate(norms)}


def test_a_word_stands_for_bounds_that_clients_need_not_know_and_a_run_of_others_is_not_resumed(tmp_path):
    """A server among strangers may have them, whatever its clients were started with."""
    local(1, clip="adaptive")[0].save(tmp_path / "run.pt")
    for other in (None, {"multiple": 2.0}):
        with pytest.raises(ValueError, match="clip was"):
            Federation(build({"clip": other}).protocol).load(tmp_path / "run.pt")
    clips = None, "adaptive", {"weights": 1}
    free, usual, fixed = (build({"clip": clip}).protocol.fingerprint for clip in clips)
    assert free == usual != fixed
    usual = ClipSettings(multiple=4.0)
    assert tiny(clip="adaptive").settings().clip == usual == settings(8, clip="adaptive").clip
    clips = stage_of(build({"clip": "adaptive"}).protocol.stages, Clip)
    assert all(bound is FREE for bound in clips.bounds), "clients do not clip"


def loud(client, factor, rounds=(1,), most=1e15):
    """Multiplies what a client sends in some rounds, changes of weights up to ``most``, gradients to 1e15."""

    def change(reply):
        config = reply.content["config"]
        if reply.has_content() and config["client"] == client and config["round"] in rounds:
            arrays = reply.content["arrays"]
            for name in arrays:
                sent = arrays[name].numpy()
                end = most if name == "w" else 1e15
                arrays[name] = Array(np.clip(sent * np.float32(factor), -end, end).astype(sent.dtype))
        return reply

    return change


def test_the_server_clips_whatever_it_is_sent():
    """A client that sends 1000 times as much moves the sum by its norm and no further."""
    norms, victim = (0.03, 0.02, 0.01), build({}).protocol.cohort(1)[2]
    config = {"clip": ClipSettings(norms, psi=0.005), "weighting": "uniform"}
    federation = Recorder(build(config).protocol)
    deployed(1, config, federation=federation, tamper=loud(victim, 1e3))
    (total,) = federation.totals
    for j, delta in total["deltas"].items():
        assert delta.norm() <= total["weights"][j] * norms[j - 1] * (1 + 1e-5)


def of_chunks(chunks, round):
    protocol = build({}).protocol
    return [client for client in protocol.cohort(round) if protocol.chunk(client) in chunks]


def squares(federation):
    states = federation.optimiser.state_dict() + federation.optimiser_psi.state_dict()
    return [state["exp_avg_sq"].sum() for state in states]


@pytest.mark.slow
@pytest.mark.parametrize("round", [1, 2])
def test_one_client_at_the_limit_moves_no_further_than_a_loud_honest_one(round):
    """In the first round, too, and also where it is the only one that has a gradient of psi."""
    victim = of_chunks((2, 3), round)[0]
    config = {"clip": "adaptive", "on_client_error": "skip"}
    honest, _ = deployed(3, config)
    attacked, reports = deployed(3, config, tamper=loud(victim, 1e30, (round,), REACH))
    assert not any(report.skipped for report in reports), "it is legal"
    unclipped, _ = deployed(3, {**config, "clip": None}, tamper=loud(victim, 1e30, (round,)))
    for mine, theirs in zip(squares(attacked), squares(honest), strict=True):
        assert mine < 20 * theirs, "Adam remembers no giant"
    assert max(squares(unclipped)) > 1e15


@pytest.mark.slow
@pytest.mark.parametrize("pace", [{}, {"pace": "buffered"}], ids=["rounds", "buffered"])
def test_what_no_model_means_is_refused_where_norms_follow_the_clients(pace, monkeypatch):
    """In one process, in several and over Flower, to the bit; elsewhere whatever can be summed is taken."""
    run, victim = Executor.run, of_chunks((1, 2, 3), 1)[0]

    def beyond(executor, round, client, shard, jobs):
        update = run(executor, round, client, shard, jobs)
        if client == victim and round.number == 1:
            for tensor in update.cells.values():
                tensor.fill_(1.001 * REACH)
        return update

    monkeypatch.setattr(Executor, "run", beyond)
    config = {"clip": "adaptive", "on_client_error": "skip", **pace}
    expected = local(ROUNDS, **config)
    assert [one["client"] for report in expected[1] for one in report.skipped] == [victim]
    assert sum(report.refused.get("too_large", 0) for report in expected[1]) == 1
    assert_equal_runs(local(ROUNDS, workers=2, **config), expected)
    if not pace:
        assert_equal_runs(deployed(ROUNDS, config), expected)
    assert not any(report.skipped for report in local(ROUNDS, **{**config, "clip": None})[1])


def test_the_largest_change_follows_the_largest_weight():
    assert largest_change(torch.tensor([0.5, -0.25])) == REACH
    assert largest_change(torch.tensor([0.5, -3.0])) == 3 * REACH
    assert largest_change(torch.tensor([2e13])) == LARGEST


def test_the_only_client_of_a_part_is_not_believed_at_once():
    found, total = usual(), update_of(psi=torch.tensor([1.0, 0.0]))
    norms = clip(first := update_of(psi=torch.tensor([1e15, 0.0])), found.bounds())
    torch.testing.assert_close(first.psi, torch.tensor([1.0, 0.0]))
    found.total(total, 1, {5: norms})
    assert total.psi.tolist() == [0.0, 0.0] and found.bounds()[PSI] is UNIT
    total = update_of(psi=torch.tensor([1.0, 0.0]))
    found.total(total, 1, of(PSI, 0.25))
    assert total.psi.tolist() == [0.25, 0.0] and found.bounds()[PSI] == Bound(4 * 0.25)


def test_the_usual_norm_is_the_lower_median_of_the_fewest_last_rounds(monkeypatch):
    monkeypatch.setattr("fedpart.updates.stages.clip.RECENT", 4)
    found = usual({"multiple": 2.0})
    found.total(None, 1, of(1, 1.0, 3.0, 2.0))
    assert found.bounds()[1] == Bound(2 * 2.0) and found.bounds()[2] is UNIT
    found.total(None, 1, of(1, 0.0, 8.0, 0.0))  # zeros say nothing
    assert found.bounds()[1] == Bound(2 * 2.0), "of 1, 2, 3, 8"
    found.total(None, 1, of(1, 9.0, 9.0, 9.0))
    assert found.bounds()[1] == Bound(2 * 9.0), "the first round is out: 8, 9, 9, 9"
    assert found.clipped == [0, 1, 2]
    found.total(None, 1, {})
    assert found.bounds()[1] == Bound(2 * 9.0) and found.clipped == []


@pytest.mark.parametrize("liars", [4, 9])
def test_fewer_than_half_of_the_norms_move_a_bound_no_further_than_honest_ones(liars):
    honest = [1.0 + 0.01 * i for i in range(10)]
    for lie in (1e15, 1e-20):
        found = usual()
        found.total(None, 1, of(1, *honest, *[lie] * liars))
        assert 4 * 1.0 <= found.bounds()[1].norm <= 4 * 1.09


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1.0, 1e15])
def test_whatever_its_size_an_update_becomes_no_longer_than_one_and_stays_finite(size):
    update = update_of({1: torch.full((1000,), size), 2: torch.zeros(3)}, torch.full((2,), -size))
    clip(update, (UNIT, UNIT, UNIT))
    for tensor in (*update.cells.values(), update.psi):
        assert tensor.isfinite().all() and tensor.norm() <= 1 + 1e-6


def test_an_alarm_names_the_chunk_whose_psi_gradients_are_of_another_size():
    found = usual(None)
    chunk_of = {k: [c for c in range(20) if found.run.chunk(c) == k] for k in (2, 3)}
    some = [*chunk_of[2][:4], *chunk_of[3][:2]]
    honest = {client: {PSI: 1.0 + 0.1 * i} for i, client in enumerate(some)}
    found.total(None, 1, honest)
    assert found.alarms == [] and len(honest) >= NEEDED
    first, second = chunk_of[3][:2]
    found.total(None, 1, honest | {first: {PSI: 1.5 * ALARM}})
    assert found.alarms == []  # the chunk's mean is not beyond
    found.total(None, 1, honest | {first: {PSI: 5 * ALARM}, second: {PSI: ALARM}})
    assert [one["chunk"] for one in found.alarms] == [3]
    assert found.alarms[0]["times"] == pytest.approx(3 * ALARM / 1.2, rel=0.2)
    found.total(None, 1, honest)
    assert found.alarms == []


def test_an_alarm_is_a_warning_and_in_the_report():
    victim = of_chunks((3,), 4)[0]
    with pytest.warns(RuntimeWarning, match=r"Round 4: the psi gradients of chunk 3 are \d"):
        _, reports = deployed(ROUNDS, {}, tamper=loud(victim, 1e4, (4,)))
    assert [[alarm["chunk"] for alarm in one.psi_alarms or ()] for one in reports] == [[], [], [], [3]]
