"""What federate() refuses, and what it says of a client that fails."""

from functools import partial

import refusals
import torch
from problems import CLASSES, SIZE, Lazy, augmentation, chain_net, settings, shard, shards, smooth_net
from sizes import ARCHITECTURES
from sizes import net as layers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedpart import (
    ClientError,
    ClipSettings,
    Dataset,
    Federation,
    HyperModule,
    LocalSettings,
    Protocol,
    SGDSettings,
    Task,
    federate,
    uniform,
)
from fedpart.engines.executor import Executor
from fedpart.task.gradients import Job
from fedpart.training.local import LocalSGD
from fedpart.updates.errors import blamed
from fedpart.updates.update import Round

SIZES = [4, 7, 3, 9, 5, 6, 2, 8]
REAL = (shard(5).inputs, shard(5).targets.float())
NONE, BEYOND = shard(5).subset([]), (shard(5).inputs, shard(5).targets + 9)  # labels of no class


def run(task=None, data=None, **changes):
    """A call of federate() for eight clients."""
    task = task or Task(chain_net(), transforms=[augmentation()], samples=2)
    options = {"rounds": 1, "chunks": (0.5, 0.3, 0.2), "cohort": 4, "seed": 3, **changes}
    return partial(federate, task, shards(SIZES) if data is None else data, **options)


def gone(client):
    raise OSError("the disk is gone")


def test_settings_and_data_of_a_run():
    def trained(report):
        raise AssertionError("it is refused before a round is trained")

    outside = "set lie outside the 3 classes"
    wide = [
        Dataset(torch.randn(3, SIZE + 1), torch.zeros(3).long()) if c == 5 else one
        for c, one in enumerate(shards(SIZES))
    ]
    missing_trace = "nowhere.csv"
    scores = {"method": "fedex", "buffer": 2}
    refusals.check(
        (f"{', '.join(changes)}: {says}", run(**{"on_round": trained, **changes}), ValueError, says)
        for changes, says in [
            ({"chnuks": (1.0,)}, "There is no setting 'chnuks': did you mean 'chunks'"),
            ({"clients": 8}, "There is no setting 'clients'"),
            ({"roundss": 8}, "There is no setting 'roundss': did you mean 'rounds'"),
            ({"evaluate_every": 0}, "evaluate_every is a number of rounds, at least 1, got 0"),
            ({"checkpoint_every": 0}, "checkpoint_every is a number of rounds"),
            ({"rounds": -1}, "rounds is a number of rounds, at least 1, got -1"),
            ({"rounds": 1.5}, "rounds is a number of rounds, at least 1, got 1.5"),
            *(
                ({name: kind}, f"{name} is a number of \\w+, at least \\d, got {kind!r}")
                for name in ("rounds", "evaluate_every", "checkpoint_every", "workers")
                for kind in (True, None, "x", 1.5)
            ),
            *(({name: 1}, f"{name} is True or False, got 1") for name in ("progress", "resume")),
            ({"on_round": "print"}, "on_round is a function, got 'print'"),
            ({"checkpoint": 5}, "checkpoint is the path of a file, got 5"),
            ({"execution": None}, "execution is a name, got None: Known: auto, fused, grouped, loop"),
            ({"execution": 5}, "execution is a name, got 5"),
            ({"loggers": None}, "loggers is a list, got None"),
            ({"loggers": 5}, "loggers is a list, got 5"),
            ({"workers": 0}, "workers is a number of processes, at least 1, got 0"),
            ({"method": "none"}, "'none' is centralised only; plain federated training is 'fedavg'"),
            ({"method": "laplace"}, "'laplace' is centralised only"),
            ({"task": nn.Linear}, r"an nn.Module, got the class Linear; write Task\(module\)"),
            ({"test": NONE}, "no examples to evaluate on"),
            ({"validation": NONE}, "no examples to evaluate on"),
            ({"validation": BEYOND}, f"of the validation {outside}"),
            ({"test": BEYOND}, f"of the test {outside}"),
            ({"data": [*shards(SIZES), NONE]}, "Client 8 has no examples; give it some, or leave it out"),
            ({"data": [*shards(SIZES), BEYOND]}, f"client 8 do not fit: .* of the training {outside}"),
            ({"data": [*shards(SIZES), REAL]}, "data of client 8 do not fit: .* targets are real numbers"),
            ({"data": wide}, "data of client 5 do not fit: Affine augmentation takes images"),
            ({"resume": True}, "nothing to resume from"),
            ({"cohort": 9}, r"number of clients \(8\), got 9"),
            ({"devices": missing_trace}, r"^The trace nowhere.csv cannot be read \(No such file"),
            (scores, r"needs the sums of their scores.* buffer"),
        ]
    )


