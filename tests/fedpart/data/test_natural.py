"""Data sets that know their clients, and tables."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from leaf import write_leaf
from PIL import Image

from fedpart.data import Dataset, by_client, divide_clients, load_splits
from fedpart.data.cells import numbered
from fedpart.data.splitting.recipes import SPLITS


def write_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def examples(sizes):
    """Client i has ``sizes[i]`` examples, and every example is its own number."""
    clients = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    clients = clients[torch.randperm(len(clients), generator=torch.Generator().manual_seed(1))]
    numbers = torch.arange(len(clients))
    return Dataset(numbers[:, None].float(), numbers % 2, clients=clients)


@pytest.mark.parametrize("how", ["random", "last"])
def test_of_each_client_its_share_is_held_out_and_one_example_stays(how):
    clients = examples([10, 5, 1, 40]).clients
    kept, out = divide_clients(clients, 0.2, how)
    assert torch.bincount(clients[out], minlength=4).tolist() == [2, 1, 0, 8]
    assert sorted(torch.cat([kept, out]).tolist()) == list(range(56))
    assert torch.bincount(clients[divide_clients(clients, 0.99, how).kept]).tolist() == [1, 1, 1, 1]
    if how == "last":
        ends = [(kept[clients[kept] == c].max(), out[clients[out] == c].min()) for c in (0, 1, 3)]
        assert all(last < first for last, first in ends), "in the file's order"


def test_whole_clients_are_held_out_and_everybody_keeps_what_is_theirs():
    clients = examples([3] * 10).clients
    kept, out = divide_clients(clients, 0.3, "clients")
    assert len(set(clients[out].tolist())) == 3
    assert not set(clients[out].tolist()) & set(clients[kept].tolist())
    other = divide_clients(clients, 0.3, "clients", 1).held_out
    assert not out.equal(other)
    whole = examples([4, 2, 6])
    shards = by_client(whole)
    assert [len(shard) for shard in shards] == [4, 2, 6]
    for client, shard in enumerate(shards):
        assert shard.inputs[:, 0].long().equal(torch.nonzero(whole.clients == client)[:, 0])
    assert whole.subset([3, 1]).clients.equal(whole.clients[[3, 1]])
    assert whole.relabelled(1 - whole.targets).clients is whole.clients
    assert whole.to(dtype=torch.float64).clients.equal(whole.clients)
    found = SPLITS["natural"](whole.clients, 3, 0.1, 0)
    assert all(whole.subset(own).inputs.equal(shard.inputs) for own, shard in zip(found, shards, strict=True))


@pytest.fixture
def folders(tmp_path):
    """Client a has cats and dogs, client b dogs alone; an image's shade is 10 times its number."""
    shades = {"a/cat": range(1, 6), "a/dog": range(6, 11), "b/dog": range(11, 21)}
    for folder, numbers in shades.items():
        for number in numbers:
            write_image(tmp_path / f"{folder}/{number:02}.png", np.full((4, 4), 10 * number, np.uint8))
    return tmp_path


def test_a_folder_per_client(folders):
    splits = load_splits("image_folder", str(folders), clients=True, colour="grey", validation=0)
    assert splits.classes == ("cat", "dog")
    for part, counts in ((splits.train, [8, 8]), (splits.test, [2, 2])):
        assert torch.bincount(part.clients).tolist() == counts
        shade = (part.inputs[:, 0, 0, 0] * 25.5).round()
        assert part.clients.equal((shade > 10).long()) and part.targets.equal((shade > 5).long())


def test_clients_with_folders_for_the_parts_have_one_number_in_all(folders, tmp_path):
    train, test = tmp_path / "parts" / "train", tmp_path / "parts" / "test"
    train.mkdir(parents=True)
    for folder in ("a", "b"):
        (folders / folder).rename(train / folder)
    write_image(test / "b/dog/1.png", np.zeros((4, 4), np.uint8))
    splits = load_splits("image_folder", str(tmp_path / "parts"), clients=True, validation=0)
    assert splits.test.clients.tolist() == [1] and len(splits.train) == 20


USERS = {"f2": ([[0.1, 0.2, 0.3, 0.4]] * 3, [4, 5, 4]), "f1": ([[0.5, 0.6, 0.7, 0.8]] * 2, [5, 9])}


def test_leafs_users_are_clients(tmp_path):
    write_leaf(tmp_path, USERS)
    write_leaf(tmp_path, {"f9": ([[0.0] * 4], [9]), "f2": ([[1.0] * 4], [4])}, "test")
    splits = load_splits("leaf", str(tmp_path), shape=[1, 2, 2], validation=0)
    assert splits.train.clients.tolist() == [1, 1, 1, 0, 0] and splits.test.clients.tolist() == [2, 1]
    assert splits.train.inputs.shape == (5, 1, 2, 2)
    assert splits.train.inputs[3].flatten().tolist() == pytest.approx([0.5, 0.6, 0.7, 0.8])
    assert splits.classes == ("4", "5", "9") and splits.train.targets.tolist() == [0, 1, 0, 1, 2]
    real = load_splits("leaf", str(tmp_path), real_targets=True, validation=0)
    assert real.train.targets.tolist() == [4.0, 5.0, 4.0, 5.0, 9.0] and real.num_classes == 1


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
    nobody = load(file)
    assert nobody.train.clients is None and nobody.train.input_shape == (3,), "it is an input"
    assert [len(part) for part in nobody.parts().values()] == [29, 3, 8]
    real = load(file, target="height", ignore=["id", "ill"], real_targets=True)
    assert real.num_classes == 1 and real.train.targets.dtype == torch.float32
    torch.testing.assert_close(real.train.targets, 1.5 + row(real.train.inputs) / 100)


def test_standardised_by_training_rows_alone(tmp_path):
    for part, ages in (("train", [1, 3, 5]), ("test", [7, 9])):
        lines = [f"{age},4,{age % 3 % 2}\n" for age in ages]
        (tmp_path / f"{part}.csv").write_text("".join(["age,same,ill\n", *lines]))
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


def test_names_of_clients_are_kept_by_every_source_that_has_some(tmp_path):
    (tmp_path / "t.csv").write_text("a,y,who\n" + "1,0,zoe\n2,1,zoe\n3,0,abe\n4,1,abe\n" * 5)
    table = load_splits("table", tmp_path / "t.csv", target="y", client="who")
    assert table.client_names == ("abe", "zoe")
    assert load_splits("table", tmp_path / "t.csv", target="y", ignore=["who"]).client_names == ()
    for client in ("zoe", "abe"):
        for label in "xy":
            for number in range(4):
                write_image(tmp_path / "i" / client / label / f"{number}.png", np.zeros((4, 4, 3), np.uint8))
    images = load_splits("image_folder", tmp_path / "i", clients=True)
    assert images.client_names == ("abe", "zoe")
    assert images.mapped(lambda part: part).client_names == ("abe", "zoe")
    write_leaf(tmp_path / "l", {"zoe": ([[1.0]] * 8, [0, 1] * 4), "abe": ([[2.0]] * 8, [0, 1] * 4)})
    assert load_splits("leaf", tmp_path / "l").client_names == ("abe", "zoe")
    with pytest.raises(ValueError, match="There are 1 names for 2 clients; give one for each"):
        replace(table, client_names=("abe",))
