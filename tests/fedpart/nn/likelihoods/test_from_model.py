"""Networks that compute their loss themselves, in every form that such networks have."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpart import Batch, Dataset, Task, federate

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
    """The same, under another name."""

    def forward(self, x, y=None):
        return super().forward(x, y)


class Masked(Own):
    """The same behind an argument that may be left out."""

    def forward(self, x, mask=None, y=None):
        assert mask is None
        return super().forward(x, y)


class Wrapper(nn.Module):
    """The same behind any arguments."""

    def __init__(self):
        super().__init__()
        self.inner = Own()

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class OnlyByName(Own):
    """The first argument is not the inputs."""

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
    expected = loss(Task(Own().linear, samples=1), x, y)
    torch.testing.assert_close(
        loss(Task(Own(form), likelihood="from_model", samples=samples), x, y), expected
    )


@pytest.mark.parametrize("form", FORMS)
def test_it_trains_like_the_same_likelihood_outside_the_network(form):
    own, plain = trained(Own(form)), trained(Own().linear, "classification")
    torch.testing.assert_close(own.state.w, plain.state.w, rtol=1e-5, atol=1e-6)
    found, expected = own.metrics[-1], plain.metrics[-1]
    assert found.val_nll == pytest.approx(expected.val_nll, rel=1e-5)
    assert found.val_accuracy == expected.val_accuracy is not None


@pytest.mark.parametrize(
    "net, data",
    [
        (Last, lambda x, y: (x, y)),
        (Last, lambda x, y: ({"x": x}, y)),
        (Last, lambda x, y: ((x,), y)),
        (Last, lambda x, y: (x, {"y": y})),
        (Masked, lambda x, y: (x, y)),
        (Own, lambda x, y: ({"x": x}, y)),
        (OnlyByName, lambda x, y: ({"x": x}, y)),
        (Wrapper, lambda x, y: (x, y)),
        (Wrapper, lambda x, y: ({"x": x}, y)),
    ],
)
def test_labels_arrive_under_every_name(net, data):
    x, y = examples()
    expected = loss(Task(Own(), likelihood="from_model", samples=1), x, y)
    assert torch.equal(loss(Task(net(), likelihood="from_model", samples=1), *data(x, y)), expected)
    assert trained(net(), data=data(x, y)).metrics[-1].val_nll == trained(Own()).metrics[-1].val_nll


@pytest.mark.parametrize("execution", ["vectorised", "fused"])
def test_losses_of_rows_can_be_padded(execution):
    data = [examples(rows) for rows in (5, 12, 9)]
    task = Task(Own(), likelihood="from_model", samples=1)
    results = [federate(task, data, rounds=2, chunks=(0.6, 0.4), execution=of) for of in ("loop", execution)]
    torch.testing.assert_close(results[1].state.w, results[0].state.w, rtol=1e-5, atol=1e-6)


class Needs(nn.Linear):
    """Has no outputs without labels."""

    def forward(self, x, labels):
        return F.cross_entropy(super().forward(x), labels.long())


class Fails(Needs):
    """The same, although the labels may be left out."""

    def forward(self, x, labels=None):
        return super().forward(x, labels)


@pytest.mark.parametrize("kind", [Needs, Fails])
def test_a_network_that_needs_its_labels_is_evaluated_by_its_loss(kind):
    data = Dataset(torch.rand(6, 3), torch.tensor([0, 1] * 3))
    result = federate(Task(kind(3, 2), likelihood="from_model", samples=1), [data] * 4, rounds=1)
    scores = result.state.evaluate(data)
    expected = F.cross_entropy(F.linear(data.inputs, *result.module().parameters()), data.targets)
    assert scores == {"nll": pytest.approx(expected.item(), rel=1e-5)}
