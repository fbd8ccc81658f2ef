"""Examples in torch's data sets and loaders, arrays, dicts and tuples become the same Dataset."""

from functools import partial

import numpy as np
import pytest
import refusals
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import Dataset as TorchDataset

from fedpart.data import Dataset
from fedpart.data.given import as_dataset, is_examples
from fedpart.trees import leaves

N = 6
X, MORE = torch.rand(N, 2), torch.rand(N, 3)
Y = torch.arange(N) % 3


class Listed(TorchDataset):
    def __init__(self, examples):
        self.examples = list(examples)

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, place):
        return self.examples[place]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))

    def __len__(self):
        return N


def assert_same(found, inputs, targets=Y):
    assert isinstance(found, Dataset) and len(found) == N
    for part, expected in ((found.inputs, inputs), (found.targets, targets)):
        assert type(part) is type(expected)
        given, wanted = dict(leaves(part)), dict(leaves(expected))
        assert given.keys() == wanted.keys()
        for name in wanted:
            assert given[name].dtype == wanted[name].dtype and torch.equal(given[name], wanted[name])


def pairs():
    return Listed((x, int(y)) for x, y in zip(X, Y, strict=True))


class Numbered:
    def __len__(self):
        return N

    def __getitem__(self, place):
        return X[place], Y[place]


