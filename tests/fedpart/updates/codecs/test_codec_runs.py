"""Runs whose uploads are encoded, also with error feedback: what travels, and that stops change no bit."""

import multiprocessing
import signal

import pytest
import torch
from flower_experiment import assert_equal_runs, build, deployed, local
from interruptions import Died, die, kill
from parity import assert_parity
from problems import assert_near, assert_same, augmentation, chain_net, nothing, settings, shards, update_of
from torch import nn

from fedpart import Dataset, Federation, LocalSettings, Protocol, SGDSettings, Task, federate
from fedpart.engines import LocalEngine
from fedpart.engines.executor import Executor
from fedpart.nn.likelihoods import Gaussian
from fedpart.updates.stages import Kept

SPARSE = {"upload": "topk", "share": 0.1}  # as the run config of a test knows it, scalars only
FED_BACK = {**SPARSE, "error_feedback": True}
ROUNDS = 6


@pytest.mark.parametrize("name", ["int8", "int4", "topk"])
def test_clients_that_are_computed_together_are_rounded_alike(name):
    task = Task(chain_net(), transforms=[augmentation()], samples=2, precision="fp64")
    assert_parity(task, 1e-6, upload=name)


def test_bytes_are_those_of_the_codes_and_of_psi_as_it_is():
    chunks, reports = (0.5, 0.3, 0.2), []
    protocol = Protocol(Task(chain_net(), samples=2), settings(10, chunks=chunks, upload="int4"))
    LocalEngine(Federation(protocol), shards(range(3, 13))).run(1, reports.append)
    sizes = [-(-n // 2) + 4 * -(-n // 64) for n in protocol.partition.sizes]
    psi = sum(4 * protocol.task.psi_space.size for client in range(10) if protocol.chunk(client) > 1)
    coded = sum(sum(sizes[protocol.chunk(client) - 1 :]) for client in range(10))
    assert reports[0].upload_bytes - coded - psi == 10 * 569


def test_rounding_is_a_function_of_seed_client_round_and_partition():
    def rounded(seed, client, round):
        """What becomes of the same numbers in two partitions."""
        protocol = Protocol(Task(chain_net()), settings(10, chunks=(0.5, 0.5), upload="int4", seed=seed))
        deltas = {j: torch.linspace(-1, 1, 64).repeat(2) for j in (1, 2)}
        sent = Executor(protocol).send(update_of(deltas), client, nothing(round))
        return [tuple(sent.cells[j].tolist()) for j in (1, 2)]

    assert rounded(0, 1, 1) == rounded(0, 1, 1)
    others = [rounded(0, 1, 1), rounded(1, 1, 1), rounded(0, 2, 1), rounded(0, 1, 2)]
    assert len({part for parts in others for part in parts}) == 8


@pytest.mark.slow
def test_feedback_changes_what_a_client_sends_from_its_second_answer_on():
    cohorts = [set(build(SPARSE).protocol.cohort(round)) for round in range(1, 5)]
    second = next(i for i in range(1, 4) if cohorts[i] & set().union(*cohorts[:i])) + 1
    assert_same(local(second - 1, **SPARSE)[0], local(second - 1, **FED_BACK)[0])
    (alone, reports), (fed_back, others) = local(second, **SPARSE), local(second, **FED_BACK)
    places = (alone.w != fed_back.w).sum()
    sent = 0.1 * len(alone.w) * len(cohorts[second - 1] & set().union(*cohorts[: second - 1]))
    assert sent / 10 < places <= 2 * sent  # those sent in one run and not in the other, or of another value
    assert [r.upload_bytes for r in reports] == [r.upload_bytes for r in others]


@pytest.mark.slow
def test_topk_with_feedback_converges_where_topk_alone_does_not():
    """Two clients pull one weight apart, ever so strongly, and agree on the other one."""
    ends, pulls = {}, [Dataset(torch.eye(2), torch.tensor([[far], [1.0]])) for far in (10.0, -10.0)]
    for feedback in (True, False):
        net = nn.Linear(2, 1, bias=False)
        net.weight.data.zero_()
        known = {"upload": "topk", "upload_options": {"share": 0.5}, "error_feedback": feedback}
        known |= {"chunks": (1.0,), "method": "fedavg", "server": SGDSettings(1.0)}
        chosen = settings(2, local=LocalSettings(0.2, batch_size=2), **known)
        federation = Federation(Protocol(Task(net, likelihood=Gaussian(1.0), samples=1), chosen))
        engine, course = LocalEngine(federation, pulls), []
        for round in range(1, 81):
            engine.run(round)
            course.append(federation.w.clone())
        ends[feedback] = torch.stack(course[40:]).mean(0)
    assert ends[False].tolist() == [0, 0], "the second weight is never the largest"
    assert (ends[True] - torch.tensor([0.0, 1.0])).abs().max() < 0.1


def kept(federation):
    return federation.stage(Kept).residuals.versions


@pytest.mark.slow
def test_an_update_that_is_not_taken_has_left_nothing(tmp_path):
    """A client's first reply is lost; so are, in a second run, what it has kept and its variate."""
    protocol = build(known := {"method": "scaffold", "on_client_error": "skip", **FED_BACK}).protocol
    victim = min(set(protocol.cohort(1)) & {*protocol.cohort(2), *protocol.cohort(3)})
    lost, runs = [], []

    def lose(reply):
        header = reply.content["config"]
        if (header["client"], header.get("round")) != (victim, 1):
            return reply
        (file,) = folder.glob(f"*/{victim}/1.pt")
        lost.append(file.unlink() if forget else file)
        return None

    for forget in (False, True):
        folder = tmp_path / str(forget)
        runs.append(deployed(3, {**known, "residuals": str(folder)}, tamper=lose))
    assert len(lost) == 2 and [skip["client"] for skip in runs[0][1][0].skipped] == [victim]
    assert victim not in kept(runs[0][0]) or kept(runs[0][0])[victim][0] > 1
    assert_equal_runs(*runs)


def test_a_round_that_does_not_step_leaves_nothing():
    federation, reports = local(4, failing=0, on_client_error="skip", min_replies=5, **FED_BACK)
    stepped = {r.round: r.cohort for r in reports if r.stepped}
    assert 0 < len(stepped) < 4
    assert {now for now, *_ in kept(federation).values()} <= stepped.keys()
    assert kept(federation).keys() == set().union(*stepped.values())


def run(rounds, precision="fp32", **more):
    task = Task(chain_net(), transforms=[augmentation()], samples=2, precision=precision)
    known = {"chunks": (0.5, 0.3, 0.2), "cohort": 3, "seed": 6, "upload": "topk", "error_feedback": True}
    known["upload_options"] = {"share": 0.1}
    return federate(task, shards([4, 7, 3, 9, 5, 6, 2, 8]), rounds=rounds, **known, **more)


def test_clients_that_are_computed_together_keep_alike():
    one, other = (run(4, "fp64", execution=kind).state for kind in ("loop", "grouped"))
    assert_near(one, other)
    assert kept(one) == kept(other)


@pytest.fixture(scope="module")
def whole():
    return run(ROUNDS)


def stop_at(last, end):
    return lambda report: end() if report.round == last else None


@pytest.mark.quick(1)
@pytest.mark.parametrize(("every", "stop", "torn"), [(3, 5, False), (1, 4, True), (2, 5, True)])
def test_a_run_goes_on_from_its_checkpoint_whatever_came_after(tmp_path, whole, every, stop, torn, recwarn):
    path = tmp_path / "run.pt"
    with pytest.raises(Died):
        run(ROUNDS, checkpoint=path, checkpoint_every=every, on_round=stop_at(stop, die))
    saved = [round for round in range(1, stop + 1) if round % every == 0]
    if torn:
        path.write_bytes(path.read_bytes()[:1000])
    computed = []
    resumed = run(ROUNDS, checkpoint=path, resume=True, on_round=computed.append)
    assert any("going on from run.previous.pt" in str(warning.message) for warning in recwarn) == torn
    assert computed[0].round == saved[-2 if torn else -1] + 1
    assert_same(resumed, whole)


def test_killed_at_once_and_resumed_twice(tmp_path, whole):
    path = tmp_path / "run.pt"
    for last in (3, 5):
        known = {"checkpoint": path, "checkpoint_every": 2, "resume": True, "on_round": stop_at(last, kill)}
        killed = multiprocessing.get_context("fork").Process(target=run, args=(ROUNDS,), kwargs=known)
        killed.start()
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
    assert_same(run(ROUNDS, checkpoint=path, resume=True), whole)
