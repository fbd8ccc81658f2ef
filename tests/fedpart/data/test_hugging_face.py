"""Data sets of Hugging Face's package, from files made here: images with writers, and columns."""

import pytest
import torch
from hub import written

from fedpart.data import load_splits

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
    splits = load_splits("hf:parquet", letters, **WRITERS)
    assert splits.classes == ("c60", "c61")
    for part, each in ((splits.train, 5), (splits.validation, 1), (splits.test, 2)):
        i = (part.inputs[:, 0, 0, 0] * 25.5).round().long()
        assert part.inputs.shape[1:] == (1, 28, 28)
        assert part.clients.equal(i % 3) and part.targets.equal(1 - i % 2)
        assert torch.bincount(part.clients).tolist() == [each] * 3


def test_as_many_examples_as_are_expected(letters):
    assert load_splits("hf:parquet", letters, examples=24, **WRITERS).num_classes == 2
    with pytest.raises(ValueError, match="has 24 examples, but 25 are expected"):
        load_splits("hf:parquet", letters, examples=25, **WRITERS)


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
    with pytest.raises(ValueError, match=r"no column 'writer'.*did you mean 'writer_id'"):
        load_splits("hf:parquet", letters, target="character", client="writer")
    with pytest.raises(FileNotFoundError, match="a format without files"):
        load_splits("hf:parquet")
    with pytest.raises(FileNotFoundError, match="hf:parquet cannot be loaded"):
        load_splits("hf:parquet", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="needs a name"):
        load_splits("hf")
    with pytest.raises(FileNotFoundError, match="nothing is downloaded here"):
        load_splits("hf:owner/name", download=False)
