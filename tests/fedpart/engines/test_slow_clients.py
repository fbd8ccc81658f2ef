"""Runs of slow clients: what a round takes, who is left out of it, and steps with the first answers."""

from dataclasses import replace

import pytest
import torch
from problems import (
    Lazy,
    accepted,
    after,
    again,
    assert_near,
    assert_same,
    augmentation,
    chain_net,
    settings,
    shards,
    untimed,
)

from fedpart import (
    ClientError,
    ClipSettings,
    Dataset,
    DeviceSettings,
    Federation,
    LocalSettings,
    Protocol,
    Task,
    federate,
)
from fedpart.engines import local_engine
from fedpart.engines.executor import Executor
from fedpart.engines.local import Loop
from fedpart.engines.paced import Turns
from fedpart.federated.cohorts import CohortSum, download_bytes, sum_updates, upload_bytes
from fedpart.training.agreement import difference
from fedpart.updates.update import Round

SIZES = (7, 12, 3, 9, 10, 6, 5, 8)
SLOW = DeviceSettings(speed={"lognormal": (20.0, 1.0)}, upload=5e3, download=2e4)
BUFFERED = {"devices": SLOW, "buffer": 2, "concurrency": 4, "staleness": "sqrt"}
ROUNDS = 6


def protocol(**changes):
    task = Task(chain_net(dropout=False), transforms=[augmentation()], samples=2, precision="fp64")
    common = {"chunks": (0.5, 0.3, 0.2), "cohort": 3, "local": LocalSettings(0.3, 8)}
    return Protocol(task, settings(len(SIZES), **{**common, **changes}))


def run(rounds=ROUNDS, data=None, execution="loop", workers=1, **changes):
    return after(rounds, Federation(protocol(**changes)), data or shards(SIZES), workers, execution)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"local": LocalSettings(0.3, 4, epochs=2, psi_batch=5), "evaluation": "clients"},
        {"method": "fedex", "method_options": {"arms": {"epochs": [1, 3]}}, "upload": "int8"},
        {"method": "partitioned+ditto"},
        {"method": "fedrep", "evaluation": "clients"},
    ],
)
def test_what_a_client_takes_is_known_before_it_is_computed(changes):
    federation, data = Federation(protocol(devices=SLOW, **changes)), shards(SIZES)
    times, executor, its = Turns(federation, data), Executor(federation.protocol), federation.protocol
    round = Round(3, federation.w, federation.psi)
    state = 8 * (len(round.w) + len(round.psi))
    for client in range(len(SIZES)):
        jobs, device = its.plan(client, 3), federation.pace.fleet.device(client)
        visited = executor.run(round, client, data[client], jobs).visited
        travel = download_bytes(its, client) / 2e4 + upload_bytes(its, client, jobs) / 5e3
        compute = times.seconds(round, client) - travel
        assert compute == pytest.approx(visited / device.speed, rel=1e-9) and visited > 0
    assert state < download_bytes(its, client) < state + 1000


def test_the_clock_runs_at_the_pace_of_the_slowest_clients_and_changes_nothing_else():
    (plain, before), (clocked, reports) = run(3), run(3, devices=SLOW)
    assert_same(plain, clocked)
    assert untimed(reports, simulated_seconds=None) == untimed(before)
    times, round = Turns(clocked, shards(SIZES)), Round(1, clocked.w, clocked.psi)
    slowest = [max(times.seconds(round, client) for client in report.cohort) for report in reports]
    ends = [report.simulated_seconds for report in reports]
    assert ends == pytest.approx([sum(slowest[:n]) for n in (1, 2, 3)]) and min(slowest) > 0


def test_who_is_late_costs_its_download_and_nothing_else():
    changes = {"devices": SLOW, "overselect": 2.0, "deadline": 1.5}
    federation, (report,) = run(1, **changes)
    start = Federation(federation.protocol)
    times, round = Turns(start, shards(SIZES)), Round(1, start.w, start.psi)
    seconds = {client: times.seconds(round, client) for client in report.cohort}
    first = sorted(report.cohort, key=seconds.get)[:3]
    kept = sorted(client for client in first if seconds[client] <= 1.5)
    assert len(report.cohort) == 6 and 0 < len(kept) < len(first), "both rules are seen"
    assert report.simulated_seconds == 1.5 and report.replies == len(kept)
    assert report.refused == {"late": 6 - len(kept)}
    assert [skip["client"] for skip in report.skipped] == [c for c in report.cohort if c not in kept]
    assert all("was not waited for in round 1: it takes" in skip["reason"] for skip in report.skipped)
    assert report.download_bytes == sum(download_bytes(start.protocol, client) for client in report.cohort)
    plan = federation.protocol.plan
    assert report.upload_bytes == sum(upload_bytes(federation.protocol, c, plan(c, 1)) for c in kept)
    start.step(Loop(start.protocol, shards(SIZES)).sum(round, kept))
    assert_same(federation, start)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"method": "augerino", "workers": 2},
        {"upload": "int8", "clip": ClipSettings(0.1, psi=0.1)},
        {"execution": "fused", "local": LocalSettings(0.3, 16)},
        {"on_client_error": "skip"},
    ],
)
def test_without_delay_and_with_a_full_buffer_it_is_the_synchronous_run_to_the_bit(changes):
    data = shards(SIZES)
    if "on_client_error" in changes:
        data[2] = Dataset(data[2].inputs[:, :, :1, :1], data[2].targets)
    waiting, before = run(4, data, **changes)
    buffered, reports = run(4, data, buffer=waiting.protocol.settings.cohort, staleness="sqrt", **changes)
    assert_same(waiting, buffered)
    assert untimed(reports) == untimed(before, staleness=0.0)
    if "on_client_error" in changes:
        assert sum(len(report.skipped) for report in reports) > 0


