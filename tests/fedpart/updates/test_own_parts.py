"""Parts of a user's own (codecs, defences, methods, stages): what cannot work is refused by its name."""

from functools import partial

import pytest
import refusals
import torch
from problems import augmentation, chain_net, shards

from fedpart import ClientError, Task, federate
from fedpart.engines.fused import FusedRunner
from fedpart.federated.protocol import Protocol
from fedpart.federated.settings import FederationSettings
from fedpart.methods.base import METHODS
from fedpart.task.gradients import Job
from fedpart.updates import stages
from fedpart.updates.codecs.base import Narrow
from fedpart.updates.combining.base import Combination
from fedpart.updates.defences import DEFENCES
from fedpart.updates.errors import StepError
from fedpart.updates.stages.base import Stage

OWN = f"{__name__}:"
FEDAVG = METHODS.resolve("fedavg")


class Halved(Combination):
    sees = True

    def beside(self, change, mean, length):
        return change.new_ones(1)

    def step(self, change, beside, mean):
        change.mul_(0.5)


class Stays(Combination):
    def stays(self, task):
        return ["0.weight"]


class Keeps(Combination):
    keeps = True


class Tied(Combination):
    tie = 1.0


class Dictated(Combination):
    server = {"name": "sgd", "learning_rate": 1.0}  # noqa: RUF012


class Doubled(FEDAVG):
    def counted(self, update, partition):
        for part in update.parts.values():
            part.mul_(2.0)
        return update


class Divides(FEDAVG):
    def combine(self, state, total):
        super().combine(state, total)
        state.w.div_(0.0)


class Adds(METHODS.resolve("partitioned")):
    def local_psi(self, client):
        psi = client.server_psi()
        psi += 1.0
        return psi


def planned(*jobs):
    class Own(FEDAVG):
        def plan(self, client):
            return jobs[0] if len(jobs) == 1 else list(jobs)

    return Own


Twice, Nothing, Beyond = planned(Job(1, 1), Job(1, 1)), planned(None), planned([Job(3, 1)])
Alone = planned(Job(1, 1))


class HalfCodec(Narrow):
    def __init__(self):
        super().__init__(torch.float16)


class Long(HalfCodec):
    def encode(self, values, rng):
        return super().encode(torch.cat([values, values]), rng)


class Wide(HalfCodec):
    def decode(self, data, numbers, dtype):
        return super().decode(data, numbers, torch.float64)


class Short(HalfCodec):
    def decode(self, data, numbers, dtype):
        return super().decode(data, numbers, dtype)[1:]


class Writes(HalfCodec):
    def encode(self, values, rng):
        return super().encode(values.mul_(0.5), rng)


def defended(result):
    class Own(DEFENCES["median"]):
        def combine(self, values, memory):
            return result(values)

    return Own


NoAnswer, Shorter = defended(lambda values: None), defended(lambda values: values[0][1:])
NoNumber = defended(lambda values: values[0] / 0 * 0)


class Halving(Stage):
    @classmethod
    def wanted(cls, settings):
        return True

    def receive(self, update, round):
        for part in update.parts.values():
            part.mul_(0.5)
        return {}


def run(method="fedavg", execution="loop", **changes):
    changes = {"chunks": (0.5, 0.5), "cohort": 3, "seed": 6, "rounds": 1, **changes}
    return federate(
        Task(chain_net(), transforms=[augmentation()], samples=2),
        shards([4] * 6),
        method=method,
        execution=execution,
        **changes,
    )


def call(*args, **changes):
    return partial(run, *args, **changes)


def test_what_does_nothing_without_more_or_returns_something_else_is_refused_by_its_name():
    coded, alike = {"method": "fedavg", "error_feedback": True}, {"weighting": "uniform"}
    every = "makes .* from clients' \\[\\d+\\] of torch.float32; have combine\\(\\) return the same"
    refusals.check(
        [
            ("stays", call(f"fedavg+{OWN}Stays"), ValueError, "Stays' has stays.* need personal = True"),
            ("tie", call(f"fedavg+{OWN}Tied"), ValueError, "Tied' has stays.*, tie .* need personal = True"),
            ("keeps", call(f"fedavg+{OWN}Keeps"), ValueError, "Keeps' has keeps, which needs sees = True"),
            ("server", call(f"fedavg+{OWN}Dictated"), ValueError, "has the server {.*SGDSettings"),
            (
                "size",
                call(upload=f"{OWN}Long", **coded),
                ClientError,
                r"Long makes \d+ bytes of \d+ numbers,",
            ),
            ("type", call(upload=f"{OWN}Wide", **coded), ClientError, "Wide reads .* of torch.float64; have"),
            ("shape", call(upload=f"{OWN}Short", **coded), ClientError, "Short reads .*; have decode"),
            ("in place", call(upload=f"{OWN}Writes", **coded), ClientError, "Writes changes what it encodes"),
            (
                "none",
                call(defence=f"{OWN}NoAnswer", **alike),
                StepError,
                f"None of .*NoneType.*{every}|{every}",
            ),
            ("short", call(defence=f"{OWN}Shorter", **alike), StepError, every),
            ("nan", call(defence=f"{OWN}NoNumber", **alike), StepError, "Round 1 .*mend the defence"),
            (
                "twice",
                call(f"{OWN}Twice"),
                ValueError,
                "plan.. of the method .*Twice' returns .*each partition",
            ),
            ("no plan", call(f"{OWN}Nothing"), ValueError, "returns None; return a list of Jobs of subnetw"),
            ("beyond", call(f"{OWN}Beyond"), ValueError, "returns .*subnetwork=3.*subnetworks 1 to 1"),
            ("a bare job", call(f"{OWN}Alone"), ValueError, "returns Job.*; return a list of Jobs"),
            ("combine", call(f"{OWN}Divides"), StepError, "Round 1 has made .*; lower .*combine"),
        ]
    )


def test_nothing_that_changes_one_update_is_fused(monkeypatch):
    def fused(method="fedavg"):
        settings = FederationSettings(clients=6, cohort=3, chunks=(0.5, 0.5), method=method)
        return FusedRunner(Protocol(Task(chain_net()), settings), shards([4] * 6))

    fused("fedavg+fednova")
    for method, says in ((f"fedavg+{OWN}Halved", "Combining"), (f"{OWN}Doubled", f"{OWN}Doubled")):
        with pytest.raises(ValueError, match=f"no updates of their own, which {says} would change; use exec"):
            fused(method)
    monkeypatch.setattr(stages, "STAGES", (*stages.STAGES, Halving))
    with pytest.raises(ValueError, match="which Halving would change"):
        fused()


def test_a_method_that_writes_into_its_psi_has_one_result_on_every_way():
    loop, workers = (run(f"{OWN}Adds", rounds=2, workers=count) for count in (1, 2))
    assert torch.equal(loop.state.w, workers.state.w) and torch.equal(loop.state.psi, workers.state.psi)
    assert (loop.state.psi - run("partitioned", rounds=2).state.psi).abs().max() < 0.5, "1 would be added"
