"""What a Task, its psi, its inputs and outputs and its jobs must not be."""

import math
import queue
import re
import threading
from collections import namedtuple
from functools import partial
from types import SimpleNamespace

import problems
import refusals
import torch
from adapted import DRAWING, Named, Recurrent, Single, chain, frozen_body, module, trained
from problems import CLASSES, Shift
from torch import nn
from torch.utils.checkpoint import checkpoint

from fedpart import ClientError, ConcreteDropout, HyperModule, Task
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.task.calling import call, loss_of, outputs_of
from fedpart.task.gradients import Job

ROWS = 5
A, B = torch.rand(2, ROWS, 3)
Pair = namedtuple("Pair", ["a", "b"])


class Stray(HyperModule):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(2))


class Misdeclared(Stray):
    hyperparameters = ("gian", "gain")


def begins_with(number, frozen=False, dtype=torch.float32):
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(dtype)
    network[1].weight.data[0, 1] = number
    network[1].requires_grad_(not frozen)
    return network


def test_weights_that_begin_beyond_all_numbers_may_be_frozen_and_large_ones_trained():
    assert Task(begins_with(-math.inf, frozen=True)).counts["frozen"] == 6
    assert Task(begins_with(3e38).requires_grad_()).counts["trained"] == 12


def test_options_and_psi():
    unknown = "Unknown likelihood 'clasification': did you mean 'classification'"
    no_part = "cannot be called 'weight': .* no part of the module bears"
    gaussian = {"likelihood": "gaussian", "average": "probabilities"}
    rows = [
        (says, partial(Task, nn.Linear(2, 2), **options), says)
        for options, says in [
            ({"likelihood": "clasification"}, unknown),
            ({"average": "logit"}, "Unknown average over samples 'logit': did you mean 'logits'"),
            ({"precision": "fp16"}, "Unknown precision 'fp16': choose fp32, fp64 or bf16"),
            ({"samples": 0}, "samples is a number of augmentation samples, at least 1, got 0"),
            (gaussian, "no probabilities; use average='logits'"),
            ({"hyperparameters": ["wieght"]}, "the hyperparameter 'wieght': did you mean 'weight'"),
            ({"hyperparameters": ["*"]}, "no trainable parameters"),
            ({"transforms": [Stray()]}, "'stray.gain' is not listed in its `hyperparameters`; list it"),
            ({"transforms": [Misdeclared()]}, "'misdeclared.gian' as hyperparameter but has no such"),
            ({"transforms": {"weight": Shift()}}, no_part),
            ({"transforms": {"a.b": Shift()}}, "cannot be called 'a.b'"),
            ({"transforms": {"pop": Shift()}}, "cannot be called 'pop'"),
            ({"transforms": [nn.ReLU()]}, r"HyperModule, got a ReLU; put .*nn.Sequential\(transform, netw"),
            ({"transforms": nn.Dropout()}, "HyperModule, got a Dropout; put"),
            ({"transforms": {"relu": torch.relu}}, "got a builtin_function_or_method; put"),
            ({"transforms": ["affine"]}, "got a str; put"),
            ({"transforms": 3}, "got a int; put"),
        ]
    ]
    frozen = r"hyperparameter '0\.\*' is frozen; .* call module.get_parameter\('0.weight'\).requires_grad_"
    widths = "No transform of the task has widths; add AffineAugmentation"
    line = nn.Linear(2, 2)
    shifted = Task(line, transforms=[Shift()])
    rows += [
        ("nan", lambda: Task(begins_with(math.nan)), r"'1\.weight' begins with numbers that are not finite"),
        ("1e200", lambda: Task(begins_with(1e200, dtype=torch.float64)), "not finite in torch.float32"),
        ("psi", lambda: Task(line, transforms=[Shift(math.inf)]), r"'shift\.amount' begins with numbers"),
        ("frozen psi", lambda: Task(frozen_body(), hyperparameters=["0.*"]), frozen),
        ("widths of a shift", lambda: shifted.widths(torch.zeros(1)), widths),
    ]
    refusals.check((what, make, ValueError, says) for what, make, says in rows)


