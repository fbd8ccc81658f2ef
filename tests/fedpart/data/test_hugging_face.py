"""Data sets of Hugging Face's package, from files made here: images with writers, and columns."""

from functools import partial

import pytest
import refusals
import torch
from hub import written
from torch import nn

from fedpart import Task, federate, fit
from fedpart.data import load_splits
from fedpart.data.given import as_dataset, is_examples

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def cached_here(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


@pytest.fixture
def letters(tmp_path):
    """Parquet files as FEMNIST's: row i has the shade 10 i, the label 61 - i % 2, the writer i % 3."""
    (tmp_path / "data").mkdir()
    written(24, writers=3).to_parquet(tmp_path / "data" / "train-00000.parquet")
    return str(tmp_path / "data")


WRITERS = {"target": "character", "client": "writer_id", "colour": "grey"}


def test_images_with_their_writers(letters):
    splits = load_splits("hf:parquet", letters, examples=24, **WRITERS)
    assert splits.classes == ("c60", "c61")
    for part, each in ((splits.train, 5), (splits.validation, 1), (splits.test, 2)):
        i = (part.inputs[:, 0, 0, 0] * 25.5).round().long()
        assert part.inputs.shape[1:] == (1, 28, 28)
        assert part.clients.equal(i % 3) and part.targets.equal(1 - i % 2)
        assert torch.bincount(part.clients).tolist() == [each] * 3


def test_columns_of_numbers_are_as_a_table(tmp_path):
    (tmp_path / "data").mkdir()
    for part, start in (("train", 0), ("test", 100)):
        lines = [f"{start + i},{i % 2},{i % 3}" for i in range(12)]
        (tmp_path / "data" / f"{part}.csv").write_text("\n".join(["a,label,client", *lines]))
    options = {"target": "label", "client": "client", "validation": 0.25, "standardise": True}
    found = load_splits("hf:csv", str(tmp_path / "data"), **options)
    wanted = load_splits("table", str(tmp_path / "data"), **options)
    for one, other in zip(found.parts().values(), wanted.parts().values(), strict=True):
        assert one.inputs.equal(other.inputs) and one.targets.equal(other.targets)
        assert one.clients.equal(other.clients)


def test_what_does_not_fit_is_one_sentence(letters, tmp_path):
    wrong, nowhere = {"target": "character", "client": "writer"}, str(tmp_path / "nowhere")
    refusals.check(
        (what, partial(load_splits, *place, **options), error, says)
        for what, place, options, error, says in [
            ("a number", ("hf:parquet", letters), {"examples": 25, **WRITERS}, ValueError, "has 24 .* 25"),
            ("a column", ("hf:parquet", letters), wrong, ValueError, "'writer'.*did you mean 'writer_id'"),
            ("no files", ("hf:parquet",), {}, FileNotFoundError, "a format without files"),
            ("no folder", ("hf:parquet", nowhere), {}, FileNotFoundError, "hf:parquet cannot be loaded"),
            ("no name", ("hf",), {}, ValueError, "needs a name"),
            ("the hub", ("hf:owner/name",), {"download": False}, FileNotFoundError, "nothing is downloaded"),
        ]
    )


N = range(12)
ROWS = {"a": [float(i) for i in N], "b": [[i, -i] for i in N], "label": [i % 3 for i in N]}


class Columns(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, columns):
        return self.layer(torch.cat([columns["a"].unsqueeze(1), columns["b"]], 1))


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_data_sets_as_clients_and_chunks_are_their_columns(form):
    table = datasets.Dataset.from_dict(ROWS).with_format(form)
    a, b, y = (torch.tensor(ROWS[name]) for name in ("a", "b", "label"))
    net = Task(Columns(), samples=1)
    given = federate(net, [table] * 3, rounds=2, validation=table)
    tensors = federate(net, [({"a": a, "b": b.float()}, y)] * 3, rounds=2)
    assert torch.equal(given.state.w, tensors.state.w) and not is_examples([table])
    assert [len(chunk) for chunk in fit(net, [table] * 3, iterations=1).state.chunks] == [12] * 3


def test_other_things_of_the_package():
    table = datasets.Dataset.from_dict(ROWS)
    texts = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    pairs = datasets.Dataset.from_dict({"a": [1.0, 2.0], "b": [0, 1]})
    ragged = datasets.Dataset.from_dict({"a": [[1.0], [1.0, 2.0]], "label": [0, 1]})
    rows = [
        ("all splits", datasets.DatasetDict(train=table), r"got a DatasetDict; name one of its .*'train'"),
        ("a stream", table.to_iterable_dataset(), "IterableDataset has no length"),
        ("texts", texts, TypeError, r"inputs\['text'\]\[0\] must be a torch tensor, got str; make numbers"),
        ("no label", pairs, "a dict of a, b without targets; call them 'labels'"),
        ("ragged", ragged, "do not fit into one tensor .* collate_fn pads them"),
        ("none", table.select([]), "Dataset has no examples"),
    ]
    refusals.check((what, partial(as_dataset, part), *error, says) for what, part, *error, says in rows)
    one = partial(federate, Columns(), table)
    refusals.check([("one client", one, "a list with the examples of each client, got a Dataset")])


COMPOSED, DECOMPOSED = "Z\u00fcrich", "Zu\u0308rich"


def test_columns_are_named_as_in_a_table(tmp_path):
    """As text, which YAML may have made numbers and truths of, and as it looks."""
    (tmp_path / "data").mkdir()
    heads = ["1", "True", DECOMPOSED, " ward ", "b"]
    rows = [[i % 2, i % 3, i // 6, i, i * i] for i in range(12)]
    lines = [",".join(map(str, row)) for row in [heads, *rows]]
    (tmp_path / "data" / "train.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    kept = {"test": 0, "validation": 0}
    for options, left in (
        ({"target": 1, "client": True, "ignore": [COMPOSED]}, ["ward", "b"]),
        ({"target": COMPOSED, "ignore": [1, True, "ward"]}, ["b"]),
        ({"target": DECOMPOSED, "client": 1, "ignore": ["b"]}, ["True", "ward"]),
    ):
        found = load_splits("hf:csv", str(tmp_path / "data"), **options, **kept).train
        wanted = load_splits("table", str(tmp_path / "data"), **options, **kept).train
        assert found.inputs.equal(wanted.inputs) and found.inputs.shape == (12, len(left))
        assert found.targets.equal(wanted.targets)
        assert "client" not in options or found.clients.equal(wanted.clients)
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice" / "train.csv").write_text(f"{COMPOSED},{DECOMPOSED},label\n1,2,0\n2,3,1\n")
    refusals.check(
        (what, partial(load_splits, "hf:csv", str(tmp_path / folder), **options), says)
        for what, folder, options, says in [
            ("a truth", "data", {"target": False}, "has no column 'False': quote a name such as no or on"),
            ("twice", "twice", {}, "hf:csv, train has two columns 'Zürich'; give each"),
            ("text", "data", {"target": 1, "ignore": "b"}, r"ignore is a list of columns, got the text 'b'"),
        ]
    )