def test_what_is_no_list_of_clients():
    examples = (torch.randn(8, SIZE), torch.zeros(8).long())
    of_torch, no_list = TensorDataset(*examples), [iter(shards(SIZES)), dict(enumerate(shards(SIZES)))]
    says = r"a list with the examples of each client, got .*; write federate"
    refusals.check(
        (type(data).__name__, run(data=data), ValueError, says)
        for data in (DataLoader(of_torch), of_torch, shard(8, 0), examples, *no_list)
    )


def sized(width=1.0, sizes=layers):
    return Task(layers(width), transforms=[augmentation()], samples=2, sizes=sizes)


def test_clients_of_several_sizes():
    half = {"share": 0.5, "model_options": {"width": 0.5}}
    rare = [{"share": s, "model_options": {"width": w}} for s, w in ((0.7, 1.0), (0.29, 0.6), (0.01, 0.4))]
    deep = {"share": 1.0, "model_options": {"depth": 3}}
    rolling = {"method": "fedrolex", "server": SGDSettings(1.0), "sharing": {"kind": "bank", "budget": 1400}}
    bank = {"kind": "bank", "budget": 1400}
    list_of = "architectures are a list of"
    leave_out = "architectures; leave architectures out, or use"
    rows = [
        ({"architectures": []}, list_of),
        ({"architectures": [{"share": 1.0, "width": 1}]}, list_of),
        ({"architectures": [{"share": 0.5}, {"share": 0.5}]}, "give each size once"),
        ({"architectures": [half]}, "shares of architectures"),
        ({"architectures": [deep]}, "cannot be built with"),
        ({"task": Task(layers())}, r"give Task\(..., sizes=build\)"),
        ({"task": sized(sizes=lambda width: layers(width, width == 1))}, "has other hyperparameters than"),
        ({"execution": "grouped"}, leave_out),
        ({"execution": "fused", "local": LocalSettings(0.3, batch_size=99)}, "architectures; leave"),
        ({"architectures": [{**half, "share": 1.0}]}, "trained by nobody: no client has them"),
        ({"architectures": rare}, "No client has the architecture {'width': 0.4}, whose"),
        ({"sharing": {"budget": 3}}, "sharing needs a kind, one of bank, basis"),
        ({"sharing": {"kind": "banks"}}, "Unknown kind of sharing 'banks': did you mean 'bank'"),
        ({"sharing": {"kind": "bank", "size": 3}}, "does not take the options"),
        ({"sharing": {"kind": "bank", "budget": 3}}, "The budget is 3 numbers"),
        ({"sharing": bank, "architectures": None}, "set architectures as well"),
        ({"sharing": bank, "scheme": "node"}, "use scheme: random"),
        ({"sharing": bank, "execution": "grouped"}, leave_out),
        ({"sharing": bank, "task": sized(2.0)}, "No architecture is the task's own network"),
        (rolling, "leave sharing and private parameters out"),
    ]
    known = {"task": sized(), "architectures": ARCHITECTURES}
    refusals.check_keywords(lambda **changes: run(**known | changes)(), rows)


class Common(HyperModule):
    """Noise that all rows share."""

    hyperparameters = ("amount",)

    def __init__(self, shape=lambda x: (1,)):
        super().__init__()
        self.amount, self.shape = nn.Parameter(torch.tensor(0.1)), shape

    def forward(self, x):
        return x + self.amount * uniform(self.shape(x), like=x)


class Idle(Common):
    """Does nothing."""

    def forward(self, x):
        return x


def test_what_cannot_be_fused():
    fused, few = partial(run, execution="fused"), LocalSettings(batch_size=4)
    seven = [shard(7)] * 8
    updates = "to clip, to round, to compare or to make private; leave clip, upload, defence and"
    steps = r"Client \d takes 2 steps with its 7 examples, .*raise local.batch_size"
    by_chance = Task(nn.Linear(32, 3), transforms=[Common(lambda x: x.shape[-1:])], samples=1)
    vectors = [Dataset(torch.rand(4, 32), torch.zeros(4).long()) for _ in SIZES]
    augmented = {"method": "fedavg", "method_options": {"augment": True}, "cohort": 8}
    all_rows = Task(chain_net(), transforms=[Common()], samples=2)
    draws = "cannot be fused \\(a layer draws noise of shape "
    refusals.check(
        [
            ("two epochs", fused(local=LocalSettings(epochs=2)), ValueError, "epochs is 2; set it to 1, or"),
            ("weights alike", fused(weighting="uniform"), ValueError, "'uniform'; set it to examples"),
            ("two batches", fused(data=seven, local=few), ValueError, steps),
            ("two lazy batches", fused(data=Lazy(seven.__getitem__), local=few), ClientError, steps),
            ("clipping", fused(clip=ClipSettings(1.0)), ValueError, updates),
            ("rounding", fused(upload="int8"), ValueError, updates),
            ("trimming", fused(defence="trim", weighting="uniform"), ValueError, updates),
            ("shared noise", fused(all_rows), ClientError, rf"round 1 {draws}\(1,\)"),
            ("noise as wide", fused(by_chance, vectors, **augmented), ClientError, rf"{draws}\(32,\)"),
        ]
    )


