"""What likelihoods refuse: arguments, outputs beside targets that do not fit, and what is no loss."""

import math
from functools import partial
from types import SimpleNamespace

import refusals
import torch
from torch import nn
from torch.nn import functional as F

from fedpart import Batch, ClientError, Task, federate
from fedpart.nn.likelihoods import (
    Classification,
    EnsembleClassification,
    Gaussian,
    MultiLabel,
    Ordinal,
    Poisson,
)
from fedpart.nn.likelihoods import TokenClassification as Tokens

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
    numbers, labels, members = torch.zeros(B), torch.zeros(B).long(), EnsembleClassification()
    rows = [
        (Classification(), (B, K), numbers, "the targets are real numbers; use likelihood='gaussian'"),
        (Classification(), (B, K), torch.zeros(B, K).long(), "likelihood='token_classification'"),
        (Classification(), (B, 3, K), labels, "use likelihood='ensemble'"),
        (members.loss, (B, K), labels, r"several members, \[B, M, K\].*or likelihood='classification'"),
        (members, (B, 3, K), numbers, "ensemble takes integers"),
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


class Own(nn.Module):
    """Gives its outputs without labels, and with them what ``form`` makes of each row's loss."""

    def __init__(self, form):
        super().__init__()
        self.linear, self.form = nn.Linear(4, 3), form

    def forward(self, x, labels=None):
        outputs = self.linear(x)
        if labels is None:
            return outputs
        return self.form(F.cross_entropy(outputs, labels, reduction="none"), outputs)


def from_model(form):
    return Task(Own(form), likelihood="from_model", samples=1)


def loss(task, weights=None):
    space = task.parameter_space(1)
    batch = Batch(torch.ones(B, 4), LABELS, weights)
    return task.loss(space.tensors(space.initial()), task.psi_space.initial(), batch, None)


def of_outputs(likelihood):
    return partial(loss, Task(nn.Linear(4, 1), likelihood=likelihood, samples=2))


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
    rows = [(says, partial(loss, from_model(form)), (TypeError, ValueError), says) for form, says in forms]
    rows += [
        ("a mean of padded rows", lambda: loss(scalar, torch.ones(B)), padded),
        ("a mean of clients together", together, ClientError, "execution: loop"),
        ("a loss of outputs alone", lambda: scalar.likelihood(torch.zeros(B, 3), LABELS), r"use Task\.loss"),
        ("a loss for each output", of_outputs(lambda out, y: (out - y[:, None]).square()), one_each),
        ("a mean", of_outputs(lambda out, y: out.mean()), r"returned shape \(\) where"),
    ]
    refusals.check(rows)
