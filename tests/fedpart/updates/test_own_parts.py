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


class Personal(Stays):
    personal = True


class Sends(Combination):
    sends = True


class Shifts(Combination):
    def shift(self, own, mean):
        return own


class Misnamed(Personal):
    keeps = True

    def stays(self, task):
        return "nope.weight"


class Missing(Misnamed):
    def stays(self, task):
        return ["nope.weight"]


def besides(result):
    class Own(Combination):
        sees = True

        def beside(self, change, mean, length):
            return result(change)

        def step(self, change, beside, mean):
            change.copy_(beside)

    return Own


Same, Copied, Cut = besides(lambda change: change), besides(torch.clone), besides(lambda change: change[:2])


class Reused(Copied):
    def __init__(self):
        self.half = torch.full((1,), 0.5)

    def beside(self, change, mean, length):
        return self.half

    def step(self, change, beside, mean):
        change.mul_(beside)


class Fresh(Reused):
    def beside(self, change, mean, length):
        return torch.full((1,), 0.5)


class Returns(Copied):
    def step(self, change, beside, mean):
        return change * 0.5


def kept(shift):
    class Own(Copied):
        keeps = sends = True

        def shift(self, own, mean):
            return shift(own, mean)

    return Own


Reads = kept(lambda own, mean: (own - mean) * 0.1)
WritesOwn, Narrowed = kept(lambda own, mean: own.sub_(mean).mul_(0.1)), kept(lambda own, mean: own[:1])


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


class Remembers(DEFENCES["median"]):
    def combine(self, values, memory):
        combined = super().combine(values, memory)
        return combined if memory is None else combined + 0.9 * memory

    def remembered(self, combined, memory):
        return combined


class RemembersCopies(Remembers):
    def remembered(self, combined, memory):
        return combined.clone()


class RemembersNothing(Remembers):
    def remembered(self, combined, memory):
        return None


class Forgets(Remembers):
    """Every other round."""

    def combine(self, values, memory):
        combined = DEFENCES["median"].combine(self, values, None)
        return combined if memory is None else memory.mul_(0).add_(combined)

    def remembered(self, combined, memory):
        return combined if memory is None else None


class RemembersLess(Remembers):
    def remembered(self, combined, memory):
        return combined[:2]


class Bytes(HalfCodec):
    def encode(self, values, rng):
        return super().encode(values, rng).numpy().tobytes()


class Iterated(METHODS.resolve("partitioned")):
    def trained_psi(self, task):
        return iter(task.psi_names)


class Misspelt(METHODS.resolve("partitioned")):
    def trained_psi(self, task):
        return "affine"


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
    every = r"combine\(\) of the defence .* returns .*not \[\d+\] of torch.float32; have it return such a"
    refusals.check(
        [
            ("stays", call(f"fedavg+{OWN}Stays"), ValueError, "Stays' has stays.* need personal = True"),
            ("tie", call(f"fedavg+{OWN}Tied"), ValueError, "Tied' has stays.*, tie .* need personal = True"),
            ("keeps", call(f"fedavg+{OWN}Keeps"), ValueError, "Keeps' has keeps, which needs sees = True"),
            ("personal", call(f"fedavg+{OWN}Personal"), ValueError, "personal, which needs keeps = True"),
            *(
                (way, call(f"fedavg+{OWN}{way}"), ValueError, "or sends, which need sees = True")
                for way in ("Sends", "Shifts")
            ),
            *(
                (
                    way,
                    call(f"fedavg+{OWN}{way}", evaluation="clients"),
                    ValueError,
                    r"stays\(\) returns .*nope.*; have it return a list of names",
                )
                for way in ("Misnamed", "Missing")
            ),
            ("beside", call(f"fedavg+{OWN}Cut"), ValueError, r"The beside\(\) of .* returns \[2\] of"),
            (
                "step",
                call(f"fedavg+{OWN}Returns"),
                StepError,
                r"step\(\) of .* returns a Tensor; have it alter",
            ),
            ("shift", call(f"fedavg+{OWN}Narrowed"), ClientError, r"The shift\(\) of .* returns \[1\] of"),
            (
                "memory",
                call(defence=f"{OWN}RemembersLess", **alike),
                StepError,
                r"remembered\(\) .* \[2\] of",
            ),
            ("bytes", call(upload=f"{OWN}Bytes", **coded), ClientError, "Bytes makes bytes of"),
            (
                "psi",
                call(f"{OWN}Misspelt"),
                ValueError,
                r"trained_psi\(\) returns \['a', .*not a list of some of",
            ),
            ("augment", call(method_options={"augment": "no"}), ValueError, "augment is true or"),
            ("server", call(f"fedavg+{OWN}Dictated"), ValueError, "has the server {.*SGDSettings"),
            (
                "size",
                call(upload=f"{OWN}Long", **coded),
                ClientError,
                r"the codec Long makes .*\[\d+\]\) of \d+ numbers,",
            ),
            (
                "type",
                call(upload=f"{OWN}Wide", **coded),
                ClientError,
                "Wide returns .* of torch.float64, and",
            ),
            ("shape", call(upload=f"{OWN}Short", **coded), ClientError, "Short returns .*; have it"),
            ("in place", call(upload=f"{OWN}Writes", **coded), ClientError, "Writes changes what it encodes"),
            (
                "none",
                call(defence=f"{OWN}NoAnswer", **alike),
                StepError,
                every,
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


@pytest.mark.parametrize(
    ("aliased", "copied"),
    [
        ({"method": f"fedavg+{OWN}Same"}, {"method": f"fedavg+{OWN}Copied"}),
        ({"method": f"fedavg+{OWN}Reused"}, {"method": f"fedavg+{OWN}Fresh"}),
        ({"defence": f"{OWN}Forgets"}, {"defence": f"{OWN}RemembersNothing"}),
        ({"method": f"{OWN}Iterated"}, {"method": "partitioned"}),
        ({"method": f"fedavg+{OWN}WritesOwn"}, {"method": f"fedavg+{OWN}Reads"}),
        ({"defence": f"{OWN}Remembers"}, {"defence": f"{OWN}RemembersCopies"}),
    ],
)
@pytest.mark.parametrize("execution", ["loop", "grouped"])
def test_what_shares_its_memory_with_what_was_given_counts_as_a_copy(aliased, copied, execution):
    more = {"rounds": 3, "weighting": "uniform", "execution": execution}
    one, other = (run(**{**more, **changes}).state for changes in (aliased, copied))
    assert torch.equal(one.w, other.w)


def test_a_run_whose_rounds_had_no_answers_in_time_says_that_nothing_is_learnt():
    with pytest.warns(RuntimeWarning, match=r"Nothing is learnt: .*result.metrics\[-1\].skipped"):
        run(devices={"speed": 10.0}, deadline=1e-3, rounds=2, on_client_error="skip")


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
