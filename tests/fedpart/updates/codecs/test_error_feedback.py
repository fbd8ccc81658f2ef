"""Runs with error feedback: the same bits wherever clients are computed, and whenever a run is stopped."""

import multiprocessing
import signal

import pytest
import torch
from flower_experiment import CLIENTS, app, assert_equal_runs, build, local
from inprocess_grid import InProcessGrid
from interruptions import kill
from problems import augmentation, chain_net, shards

from fedpart import Federation, Task, federate
from fedpart.flower.strategy import FedPart
from fedpart.updates.stages import Feedback

SPARSE = {"upload": "topk", "share": 0.1}  # as the run config of a test knows it, scalars only
FED_BACK = {**SPARSE, "error_feedback": True}
SIZES = [4, 7, 3, 9, 5, 6, 2, 8]
ROUNDS = 6
SETTINGS = {"upload": "topk", "upload_options": {"share": 0.1}, "error_feedback": True}


@pytest.fixture(scope="module")
def in_process():
    return local(4, **FED_BACK)


def deployed(folder, rounds=4, tamper=None, given=app, federation=None, **config):
    config = {**FED_BACK, **config}
    federation, reports = federation or Federation(build(config).protocol), []
    grid = InProcessGrid(given, CLIENTS, {**config, "residuals": str(folder)}, tamper=tamper)
    FedPart(federation, on_round=reports.append).run(grid, rounds)
    return federation, reports


def test_it_changes_what_a_client_sends_from_its_second_answer_on(in_process):
    cohorts = [set(build(SPARSE).protocol.cohort(round)) for round in range(1, 5)]
    again = next(i for i in range(1, 4) if cohorts[i] & set().union(*cohorts[:i])) + 1
    assert torch.equal(local(again - 1, **SPARSE)[0].w, local(again - 1, **FED_BACK)[0].w)
    (alone, reports), (fed_back, _) = local(again, **SPARSE), local(again, **FED_BACK)
    places = (alone.w != fed_back.w).sum()
    sent = 0.1 * len(alone.w) * len(cohorts[again - 1] & set().union(*cohorts[: again - 1]))
    assert sent / 10 < places <= 2 * sent  # those sent in one run and not in the other, or of another value
    assert [r.upload_bytes for r in reports] == [r.upload_bytes for r in in_process[1][:again]]


def test_clients_that_are_computed_together_agree_to_rounding():
    def run(execution):
        task = Task(chain_net(), transforms=[augmentation()], samples=2, precision="fp64")
        return federate(task, shards(SIZES), rounds=4, seed=6, execution=execution, **SETTINGS).state

    one, other = run("loop"), run("vectorised")
    assert (one.w - other.w).abs().max() < 1e-9
    assert one.stage(Feedback).residuals.versions == other.stage(Feedback).residuals.versions


def test_an_update_that_is_not_taken_has_left_nothing(tmp_path):
    """A client's first reply is lost; so is, in a second run, what it has kept."""
    protocol = build(FED_BACK).protocol
    again = min(set(protocol.cohort(1)) & {*protocol.cohort(2), *protocol.cohort(3)})
    lost = []

    def lose(reply):
        header = reply.content["config"]
        if (header["client"], header.get("round")) != (again, 1):
            return reply
        (file,) = folder.glob(f"*/{again}/1.pt")
        lost.append(file.unlink() if forget else file)
        return None

    runs = []
    for forget in (False, True):
        folder = tmp_path / str(forget)
        runs.append(deployed(folder, 3, lose, on_client_error="skip"))
    assert len(lost) == 2 and [one["client"] for one in runs[0][1][0].skipped] == [again]
    assert again not in {
        client for client, (now, *_) in runs[0][0].stage(Feedback).residuals.versions.items() if now == 1
    }
    assert_equal_runs(*runs)


def test_a_round_that_does_not_step_leaves_nothing():
    federation, reports = local(4, failing=0, on_client_error="skip", min_replies=5, **FED_BACK)
    stepped = [r.round for r in reports if r.stepped]
    assert 0 < len(stepped) < 4
    versions = {v[0] for v in federation.stage(Feedback).residuals.versions.values()}
    assert versions and versions <= set(stepped)
    there = {client for r in reports if r.stepped for client in r.cohort}
    assert federation.stage(Feedback).residuals.versions.keys() == there


def run(rounds, **more):
    task = Task(chain_net(), transforms=[augmentation()], samples=2)
    known = {"chunks": (0.5, 0.3, 0.2), "cohort": 3, "seed": 6, **SETTINGS}
    return federate(task, shards(SIZES), rounds=rounds, **{**known, **more})


@pytest.fixture(scope="module")
def whole():
    return run(ROUNDS).state


class Stop(Exception):
    pass


def stop_at(last, end):
    def on_round(report):
        if report.round == last:
            end()

    return on_round


def fall():
    raise Stop


@pytest.mark.parametrize(("every", "stop"), [(2, 3), (2, 5), (3, 5), (1, 4)])
@pytest.mark.parametrize("torn", [False, True])
def test_a_run_goes_on_from_its_checkpoint_whatever_came_after(tmp_path, whole, every, stop, torn):
    path = tmp_path / "run.pt"
    with pytest.raises(Stop):
        run(ROUNDS, checkpoint=path, checkpoint_every=every, on_round=stop_at(stop, fall))
    saved = [round for round in range(1, stop + 1) if round % every == 0]
    if torn and len(saved) > 1:
        path.write_bytes(path.read_bytes()[:1000])
        with pytest.warns(RuntimeWarning, match="going on from run.previous.pt"):
            resumed = run(ROUNDS, checkpoint=path, resume=True)
        assert resumed.metrics[0].round == saved[-2] + 1
    else:
        resumed = run(ROUNDS, checkpoint=path, resume=True)
        assert resumed.metrics[0].round == saved[-1] + 1
    assert torch.equal(resumed.state.w, whole.w)
    assert torch.equal(resumed.state.psi, whole.psi)


def test_killed_at_once_and_resumed_twice(tmp_path, whole):
    path = tmp_path / "run.pt"
    for last in (3, 5):
        known = {"checkpoint": path, "checkpoint_every": 2, "resume": True, "on_round": stop_at(last, kill)}
        killed = multiprocessing.get_context("fork").Process(target=run, args=(ROUNDS,), kwargs=known)
        killed.start()
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
    assert torch.equal(run(ROUNDS, checkpoint=path, resume=True).state.w, whole.w)


def test_a_server_that_is_resumed_asks_for_what_its_checkpoint_knows(tmp_path, in_process):
    """Its clients have gone on meanwhile, and have kept that too."""
    path = tmp_path / "run.pt"
    federation, _ = deployed(tmp_path / "kept", rounds=2)
    federation.save(path)
    deployed(tmp_path / "kept", rounds=4, federation=federation)
    again = Federation(build(FED_BACK).protocol)
    again.load(path)
    resumed, _ = deployed(tmp_path / "kept", rounds=4, federation=again)
    assert torch.equal(resumed.w, in_process[0].w)
