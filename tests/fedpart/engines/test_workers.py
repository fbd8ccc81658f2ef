"""Worker processes: the same bits as one process, whatever happens to them."""

import gc
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from flower_experiment import assert_equal_runs, build, local
from places import importing
from problems import Lazy, after, assert_same, augmentation, chain_net, settings, shards
from torch.nn import functional as F

from fedpart import ClientError, Dataset, Federation, LocalSettings, Protocol, Task, federate
from fedpart.engines import LocalEngine
from fedpart.nn.models import digits_cnn

SIZES = [4, 7, 3, 9, 5, 6, 2, 8, 11, 4, 3]


def run(workers, rounds=3, **config):
    """The tiny experiment of the Flower tests, whose shards can fail and kill."""
    experiment = build(config)
    federation, reports = Federation(experiment.protocol), []
    with LocalEngine(federation, experiment.shards, workers) as engine:
        engine.run(rounds, reports.append)
        processes = pids(engine)
    assert not any(map(alive, processes)), "closed means ended"
    return federation, reports


def pids(engine):
    return [worker.process.pid for worker in engine.clients._all()]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def calm():
    """Three rounds in one process."""
    return local(3)


def victim(round=1, place=1):
    return build({}).protocol.cohort(round)[place]


def federated(workers, task=None, data=None, **changes):
    task = task or Task(chain_net(), transforms=[augmentation()], samples=2)
    options = {"rounds": 2, "cohort": 5, "local": LocalSettings(0.2, batch_size=4), **changes}
    return federate(task, data or shards(SIZES), workers=workers, **options)


def assert_same_bits(*arguments, **options):
    one, two = (federated(workers, *arguments, **options) for workers in (1, 2))
    assert_same(one, two)
    assert [(r.train_loss, r.lml) for r in one.metrics] == [(r.train_loss, r.lml) for r in two.metrics]


def test_the_bits_are_those_of_one_process(calm):
    assert_equal_runs(run(3), calm)


@pytest.mark.slow
@pytest.mark.parametrize("count, changes", [(3, {}), (4, {"weighting": "uniform"})])
def test_blocks_of_several_clients(monkeypatch, count, changes):
    """Eleven clients in few blocks: some are summed in a worker, and not all of them train all partitions."""
    monkeypatch.setattr("fedpart.federated.cohorts.BLOCKS", count)
    assert_same_bits(rounds=3, cohort=11, **changes)


def test_double_precision_and_memory_at_odd_lengths():
    task = Task(chain_net(), transforms=[augmentation()], samples=2, precision="fp64")
    assert_same_bits(task, scheme="node", defaults="zeros")


@pytest.mark.slow
def test_low_precision_with_convolutions_that_are_pooled():
    torch.manual_seed(0)
    network = digits_cnn(num_classes=3, input_shape=(1, 8, 8))
    task = Task(network, transforms=[augmentation()], samples=2, precision="bf16", channels_last=True)
    assert_same_bits(task, [Dataset(F.pad(one.inputs, (1, 1, 1, 1)), one.targets) for one in shards(SIZES)])


def test_workers_are_no_more_than_blocks_and_share_a_few_places_whatever_the_cohort():
    def pool(cohort, workers):
        federation = Federation(Protocol(Task(chain_net()), settings(200, cohort=cohort)))
        return LocalEngine(federation, [], workers).clients

    assert [pool(cohort, 9).workers for cohort in (2, 5, 200)] == [2, 5, 9]
    assert [pool(cohort, 2)._places for cohort in (2, 5, 200)] == [3, 3, 3]
    assert [pool(200, workers)._places for workers in (4, 8)] == [6, 12]


def test_clients_that_fail_are_skipped_alike():
    config = {"failing": victim(), "on_client_error": "skip"}
    result = run(2, **config)
    reason = f"Client {victim()} failed in round 1: KeyError: 'the disk of this client is gone'"
    assert result[1][0].skipped == [{"client": victim(), "category": "client_error", "reason": reason}]
    assert_equal_runs(result, local(3, **config))


def test_the_first_error_of_the_cohort_is_raised_and_the_engine_goes_on():
    def read(client):
        if client in broken:
            raise OSError(f"disk {client} is gone")
        return data[client]

    data = shards(SIZES)
    protocol = Protocol(Task(chain_net(), samples=1), settings(len(SIZES), cohort=8))
    cohort = protocol.cohort(1)
    broken, federation = set(cohort[2:6]), Federation(protocol)
    says = rf"Client {cohort[2]} failed in round 1: OSError: disk"
    with LocalEngine(federation, Lazy(read, len(data)), 3) as engine:
        with pytest.raises(ClientError, match=says) as caught:
            engine.run_round()
        assert "in __getitem__" in caught.value.__notes__[0], "where it happened in the worker"
        assert federation.round == 0
        broken.clear()  # workers start anew after an error, and see it
        engine.run(2)
    assert_same(federation, after(2, Federation(protocol), data)[0])


def test_a_worker_that_is_killed_in_mid_round_is_replaced(tmp_path, calm):
    result = run(2, dying=victim(2), marker=str(tmp_path / "died"))
    assert (tmp_path / "died").exists()
    assert_equal_runs(result, calm)