def outputs(net, inputs, *transforms):
    task, noise = Task(net, transforms=transforms, samples=1), Noise(NoiseKey(0, "test"))
    return partial(problems.outputs, task, inputs, noise)


def test_inputs_that_are_no_arguments():
    rowwise = nn.Linear(3, 4)
    ways_out = "give a dict whose keys are its arguments, or a tu"

    def says(which, takes):
        return re.escape(f"The inputs are {which}, but the network has forward({takes})") + f".*; {ways_out}"

    refusals.check(
        (f"{which} for {takes}", outputs(net, inputs), ValueError, says(which, takes))
        for net, inputs, which, takes in [
            (Single(), {"x": A, "more": B}, "a dict of 'x', 'more'", "x"),
            (Single(), {"image": A}, "a dict of 'image'", "x"),
            (Single(), (A, B), "a tuple of 2", "x"),
            (Named(), (A, B, A), "a tuple of 3", "a, b"),
            (Named(), Pair(A, B)[:1], "a tuple of 1", "a, b"),
            (Named(), {"a": A}, "a dict of 'a'", "a, b"),
            (Named(), {0: A, 1: B}, "a dict of 0, 1", "a, b"),
            (Named(), A, "one tensor", "a, b"),
            (rowwise, {"module": A, "b": B}, "a dict of 'module', 'b'", "input"),
            (rowwise, {0: A, 1: B}, "a dict of 0, 1", "input"),
            (nn.Sequential(rowwise), [A, B], "a list of 2", "input"),
            (nn.GRU(3, 4), {"input": A, "h": B}, "a dict of 'input', 'h'", "input, hx=..."),
        ]
    )


def test_targets_outputs_and_losses():
    targets = "and targets, but .* call the argument for the targets labels;"
    shape = r"for 5 rows; the first dimension .* \(batch_first=True\)"
    several = "tuple of tensors .* for 5 rows, and it is not clear which"
    nothing = "in which no outputs are found; return a tensor, a tuple"
    forwards = [
        (lambda x, mask=None, truth=None: x, A),
        (lambda x: x, A),
        (lambda x, mask, truth: x, (A,)),
        (lambda x, labels: x, {"x": A, "labels": B}),
        (lambda batch: batch["x"], {"x": A}),
    ]
    other_rows = {"turned": lambda out: out.T, "averaged": lambda out: out.mean(), "cut": lambda out: out[:2]}
    losses = [
        (torch.rand(ROWS), torch.rand(ROWS)),
        (torch.tensor(1.0), torch.rand(ROWS, CLASSES), torch.tensor(2.0)),
        (torch.rand(ROWS, CLASSES), torch.rand(ROWS, 1)),
    ]
    no_outputs = (None, (), {}, "text", {"logits": None}, SimpleNamespace(hidden=A, logits=None))
    y = torch.arange(ROWS)
    calls = [(partial(call, module(forward), x, y), ValueError, targets) for forward, x in forwards]
    calls += [(outputs(Named(change), (A, B)), ValueError, shape) for change in other_rows.values()]
    calls += [(partial(loss_of, loss, ROWS), ValueError, several) for loss in losses]
    calls += [(partial(outputs_of, value), ValueError, nothing) for value in no_outputs]
    refusals.check((f"{number}: {row[2]}", *row) for number, row in enumerate(calls))


def test_parts_of_the_inputs():
    inputs, net = {"ids": torch.arange(ROWS), "a": A, "b": B}, nn.Linear(3, 2)
    unclear = (
        r"the parts 'ids', 'a', 'b'; say which one the transform 'shift' acts on: Shift\(...\).on\('a'\), "
        r"in a configuration part: a\.$"
    )
    no_parts = r"transform 'shift' cannot act on a part {0!r} .*leave out \.on\({0!r}"
    rows = [
        ("no part", outputs(net, inputs, Shift()), unclear),
        ("another part", outputs(net, inputs, Shift().on("c")), unclear),
        ("a key of a tensor", outputs(net, A, Shift().on("a")), no_parts.format("a")),
        ("a place of a tensor", outputs(net, A, Shift().on(0)), no_parts.format(0)),
    ]
    refusals.check((what, call, ValueError, says) for what, call, says in rows)