def test_clients_that_fail(monkeypatch):
    data, wide = shards(SIZES), Task(nn.Linear(4, 3), samples=1, likelihood="gaussian", precision="fp64")
    data[3] = Dataset(data[3].inputs, data[3].targets + CLASSES)
    huge = {
        scale: [(torch.ones(n, 4), torch.full((n, 3), 0.0 if i else scale)) for i, n in enumerate(SIZES)]
        for scale in (1e9, 1e17)
    }
    of_clients = {"evaluation": "clients", "evaluation_share": None, "evaluate_every": 1}
    no_own = "client has no examples for evaluations; give Dataset\\(inputs"
    beyond = partial(run, data=Lazy(data.__getitem__), cohort=8)
    rows = [
        ("labels of no class", beyond(), "client 3 do not fit the network"),
        ("labels of no class, fused", beyond(execution="fused"), "data of client 3 do not fit"),
        ("a disk", run(data=Lazy(gone)), r"Client \d failed in round 1: OSError: the disk is gone"),
        ("nothing held out", beyond(data=Lazy(shards(SIZES).__getitem__), **of_clients), no_own),
    ]
    none = r"8 clients have no examples to score, first \[0, 1, 2\]; give Dataset.*evaluation_share"
    refusals.check([("none held out", run(**of_clients), ValueError, none)])
    for scale, says in ((1e9, "its loss is"), (1e17, "w_1 has values beyond")):
        for execution, workers in (("loop", 1), ("loop", 2), ("grouped", 1), ("fused", 1)):
            options = {"cohort": 8, "method": "fedavg", "execution": execution, "workers": workers}
            name = f"targets of {scale}, {execution} by {workers}"
            refused = f"update of client 0 in round 1 was refused: {says}"
            rows.append((name, run(wide, huge[scale], **options), refused))
    refusals.check((what, call, ClientError, says) for what, call, says in rows)
    honest = LocalSGD.change

    def infinite(self, *arguments):
        change = honest(self, *arguments)
        change[0] = float("inf")
        return change

    monkeypatch.setattr(LocalSGD, "change", infinite)
    refused = r"The update of client \d in round 1 was refused: w_\d has values"
    refusals.check([("an infinite weight", run(), ClientError, refused)])


def test_what_a_client_cannot_compute():
    def client(data, task=None, job=None, **changes):
        """A call that computes a job of client 2 in round 5."""
        task = task or Task(smooth_net())
        federation = Federation(Protocol(task, settings(4, chunks=(0.5, 0.3, 0.2), **changes)))
        values = Round(5, federation.w, federation.psi)

        def call():
            with blamed(2, 5):
                Executor(federation.protocol).run(values, 2, data, [job or Job(2, 2)])

        return call

    idle, two = Task(nn.Linear(4, 3), transforms=[Idle()]), Dataset(torch.zeros(2, 4), torch.tensor([0, 1]))
    unused = "Client 2 .*does not depend on any of idle.amount"
    beyond = Dataset(shard(6).inputs, torch.tensor([0, 1, 2, 1, CLASSES, 0]))
    small = Dataset(torch.rand(4, 1, 5, 5), torch.zeros(4).long())
    steep = LocalSettings(learning_rate=1e30, batch_size=2, epochs=4)
    no_number = "loss of client 2 in round 5 is (nan|inf) .*subnetwork 2.*lower the learning rates"
    labels = f"data of client 2 do not fit the network.*{CLASSES}.*every label must be below"
    refusals.check(
        (what, call, ClientError, says)
        for what, call, says in [
            ("a steep loss", client(shard(9), local=steep), no_number),
            ("no examples", client(NONE), "Client 2 has no examples"),
            ("labels", client(beyond), labels),
            ("averaged labels", client(beyond, Task(smooth_net(), average="probabilities")), labels),
            ("an idle hyperparameter", client(two, idle, Job(1, psi=True)), unused),
            ("small images", client(small), "^Client 2 failed in round 5: RuntimeError: .*shapes"),
        ]
    )
