"""Tables: columns of CSV and Parquet files as examples, and one sentence for what does not fit."""

import pytest
import torch

from fedpart.data import load_splits
from fedpart.data.cells import numbered

TEXT = "\ufeffage,height,ill,ward,id\n" + "".join(
    f"{20 + i},{1.5 + i / 100},{'yes' if i % 3 else 'no'},{10 if i % 2 else 9},x{i}\n" for i in range(40)
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(TEXT, encoding="utf-8")
    return path


def load(path, **options):
    return load_splits("table", str(path), **{"target": "ill", "ignore": ["id"], **options})


def row(inputs):
    return (inputs[:, 0] - 20).round().long()


def test_columns_become_inputs_targets_and_clients(file):
    splits = load(file, client="ward")
    assert splits.classes == ("no", "yes") and splits.train.input_shape == (2,)
    counts = []
    for part in splits.parts().values():
        i = row(part.inputs)
        torch.testing.assert_close(part.inputs[:, 1], 1.5 + i / 100)
        assert part.targets.equal((i % 3 > 0).long())
        assert part.clients.equal(i % 2), "9 comes before 10: whole numbers go by value"
        counts.append(torch.bincount(part.clients).tolist())
    assert counts == [[14, 14], [2, 2], [4, 4]]
    rows = torch.cat([row(part.inputs) for part in splits.parts().values()])
    assert sorted(rows.tolist()) == list(range(40))


def test_without_a_client_column_nobody_knows_and_it_is_an_input(file):
    splits = load(file)
    assert splits.train.clients is None and splits.train.input_shape == (3,)
    assert [len(part) for part in splits.parts().values()] == [29, 3, 8]


def test_numbers_to_predict(file):
    splits = load(file, target="height", ignore=["id", "ill"], real_targets=True)
    assert splits.num_classes == 1 and splits.train.targets.dtype == torch.float32
    torch.testing.assert_close(splits.train.targets, 1.5 + row(splits.train.inputs) / 100)


def test_standardised_by_training_rows_alone(tmp_path):
    for part, ages in (("train", [1, 3, 5]), ("test", [7, 9])):
        (tmp_path / f"{part}.csv").write_text(
            "age,same,ill\n" + "".join(f"{age},4,{age % 3 % 2}\n" for age in ages)
        )
    splits = load(tmp_path, ignore=[], standardise=True, validation=0)
    deviation = (8 / 3) ** 0.5
    torch.testing.assert_close(splits.train.inputs[:, 0], torch.tensor([-2.0, 0.0, 2.0]) / deviation)
    torch.testing.assert_close(splits.test.inputs[:, 0], torch.tensor([4.0, 6.0]) / deviation)
    assert not splits.test.inputs[:, 1].any()


def test_parquet_is_as_csv(file, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    from pyarrow import csv

    table = csv.read_csv(file)
    parquet.write_table(table, tmp_path / "people.parquet")
    found, wanted = (load(tmp_path / name, client="ward") for name in ("people.parquet", "people.csv"))
    assert found.classes == wanted.classes
    for one, other in zip(found.parts().values(), wanted.parts().values(), strict=True):
        assert one.inputs.equal(other.inputs) and one.targets.equal(other.targets)
        assert one.clients.equal(other.clients)


def test_equal_numbers_in_other_digits_are_one_class_and_ties_have_one_order() -> None:
    """A class is 1 in one file and 1.0 in the next; 7 and 007 are two, in every process in the same order."""
    values = {"train.csv": ["1", "10.0", "2", "007", "7"], "test.csv": ["1.0", "2.0", "10", "7", "007"]}
    numbers, names = numbered(values, "label")
    assert names == ("1", "2", "007", "7", "10")
    assert numbers["train.csv"].tolist() == [0, 4, 1, 2, 3]
    assert numbers["test.csv"].tolist() == [0, 1, 4, 3, 2]