class Checkpointed(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.block = nn.Sequential(*layers, nn.Tanh())

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def test_layers_that_an_execution_cannot_compute():
    alone = r"^The recurrent layer 'body' cannot be grouped; use execution: loop, or several workers\.$"
    again = "Checkpointed at '1' computes with torch.utils.checkpoint, "
    together = "cannot be computed together .*use execution: loop"
    depth, drops = DRAWING["stochastic depth"](), [[], [nn.Dropout(0.3)], [ConcreteDropout(0.3)]]
    rows = [
        ("LSTM", Recurrent(), "grouped", ValueError, alone),
        ("GRU", Recurrent(nn.GRU), "grouped", ValueError, alone),
        ("dropout between steps", Recurrent(), "fused", ClientError, "be fused .*; use execution: loop"),
        ("stochastic depth", depth, "grouped", ClientError, together),
    ]
    rows += [(f"{drop} again", chain(Checkpointed(*drop)), "loop", ClientError, again) for drop in drops]
    refusals.check(
        (what, partial(trained, net, execution=execution), error, says)
        for what, net, execution, error, says in rows
    )


def test_weights_without_memory_of_their_own():
    sparse, body = nn.Linear(3, 2), chain()
    sparse.weight = nn.Parameter(sparse.weight.detach().to_sparse())
    body.append(torch.jit.script(nn.Linear(2, 2)))
    rows = [
        ("sparse", sparse, "The weight 'weight' is sparse; hold it dense"),
        ("without values", nn.Linear(3, 2, device="meta"), "'weight' has no values, being on the device"),
        ("scripted", torch.jit.script(nn.Linear(3, 2)), "The module is compiled by torch.jit"),
        ("a scripted part", body, f"'{len(body) - 1}' is compiled by torch.jit"),
    ]
    refusals.check((what, partial(Task, module), ValueError, says) for what, module, says in rows)


def holding(value):
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].held = value
    return net


def test_networks_that_cannot_be_copied():
    rows = [
        (kind, partial(Task, holding(value)), f"0.held is a {kind} .*; keep it outside of the network")
        for kind, value in [
            ("SimpleQueue", queue.SimpleQueue()),
            ("lock", threading.Lock()),
            ("_local", threading.local()),
            ("generator", (number for number in range(3))),
            ("module", queue),
        ]
    ]
    loss = partial(Task, nn.Linear(2, 2), likelihood=Loss())
    rows.append(("loss", loss, "A copy of Loss cannot be made.* open is a lock"))
    refusals.check(rows)


class Loss:
    def __init__(self):
        self.open = threading.Lock()

    def __call__(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_whole_numbers_where_real_ones_are_computed():
    whole = torch.arange(6).view(2, 3)
    says = "real numbers, and the inputs are whole ones.*inputs.float.*numbers beyond 2"
    image = torch.arange(18).view(2, 1, 3, 3)
    attention = nn.TransformerEncoderLayer(4, 2, 8, 0.0)
    rows = [
        ("linear", outputs(nn.Linear(3, 4), whole), says),
        ("convolution", outputs(nn.Conv2d(1, 2, 3), image), says),
        ("norm", outputs(nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2)), whole), says),
        ("attention", outputs(attention, torch.ones(2, 3, 4).long()), says),
    ]
    refusals.check(rows)


def test_jobs():
    no_jobs = [{}, *({"subnetwork": value} for value in ("1", 1.0, True))]
    no_jobs += [{"subnetwork": 1, **more} for more in ({"partition": "2"}, {"psi": 1}, {"chunk": 2})]
    refusals.check((str(of), partial(Job.from_dict, of), "This is not a job") for of in no_jobs)
