"""Data as dicts and tuples through whole runs: the bits are those of the same data as a tensor."""

import pytest
import torch
from problems import CLASSES, Gain, Lazy, assert_same, settings, shards
from torch import nn
from torch.utils.data import Dataset as TorchDataset

from fedpart import ClientError, ConcreteDropout, Dataset, Protocol, Task, federate, fit
from fedpart.engines.alike import Alike, NotAlike
from fedpart.engines.executor import Executor

SIZES = (7, 12, 9, 5)
WAYS = [("loop", 1), ("loop", 2), ("grouped", 1), ("fused", 1)]


class Net(nn.Module):
    """Of an image ``x``, with dropout and a hyperparameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), Gain(), ConcreteDropout(0.2), nn.Linear(8, CLASSES)
        )

    def forward(self, x):
        return self.layers(x)


class Two(Net):
    """Of the two halves of an image, and what it returns is a dict."""

    def forward(self, left, right, mask):
        x = torch.cat([left, right], -1)
        return {"hidden": x, "logits": super().forward(x * mask[:, None, None, None].to(x.dtype))}


class Examples(TorchDataset):
    """Example by example."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, place):
        return {"x": self.data.inputs[place], "labels": self.data.targets[place]}


def in_dict(data):
    return Dataset({"x": data.inputs}, data.targets)


def halves(data):
    left, right = data.inputs.split(3, -1)
    mask = torch.ones(len(data), dtype=torch.bool)
    return {"left": left, "right": right, "mask": mask}, data.targets


def run(net, data, **options):
    options = {"rounds": 2, "chunks": (0.5, 0.3, 0.2), "seed": 1, **options}
    return federate(Task(net, samples=2), data, validation=data[0], **options)


def assert_same_run(found, expected):
    assert_same(found, expected)
    assert found.metrics[-1].val_nll == expected.metrics[-1].val_nll
    assert found.metrics[-1].val_accuracy == expected.metrics[-1].val_accuracy is not None


FORMS = (Net, in_dict), (Net, lambda of: ((of.inputs,), of.targets)), (Net, Examples), (Two, halves)


@pytest.mark.quick(1)
@pytest.mark.parametrize("execution, workers", WAYS)
def test_trees_and_several_inputs_give_the_bits_of_tensors(execution, workers):
    data, how = shards(SIZES), {"execution": execution, "workers": workers}
    expected = run(Net(), data, **how)
    for net, form in FORMS:
        assert_same_run(run(net(), [form(of) for of in data], **how), expected)


def test_centralised_training_gives_the_same_bits_too():
    data = shards([40])[0]
    options = {"iterations": 5, "batch_size": 8, "chunks": (0.5, 0.5)}
    assert_same(*(fit(Task(Net(), samples=2), of, **options) for of in (data, in_dict(data))))


LENGTHS = (3, 3, 5, 4)
SAYS = (
    r"An example's inputs\['tokens'\] have the shape \(5,\) on client 2 and \(3,\) on client 0, .* pad all "
    r"clients to one length, e\.g\. in collate_fn, or use execution: loop"
)


class Words(nn.Module):
    """The mean of words, of any number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, tokens, mask):
        return self.head((self.words(tokens) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def texts(length, rows=6):
    g = torch.Generator().manual_seed(length)
    tokens = torch.randint(20, (rows, length), generator=g)
    return {"tokens": tokens, "mask": torch.ones_like(tokens)}, torch.randint(3, (rows,), generator=g)


def run_alike(data, execution, **options):
    options = {"rounds": 1, "chunks": (0.5, 0.5), "cohort": 4, "execution": execution, **options}
    return federate(Task(Words(), samples=1), data, **options)


@pytest.mark.parametrize("execution", ["fused", "grouped"])
def test_text_of_several_lengths_is_skipped_or_refused_before_anything_is_computed(execution, monkeypatch):
    data = [texts(3) for _ in range(4)]
    data[2][0]["mask"] = torch.ones(6, 2, dtype=torch.int64)
    result = run_alike(data, execution, on_client_error="skip")
    assert [skip["client"] for skip in result.metrics[-1].skipped] == [2]
    data = [texts(length) for length in LENGTHS]
    run_alike(data, "loop")
    monkeypatch.delattr(Executor, "run")
    with pytest.raises(ValueError, match=SAYS):
        run_alike(data, execution)
    with pytest.raises(ClientError, match=SAYS):
        run_alike(Lazy(data.__getitem__, 4), execution)


def test_all_parts_count_and_no_rows_do_not():
    one = Dataset(torch.zeros(2, 3), torch.zeros(2, 4))
    protocol = Protocol(Task(Words(), samples=1), settings(5))
    alike = Alike(protocol, [Dataset(torch.zeros(0), torch.zeros(0, dtype=torch.int64)), one])
    alike.check(2, Dataset(torch.zeros(9, 3), torch.zeros(9, 4)))
    with pytest.raises(NotAlike, match=r"An example's targets have the shape \(\) on client 3 and \(4,\)"):
        alike.check(3, Dataset(torch.zeros(2, 3), torch.zeros(2)))
    with pytest.raises(NotAlike, match=r"inputs\['x'\] have the shape \(3,\) on client 4 and None"):
        alike.check(4, Dataset({"x": torch.zeros(2, 3)}, torch.zeros(2, 4)))