@pytest.mark.parametrize(
    "given",
    [
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        (X.numpy(), Y.numpy().astype(np.int32)),
        Dataset(X, Y),
        TensorDataset(X, Y),
        pairs(),
        Numbered(),
        DataLoader(pairs(), batch_size=4, shuffle=True, drop_last=True),
        DataLoader(pairs(), batch_size=None),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_tensor_of_inputs_and_one_of_targets(given):
    """A loader gives all examples, once, in the order of its data set."""
    assert_same(as_dataset(given), X)


@pytest.mark.parametrize("batch_size", [4, None])
def test_a_sampler_of_a_subset_names_the_examples(batch_size):
    indices = [4, 1, 5]
    loader = DataLoader(pairs(), batch_size=batch_size, sampler=SubsetRandomSampler(indices))
    found = as_dataset(loader)
    assert torch.equal(found.inputs, X[indices]) and torch.equal(found.targets, Y[indices])


def test_no_other_sampler_is_passed_over():
    refusals.check(
        (
            f"{what} decides",
            partial(as_dataset, DataLoader(pairs(), **options)),
            rf"DataLoader's {what.split()[0]} decides .* torch.utils.data.Subset\(data",
        )
        for what, options in [
            ("WeightedRandomSampler", {"sampler": WeightedRandomSampler([1.0] * N, N)}),
            ("RandomSampler with replacement", {"sampler": RandomSampler(range(N), replacement=True)}),
            ("RandomSampler of some", {"sampler": RandomSampler(range(N), num_samples=2)}),
            ("SequentialSampler", {"sampler": SequentialSampler(range(3))}),
            ("list", {"sampler": [0, 2]}),
            ("BatchSampler", {"batch_sampler": BatchSampler(SubsetRandomSampler([0, 2]), 2, False)}),
            ("list without batches", {"batch_size": None, "sampler": [0, 2]}),
        ]
    )


@pytest.mark.parametrize("labels", ["labels", "label", "targets", "target"])
def test_dicts_whose_labels_are_the_targets(labels):
    rows = ({"x": x, "more": more, labels: y} for x, more, y in zip(X, MORE, Y, strict=True))
    assert_same(as_dataset(Listed(rows)), {"x": X, "more": MORE})


def test_several_inputs_arrays_in_any_order_and_one_set_of_examples_beside_several():
    assert_same(as_dataset(Listed(zip(X, MORE, Y, strict=True))), (X, MORE))
    assert_same(as_dataset(((X, MORE.numpy()), Y)), (X, MORE))
    assert_same(as_dataset(({"x": X.numpy(), "more": MORE}, {"y": Y})), {"x": X, "more": MORE}, {"y": Y})
    plain = X.numpy().copy()
    turned = plain[::-1].copy()[::-1]
    for array in (plain.astype(">f4"), turned, np.asfortranarray(plain), np.ma.array(plain)):
        assert torch.equal(as_dataset((array, Y.numpy().astype(">i8"))).inputs, X)
    single = [(X, Y), Dataset(X, Y), pairs(), DataLoader(pairs())]
    assert all(map(is_examples, single))
    assert not is_examples(single)
    assert not is_examples(Numbered()), "it may as well be a list of clients"


def test_a_loader_pads_ragged_text():
    texts = [torch.arange(1, 2 + n) for n in range(N)]
    tags = [text % 2 for text in texts]

    def pad(examples):
        ids = pad_sequence([ids for ids, _ in examples], batch_first=True)
        wanted = pad_sequence([tags for _, tags in examples], batch_first=True, padding_value=-100)
        return {"ids": ids, "mask": ids > 0, "labels": wanted}

    found = as_dataset(DataLoader(Listed(zip(texts, tags, strict=True)), collate_fn=pad, batch_size=2))
    assert found.inputs["ids"].shape == found.targets.shape == (N, N)
    assert torch.equal(found.inputs["mask"].sum(1), torch.arange(1, N + 1))
    assert torch.equal(found.targets == -100, ~found.inputs["mask"])
    assert found.input_shape == {"ids": (N,), "mask": (N,)}
    some = found.subset([4, 1])
    assert torch.equal(some.inputs["ids"], found.inputs["ids"][[4, 1]]) and len(some) == 2


def test_what_is_no_set_of_examples_is_one_sentence():
    ragged, nothing = [(torch.zeros(n), 0) for n in (1, 2)], SubsetRandomSampler([])
    refusals.check(
        (what, partial(as_dataset, examples), says)
        for what, examples, says in [
            ("a stream", Stream(), "Stream has no length and no numbers .*; give it __len__ and __getitem__"),
            ("a loader of a stream", DataLoader(Stream()), "Stream has no length and no numbers of examples"),
            ("no examples", Listed([]), "Listed has no examples; give every client at least one"),
            ("a sampler of none", DataLoader(pairs(), sampler=nothing), "Listed has no examples"),
            ("inputs alone", Listed(X), r"pairs \(inputs, targets\) or dicts with 'labels', but .* a Tensor"),
            ("dicts of inputs", Listed({"x": x} for x in X), "a dict of x without .*; call them 'labels'"),
            ("dicts of labels", Listed({"labels": y} for y in Y), "no tensor; give at least one, a row per"),
            ("ragged rows", Listed(ragged), "do not fit into one tensor .*whose collate_fn pads"),
            ("no inputs", Listed([(None, 0)]), "do not fit into one tensor"),
            ("three tensors", (X, MORE, Y), r"the two tensors \(inputs, targets\), got a tuple of 3"),
            ("inputs of two lengths", ({"x": X, "more": MORE[:2]}, Y), "Dataset parts differ in length"),
            ("no targets", (X, {}), "targets hold no tensor"),
            ("a tensor", X, "got a Tensor"),
            ("text", (np.array(["a"] * N), Y), "array of <U1 holds no numbers .*; make numbers of text"),
            ("objects", (np.array([1, "a", *range(4)], object), Y), "object holds .*; make numbers of text"),
            ("dates", (np.zeros(N, "datetime64[D]"), Y), r"datetime64\[D\] holds .*; count seconds"),
            ("spans", (X, np.zeros(N, "timedelta64[s]")), r"timedelta64\[s\] holds .*; count seconds"),
            ("fields", (np.zeros(N, [("a", "f4"), ("b", "f4")]), Y), r"'b'.* holds .*; stack its fields"),
            ("long", (np.zeros(N, "longdouble"), Y), "holds no numbers .*; make it float64"),
            ("masked", (np.ma.array(np.zeros(N), mask=[1] + [0] * 5), Y), "has masked values; fill them"),
            ("nested", (torch.nested.nested_tensor([*X]), Y), "a nested tensor; pad its rows to one length"),
            ("jagged", (torch.nested.nested_tensor([*X], layout=torch.jagged), Y), "nested tensor; pad its"),
        ]
    )


def test_tables_of_pandas_are_told_to_become_arrays():
    pandas = pytest.importorskip("pandas")
    table, column = pandas.DataFrame(X.numpy()), pandas.Series(Y.numpy())
    pairs = {"both": (table, column), "targets": (X, column), "inputs": [table, Y], "part": ({"a": table}, Y)}
    labelled = partial(as_dataset, {"x": table, "labels": column})
    refusals.check(
        [
            *((what, partial(as_dataset, pair), TypeError, r"to_numpy\(\)") for what, pair in pairs.items()),
            ("a table", partial(as_dataset, table), r"table\[inputs\].to_numpy\(\)"),
            ("a dict", labelled, r"write a pair, \(inputs, targets\)"),
        ]
    )
    assert as_dataset((table.to_numpy(), column.to_numpy())).inputs.equal(X)


def test_a_table_of_pandas_is_asked_for_its_columns():
    class Frame:
        iloc = columns = None

        def __len__(self):
            return 3

        def __getitem__(self, name):
            raise KeyError(name)

    says = r"got a Frame; write \(table\[inputs\].to_numpy\(\), table\[target\].to_numpy\(\)\)"
    refusals.check([("pandas", partial(as_dataset, Frame()), ValueError, says)])