@pytest.mark.slow
def test_a_worker_that_is_killed_between_rounds_is_replaced(calm):
    experiment, reports = build({}), []
    with LocalEngine(Federation(experiment.protocol), experiment.shards, 2) as engine:
        for round in (1, 2):
            engine.run(round, reports.append)
            worker = engine.clients._idle[-1]
            worker.process.kill()
            worker.process.join()
        engine.run(3, reports.append)
        assert len(pids(engine)) == 2
    assert_equal_runs((engine.federation, reports), calm)


@pytest.mark.slow
def test_a_client_that_always_kills_its_worker(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpart.federated.cohorts.BLOCKS", 2)  # so that it shares a block
    config = {"dying": victim(), "marker": str(tmp_path / "died"), "always": True}
    reason = f"Client {victim()} failed in round 1: its process died 3 times (killed by SIGKILL)"
    with pytest.raises(ClientError, match=re.escape(reason)), monkeypatch.context() as patch:
        patch.setattr("fedpart.federated.cohorts.BLOCKS", 256)
        run(2, rounds=1, **config)
    one = run(2, rounds=1, on_client_error="skip", **config)
    assert one[1][0].skipped == [{"client": victim(), "category": "client_error", "reason": reason}]
    other = local(1, failing=victim(), on_client_error="skip")
    other[1][0].skipped[0]["reason"] = reason  # the others of its block are not lost
    assert_equal_runs(one, other)


def test_workers_that_cannot_start_are_a_sentence_and_not_a_loop(monkeypatch):
    monkeypatch.setattr("fedpart.engines.workers.work", lambda *_: os._exit(3))
    says = r"^A worker process ended before it ran a client of round 1 \(exit status 3\); use one worker\.$"
    with pytest.raises(ClientError, match=says):
        run(2, on_client_error="skip")


@pytest.fixture
def interrupts():
    """SIGINT raises KeyboardInterrupt, also where whoever started the tests has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_the_round_and_not_the_engine(tmp_path, interrupts):
    def read(client):
        if client == caller and not marker.exists():
            marker.touch()
            os.kill(parent, signal.SIGINT)
        return data[client]

    parent, marker, data = os.getpid(), tmp_path / "interrupted", shards(SIZES)
    protocol = Protocol(Task(chain_net(), samples=1), settings(len(SIZES), cohort=8))
    caller = next(client for client in protocol.cohort(2) if client not in protocol.cohort(1))
    federation = Federation(protocol)
    with LocalEngine(federation, Lazy(read, len(data)), 2) as engine:
        with pytest.raises(KeyboardInterrupt):
            engine.run(2)
        assert pids(engine) == [] and federation.round == 1
        engine.run(2)
    assert_same(federation, after(2, Federation(protocol), data)[0])


@pytest.mark.slow
def test_forked_after_many_threads_have_run(calm):
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        image = torch.rand(64, 8, 32, 32, requires_grad=True)
        torch.nn.Conv2d(8, 8, 3)(image).sum().backward()  # OpenMP's threads exist now
        result = run(2)
    finally:
        torch.set_num_threads(before)
    assert_equal_runs(result, calm)


@pytest.mark.slow
def test_garbage_of_the_main_process_is_not_collected_in_a_worker(tmp_path):
    """A reference into Ray's store, for one, would wait forever for a lock of a thread that is not forked."""

    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            (tmp_path / str(os.getpid())).touch()

    def read(client):
        gc.collect()
        return data[client]

    data, protocol = shards(SIZES), Protocol(Task(chain_net(), samples=1), settings(len(SIZES)))
    with LocalEngine(Federation(protocol), Lazy(read, len(data)), 2) as engine:
        Cycle()
        engine.run(1)
    gc.collect()
    assert [file.name for file in tmp_path.iterdir()] == [str(os.getpid())]
    assert gc.isenabled()


@pytest.mark.slow
def test_spawned_workers_give_the_same_bits(monkeypatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    assert_same_bits()

    class Local(torch.nn.Linear):
        pass

    network = torch.nn.Sequential(torch.nn.Flatten(), Local(36, 3))
    with pytest.raises(ValueError, match=r"cannot be sent to worker processes .* or use workers=1"):
        federate(Task(network, samples=1), shards(SIZES), rounds=1, workers=2)


ORPHANS = """
import os, signal, sys
import places, problems  # which import everything, once
from fedpart import Task, federate

def stop(report):
    if report.round == 2:
        exec(end)

for end in sys.argv[1:]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        task, shards = Task(problems.chain_net(), samples=1), problems.shards([4] * 6)
        federate(task, shards, rounds=3, cohort=4, workers=3, on_round=stop)
    os.close(write)
    with os.fdopen(read) as pipe:  # it closes when the last process of the run is gone
        assert pipe.read() == ""
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_nothing_is_left_however_the_main_process_ends():
    ends = {
        "os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
        "os.kill(os.getpid(), signal.SIGTERM)": -signal.SIGTERM,
        "sys.exit(3)": 3,
        "raise KeyboardInterrupt": -signal.SIGINT,
    }
    environment = {**os.environ, "PYTHONPATH": importing(__file__)}
    before = set(os.listdir("/dev/shm"))
    said = subprocess.run(
        [sys.executable, "-c", ORPHANS, *ends], env=environment, capture_output=True, text=True
    )
    assert [int(status) for status in said.stdout.split()] == [*ends.values()], said.stderr
    assert set(os.listdir("/dev/shm")) <= before
