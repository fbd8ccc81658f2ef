"""Memory: how many updates are held at a time; a soak tells a leak from a process that is flat."""

import multiprocessing
import weakref

import pytest
from flower_experiment import CLIENTS, app, build
from inprocess_grid import InProcessGrid
from problems import augmentation, chain_net, settings, shards

from benchmarks.checks.memory import MODULE, judged
from fedpart import Federation, Protocol, Task
from fedpart.engines import LocalEngine
from fedpart.flower.strategy import FedPart
from fedpart.training.optimisers import LocalSGD

SMALL, LARGE = 2, 300  # of 300 clients, some blocks have two


class Living:
    """Counts objects that are alive, in whichever process they are; ``most`` is seen by all."""

    def __init__(self):
        self.now, self.most = 0, multiprocessing.get_context("fork").RawValue("i", 0)

    def watch(self, thing):
        self.now += 1
        self.most.value = max(self.most.value, self.now)
        weakref.finalize(thing, self.end)

    def end(self):
        self.now -= 1


def most_updates(monkeypatch, cohort, workers):
    """The largest number of living tensors that hold changes of w_C, beside shared memory."""
    task = Task(chain_net(), transforms=[augmentation()], samples=1)
    federation = Federation(Protocol(task, settings(LARGE, cohort=cohort)))
    living, honest, numbers = Living(), LocalSGD.change, federation.partition.sizes[-1]

    def change(self):
        result = honest(self)
        if len(result) == numbers:
            living.watch(result)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(LocalSGD, "change", change)
        with LocalEngine(federation, shards([2] * LARGE), workers) as engine:
            engine.run(2)
    return living.most.value


@pytest.mark.slow
def test_one_process_holds_the_sums_of_cohort_and_block_and_an_update(monkeypatch):
    assert most_updates(monkeypatch, SMALL, 1) == 2, "blocks of one client are no sums of their own"
    assert most_updates(monkeypatch, LARGE, 1) == 3


@pytest.mark.slow
def test_a_worker_holds_the_sum_of_a_block_and_an_update(monkeypatch):
    """The sum of the cohort is in shared memory, whose size test_workers.py knows."""
    assert most_updates(monkeypatch, SMALL, 2) == 1
    assert most_updates(monkeypatch, LARGE, 2) == 2


class Streaming(InProcessGrid):
    """Answers a message when its reply is wanted."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.living = Living()

    def send_and_receive(self, messages, *, timeout=None):
        for message in messages:
            (reply,) = self.pull_messages(self.push_messages([message]))
            self.living.watch(reply)
            yield reply
            del reply


@pytest.mark.slow
@pytest.mark.parametrize("backwards", [False, True])
def test_the_strategy_keeps_no_reply_that_is_in_its_turn(backwards):
    grid = Streaming(app, CLIENTS)
    strategy = FedPart(Federation(build({}).protocol))
    strategy.run(grid, 1)
    grid.living.most.value = 0
    if backwards:  # the worst case: the whole cohort waits for its first client
        forwards = grid.send_and_receive
        grid.send_and_receive = lambda messages, timeout=None: forwards(messages[::-1])
    strategy.run(grid, 2)
    assert grid.living.most.value == (5 if backwards else 1)


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
