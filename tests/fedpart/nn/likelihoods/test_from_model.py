"""Networks that compute their loss themselves, and what likelihoods refuse."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import refusals
import torch
from torch import nn
from torch.nn import functional as F

from fedpart import Batch, ClientError, Dataset, Task, federate
from fedpart.nn.likelihoods import Classification, Gaussian, MultiLabel, Ordinal, Poisson
from fedpart.nn.likelihoods import EnsembleClassification as Members
from fedpart.nn.likelihoods import TokenClassification as Tokens

ROWS, CLASSES = 12, 3
FORMS = {
    "scalar": lambda nll, outputs: nll.mean(),
    "of length one": lambda nll, outputs: nll.mean().reshape(1),
    "each row": lambda nll, outputs: nll,
    ".loss": lambda nll, outputs: SimpleNamespace(loss=nll.mean(), logits=outputs),
    "['loss']": lambda nll, outputs: {"logits": outputs, "loss": nll},
    "first of a tuple": lambda nll, outputs: (nll.mean(), outputs),
    "last of a tuple": lambda nll, outputs: (outputs, nll),
}


class Own(nn.Module):
    """Gives its outputs without labels, and its loss with them."""

    def __init__(self, form="each row"):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.form = nn.Linear(4, CLASSES), FORMS[form] if isinstance(form, str) else form

    def forward(self, x, labels=None):
        outputs = self.linear(x)
        if labels is None:
            return outputs
        return self.form(F.cross_entropy(outputs, labels, reduction="none"), outputs)


class Last(Own):
    def forward(self, x, y=None):
        return super().forward(x, y)


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Own()

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class OnlyByName(Own):
    def forward(self, mask=None, labels=None, x=None):
        assert mask is None
        return super().forward(x, labels)


def examples(rows=ROWS):
    g = torch.Generator().manual_seed(1)
    return torch.randn(rows, 4, generator=g), torch.arange(rows) % CLASSES


def weights(task):
    space = task.parameter_space(1)
    return space.tensors(space.initial()), task.psi_space.initial()


def loss(task, *batch):
    return task.loss(*weights(task), Batch(*batch), None)


def trained(net, likelihood="from_model", data=None, **options):
    data = examples() if data is None else data
    given = {"samples": 1, "rounds": 2, "chunks": (0.6, 0.4), **options}
    task = Task(net, likelihood=likelihood, samples=given.pop("samples"))
    return federate(task, [data] * 3, validation=data, **given)


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_loss_is_the_likelihood_of_its_outputs(form, samples):
    """Equal samples have equal losses, so that their mean is the loss under the mean output."""
    x, y = examples()
    task, plain = Task(Own(form), likelihood="from_model", samples=samples), Task(Own().linear, samples=1)
    torch.testing.assert_close(loss(task, x, y), loss(plain, x, y))


@pytest.mark.parametrize("net, form", [(Own("scalar"), torch.Tensor), (Wrapper(), lambda x: {"x": x})])
def test_it_trains_like_the_same_likelihood_outside_the_network(net, form):
    x, y = examples()
    own, plain = trained(net, data=(form(x), y)), trained(Own().linear, "classification")
    torch.testing.assert_close(own.state.w, plain.state.w, rtol=1e-5, atol=1e-6)
    found, expected = own.metrics[-1], plain.metrics[-1]
    assert found.val_nll == pytest.approx(expected.val_nll, rel=1e-5)
    assert found.val_accuracy == expected.val_accuracy is not None


@pytest.mark.parametrize(
    "net, data",
    [
        (Last, lambda x, y: ((x,), y)),
        (Last, lambda x, y: (x, {"y": y})),
        (OnlyByName, lambda x, y: ({"x": x}, y)),
        (Wrapper, lambda x, y: (x, y)),
        (Wrapper, lambda x, y: ({"x": x}, y)),
    ],
)
def test_labels_arrive_under_every_name(net, data):
    x, y = examples()
    expected = loss(Task(Own(), likelihood="from_model", samples=1), x, y)
    assert torch.equal(loss(Task(net(), likelihood="from_model", samples=1), *data(x, y)), expected)


@pytest.mark.parametrize("execution", ["grouped", "fused"])
def test_losses_of_rows_can_be_padded(execution):
    data = [examples(rows) for rows in (5, 12, 9)]
    task = Task(Own(), likelihood="from_model", samples=1)
    results = [federate(task, data, rounds=2, chunks=(0.6, 0.4), execution=of) for of in ("loop", execution)]
    torch.testing.assert_close(results[1].state.w, results[0].state.w, rtol=1e-5, atol=1e-6)


class Needs(nn.Linear):
    def forward(self, x, labels):
        return F.cross_entropy(super().forward(x), labels.long())


class Fails(Needs):
    def forward(self, x, labels=None):
        return super().forward(x, labels)


@pytest.mark.parametrize("kind", [Needs, Fails])
def test_a_network_that_needs_its_labels_is_evaluated_by_its_loss(kind):
    data = Dataset(torch.rand(6, 3), torch.tensor([0, 1] * 3))
    result = federate(Task(kind(3, 2), likelihood="from_model", samples=1), [data] * 4, rounds=1)
    scores = result.state.evaluate(data)
    expected = F.cross_entropy(F.linear(data.inputs, *result.module().parameters()), data.targets)
    assert scores == {"nll": pytest.approx(expected.item(), rel=1e-5)}


B, K = 6, 4
LABELS = torch.arange(B) % 3


def linear(likelihood, **options):
    return Task(nn.Linear(1, 1), likelihood=likelihood, **options)


def test_arguments():
    rows = [
        (lambda: Classification(temperature=0), "temperature of a likelihood is a number above 0, got 0"),
        (lambda: Classification(label_smoothing=1), "strictly between 0 and 1, got 1"),
        (lambda: Gaussian(variance=-1), "variance of a likelihood is a number above 0, got -1"),
        (lambda: Gaussian(variance=math.nan), "above 0, got nan"),
        (lambda: Ordinal(1), "classes of a likelihood is a whole number of at least 2, got 1"),
        (lambda: Ordinal("5"), "classes of a likelihood is a whole number of at least 2, got '5'"),
        (lambda: Ordinal(5.0), "classes of .* got 5.0"),
        (lambda: Classification(temperature="abc"), "temperature of a likelihood is a number .* got 'abc'"),
        (lambda: Classification(label_smoothing="x"), "label_smoothing of a likelihood .* got 'x'"),
        (lambda: Gaussian(variance=True), "variance of a likelihood is a number above 0, got True"),
        (lambda: Gaussian(learned="yes"), "learned of a likelihood is true or false, got 'yes'"),
        (lambda: Tokens(shift=1), "shift of a likelihood is true or false, got 1"),
        (lambda: Tokens(ignored="none"), "ignored of a likelihood is a whole number, got 'none'"),
        (lambda: linear(Gaussian), r"give a name .*an instance such as Gaussian\("),
        (lambda: linear(3), "The likelihood is 3; give a name"),
        (lambda: linear("ordinal"), r"'ordinal' needs classes; give Ordinal\(cl"),
        (lambda: linear("gausian"), "did you mean 'gaussian'"),
        (lambda: linear("gaussian", average="probabilities"), "average='logits'"),
        (lambda: linear("classification", average="mean"), "Unknown average"),
    ]
    refusals.check((says, make, says) for make, says in rows)


def test_outputs_and_targets():
    numbers, labels, one_hot = torch.zeros(B), torch.zeros(B).long(), torch.eye(K)[:1].repeat(B, 1)
    classes, flat = Classification(), r"numbers \[6, 1\]; write targets.flatten\(\).long"
    rows = [
        (classes, (B, K), numbers, "the targets are real numbers .*; write targets.long\\(\\) if"),
        (classes, (B, K), torch.zeros(B, K).long(), "likelihood='token_classification'"),
        (classes, (B, K), one_hot.long(), r"write targets.argmax\(1\) if they"),
        (classes, (B, K), one_hot, r"write targets.argmax\(1\) if"),
        (classes, (B, K), labels[:, None], f"whole {flat}"),
        (classes, (B, K), numbers[:, None], f"real {flat}"),
        (classes, (B, 3, K), labels, "use likelihood='ensemble'"),
        (Members().loss, (B, K), labels, r"several members, \[B, M, K\].*or likelihood='classification'"),
        (Members(), (B, 3, K), numbers, "ensemble takes integers"),
        (MultiLabel(), (B, K), labels, r"0 or 1 for each of \[6, 4\] outputs"),
        (Tokens(), (B, K), labels, r"takes outputs \[B, T, K\] and targets \[B, T\]"),
        (Gaussian(), (B, 2), numbers, r"gaussian takes a target for each output, .*\[6, 2\].*\[6\]"),
        (Poisson(), (B, 2), numbers, r"poisson takes a target for each output, .*\[6, 2\].*\[6\]"),
        (Gaussian(), (B, 2, 3), torch.zeros(B, 3, 2), r"\[6, 2, 3\] .*\[6, 3, 2\]; .* the layout of"),
        (Poisson(), (B, 1, 4), torch.zeros(B, 2, 2), r"\[6, 1, 4\] .*\[6, 2, 2\]; .* the layout of"),
        (Ordinal(3), (B, 3), labels, r"ordinal takes one number per example, .*\[6, 3\]"),
        (Ordinal(3), (B, 1), numbers, "ordinal takes integers"),
        (Ordinal(3), (B,), labels + 3, r"outside the 3 classes 0\.\.2 of the ordinal"),
    ]
    refusals.check(
        (says, partial(ends, torch.zeros(outputs), targets), says) for ends, outputs, targets, says in rows
    )


def from_model(form):
    return Task(Own(form), likelihood="from_model", samples=1)


def loss_of(task, rows=None):
    return loss(task, torch.ones(B, 4), LABELS, rows)


def of_outputs(likelihood):
    return partial(loss_of, Task(nn.Linear(4, 1), likelihood=likelihood, samples=2))


def test_what_is_no_loss():
    scalar = from_model(lambda nll, outputs: nll.mean())
    together = partial(federate, scalar, [(torch.ones(n, 4), torch.zeros(n).long()) for n in (5, 12, 9)])
    together = partial(together, rounds=1, chunks=(0.6, 0.4), execution="fused")
    forms = [
        (lambda nll, outputs: outputs, r"a loss \[6, 3\] for 6 rows; return their mean, or one num"),
        (lambda nll, outputs: nll[:2], r"returns a loss \[2\] for 6 rows"),
        (lambda nll, outputs: SimpleNamespace(logits=outputs), "SimpleNamespace without a loss"),
        (lambda nll, outputs: {"logits": outputs}, "dict without a loss"),
        (lambda nll, outputs: (), "tuple without a loss"),
        (lambda nll, outputs: (outputs[:, 0], nll), r"\[6\], \[6\] for 6 rows, and it is not clear which"),
    ]
    padded = "cannot be padded; return one for each row, or use execution: l"
    one_each = r"returned shape \(6, 1\) where one negative log-likelihood per example, \(6,\), is expected"
    rows = [(says, partial(loss_of, from_model(form)), (TypeError, ValueError), says) for form, says in forms]
    rows += [
        ("a mean of padded rows", lambda: loss_of(scalar, torch.ones(B)), padded),
        ("a mean of clients together", together, ClientError, "execution: loop"),
        ("of outputs alone", lambda: scalar.likelihood(torch.zeros(B, 3), LABELS), r"use Task\.loss"),
        ("a loss for each output", of_outputs(lambda out, y: (out - y[:, None]).square()), one_each),
        ("a mean", of_outputs(lambda out, y: out.mean()), r"returned shape \(\) where"),
    ]
    refusals.check(rows)
