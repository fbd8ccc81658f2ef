"""Some classes of a data set, numbered anew."""

import pytest
import torch

from fedpart.data import Dataset, ImageDataset, Splits, load_splits
from fedpart.data.splitting.parts import of_classes


def test_these_alone_in_this_order():
    whole, some = load_splits("digits"), load_splits("digits", classes=[7, 2])
    assert some.num_classes == 2
    for part, all_of_it in zip(some.parts().values(), whole.parts().values(), strict=True):
        kept = (all_of_it.targets == 7) | (all_of_it.targets == 2)
        assert part.inputs.equal(all_of_it.inputs[kept])
        assert torch.tensor([7, 2])[part.targets].equal(all_of_it.targets[kept])


def test_names_and_groups_stay_with_their_examples():
    part = Dataset(torch.arange(6.0)[:, None], torch.tensor([0, 1, 2] * 2), torch.arange(6.0))
    some = of_classes(Splits(part, part, part, 3, ("cat", "dog", "owl")), [2, 0])
    assert some.classes == ("owl", "cat")
    assert some.train.groups.tolist() == some.train.inputs[:, 0].tolist() == [0, 2, 3, 5]
    assert some.train.targets.tolist() == [1, 0, 1, 0]


def test_images_of_other_classes_are_never_decoded():
    def read(place: int):
        raise AssertionError(f"image {place} was decoded")

    part = ImageDataset(read, torch.tensor([0, 1, 2, 1]))
    some = of_classes(Splits(part, part, part, 3), [1, 2]).train
    assert isinstance(some, ImageDataset) and some.targets.tolist() == [0, 1, 0]
    with pytest.raises(AssertionError, match="image 1 was"):
        _ = some.inputs


def load_named(data_dir=None, *, classes=()):
    part = Dataset(torch.zeros(2, 2), torch.tensor([0, 1]))
    return Splits(part, part, part, 2, tuple(classes))


def test_a_loader_that_takes_classes_gets_them():
    assert load_splits(f"{__name__}:load_named", classes=["a", "b"]).classes == ("a", "b")