class Reference:
    """BUFFERED as real clients would run it: each is computed when it starts, from a copy of the values."""

    def __init__(self):
        self.federation, self.data = Federation(protocol(**BUFFERED)), shards(SIZES)
        self.protocol, self.executor = self.federation.protocol, Executor(self.federation.protocol)
        self.times = Turns(self.federation, self.data)
        self.now, self.under_way, self.staleness = 0.0, [], []

    def start(self, number, busy, turn):
        """Fill the free places: (when it has answered, client, round, its answer)."""
        free = 4 - len(self.under_way)
        round = Round(number, self.federation.w.clone(), self.federation.psi.clone())
        for client in self.protocol.cohort(number, size=free, without=busy, turn=turn) if free else []:
            jobs = self.protocol.plan(client, number)
            update = self.executor.run(round, client, self.data[client], jobs)
            update, _ = accepted(self.protocol, client, update, round)
            self.under_way.append((self.now + self.times.seconds(round, client), client, number, update))
        return turn + bool(free)

    def step(self, number):
        buffer, turn = [], 0
        while len(buffer) < 2:
            if not self.under_way or min(self.under_way)[0] > self.now:
                turn = self.start(number, {client for _, client, *_ in self.under_way + buffer}, turn)
                self.now = min(self.under_way)[0]
            buffer.append(min(self.under_way))
            self.under_way.remove(buffer[-1])
        for _, _, begun, update in buffer:
            for tensor in (*update.cells.values(), *([] if update.psi is None else [update.psi])):
                tensor /= (1 + number - begun) ** 0.5
            self.staleness.append(number - begun)
        self.federation.step(CohortSum(total=sum_updates(update for *_, update in buffer)))


def test_a_buffered_run_is_that_of_a_server_whose_clients_train_at_once():
    (buffered, reports), real = run(**BUFFERED), Reference()
    for number in range(1, ROUNDS + 1):
        real.step(number)
    assert_near(buffered, real.federation)
    assert reports[-1].simulated_seconds == pytest.approx(real.now)
    staleness = real.staleness
    means = [sum(pair) / 2 for pair in zip(staleness[::2], staleness[1::2], strict=True)]
    assert [report.staleness for report in reports] == means
    assert max(staleness) > 1, "somebody is stale"
    waits, _ = run(**{**BUFFERED, "staleness": "none"})
    assert not torch.allclose(waits.w, buffered.w, rtol=1e-6), "and scaled down for it"


@pytest.mark.parametrize("execution", ["grouped", "fused"])
def test_every_execution_computes_the_same_buffers(execution):
    changes = BUFFERED | {"local": LocalSettings(0.3, 16), "scheme": "node", "defaults": "zeros"}
    (one, reports), (other, others) = run(4, **changes), run(4, execution=execution, **changes)
    assert_near(one, other)
    assert [report.cohort for report in reports] == [report.cohort for report in others]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [BUFFERED, {"devices": SLOW, "overselect": 1.5, "deadline": 3.0}])
def test_stopped_after_every_step_and_resumed(tmp_path, changes):
    common = {"chunks": (0.5, 0.3, 0.2), "cohort": 3, "seed": 6, "local": LocalSettings(batch_size=4)}
    changes = {**common, **changes, "devices": replace(SLOW, available=0.8)}

    def federated(rounds, **more):
        return federate(protocol().task, shards(SIZES), rounds=rounds, **changes, **more)

    whole = federated(ROUNDS)
    for stop in range(1, ROUNDS + 1):
        resumed = federated(stop, checkpoint=tmp_path / "run.pt", resume=True)
        assert len(resumed.metrics) == stop
    assert_same(resumed, whole)
    assert untimed(resumed.metrics) == untimed(whole.metrics)


def test_a_round_that_has_failed_has_not_begun(tmp_path):
    """What is saved after a client's error is the round before, with those that were under way."""
    data, broken = shards(SIZES), []

    def read(client):
        if broken:
            raise OSError("gone")
        return data[client]

    federation = Federation(protocol(**BUFFERED))
    with local_engine(federation, Lazy(read)) as engine:
        engine.run(2)
        broken.append(True)
        with pytest.raises(ClientError, match="gone"):
            engine.run(4)
    resumed = again(federation, tmp_path / "run.pt")
    assert_same(after(4, resumed, data)[0], run(4, data, **BUFFERED)[0])


def test_the_pace_is_the_servers_alone_and_a_trace_decides_by_what_it_contains(tmp_path):
    def agreed(name, speed):
        lines = [f"{client},{speed},1e6,1e6" for client in range(len(SIZES))]
        (tmp_path / name).write_text("client,speed,upload,download\n" + "\n".join(lines))
        federation = Federation(protocol(devices=str(tmp_path / name)))
        assert federation.protocol.fingerprint == protocol().fingerprint, "clients need no trace"
        return federation.agreement

    traced = agreed("one.csv", 3)
    assert traced == agreed("other.csv", 3) != agreed("another.csv", 4)
    plain, buffered = Federation(protocol()).agreement, Federation(protocol(**BUFFERED)).agreement
    assert "aggregation was None, is 'buffered'" in difference(buffered, traced)
    before = {key: value for key, value in plain.items() if value is not None}
    assert not difference(plain, before), "checkpoints from before there was a pace"
