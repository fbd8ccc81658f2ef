"""Data sets that know their clients: what is held out, who holds what, folders of clients, LEAF's files."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from fedpart.data import Dataset, by_client, divide_clients, load_splits
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
        assert all(kept[clients[kept] == c].max() < out[clients[out] == c].min() for c in (0, 1, 3)), (
            "in the file's order"
        )


def test_whole_clients_are_held_out():
    clients = examples([3] * 10).clients
    kept, out = divide_clients(clients, 0.3, "clients")
    assert len(set(clients[out].tolist())) == 3
    assert not set(clients[out].tolist()) & set(clients[kept].tolist())
    other = divide_clients(clients, 0.3, "clients", 1).held_out
    assert not out.equal(other)


def test_everybody_keeps_what_is_theirs():
    whole = examples([4, 2, 6])
    shards = by_client(whole)
    assert [len(shard) for shard in shards] == [4, 2, 6]
    for client, shard in enumerate(shards):
        assert shard.inputs[:, 0].long().equal(torch.nonzero(whole.clients == client)[:, 0])
    found = SPLITS["natural"](whole.clients, 3, 0.1, 0)
    assert all(whole.subset(own).inputs.equal(shard.inputs) for own, shard in zip(found, shards, strict=True))


def test_clients_go_along_with_their_examples():
    whole = examples([4, 2, 6])
    assert whole.subset([3, 1]).clients.equal(whole.clients[[3, 1]])
    assert whole.relabelled(1 - whole.targets).clients is whole.clients
    assert whole.to(dtype=torch.float64).clients.equal(whole.clients)


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


def write_leaf(folder, users):
    folder.mkdir(parents=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    text = {"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data}
    (folder / "all_data_0.json").write_text(json.dumps(text))


USERS = {"f2": ([[0.1, 0.2, 0.3, 0.4]] * 3, [4, 5, 4]), "f1": ([[0.5, 0.6, 0.7, 0.8]] * 2, [5, 9])}


def test_leafs_users_are_clients(tmp_path):
    write_leaf(tmp_path / "train", USERS)
    write_leaf(tmp_path / "test", {"f9": ([[0.0] * 4], [9]), "f2": ([[1.0] * 4], [4])})
    splits = load_splits("leaf", str(tmp_path), shape=[1, 2, 2], validation=0)
    assert splits.train.clients.tolist() == [1, 1, 1, 0, 0] and splits.test.clients.tolist() == [2, 1]
    assert splits.train.inputs.shape == (5, 1, 2, 2)
    assert splits.train.inputs[3].flatten().tolist() == pytest.approx([0.5, 0.6, 0.7, 0.8])
    assert splits.classes == ("4", "5", "9") and splits.train.targets.tolist() == [0, 1, 0, 1, 2]
    real = load_splits("leaf", str(tmp_path), real_targets=True, validation=0)
    assert real.train.targets.tolist() == [4.0, 5.0, 4.0, 5.0, 9.0] and real.num_classes == 1


@pytest.mark.parametrize("text", ["[" * 100_000, '{"users": [' + "9" * 5000 + "]}", '{"users": ["a"]}'])
def test_what_is_none_of_leafs_files_is_a_sentence(tmp_path, text):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "all.json").write_text(text)
    with pytest.raises(ValueError, match=r"all\.json is none of LEAF's files \(.*\)") as refusal:
        load_splits("leaf", str(tmp_path))
    assert "\n" not in str(refusal.value)
