"""Data sets that are computed, and some classes of others."""

import math

import pytest
import torch

from fedpart.data import Dataset, ImageDataset, Splits, input_selection, load_splits, random_subset
from fedpart.data.sets.synthetic import LENGTH, PAD, START, STOP, THE, TOPICS, WORDS, text_of, topics
from fedpart.data.splitting.parts import of_classes

N = 40_000
FIVE_SIGMA = 5 * math.sqrt(4 / N)  # of a difference of two class means


@pytest.fixture(scope="module")
def data():
    return input_selection(N, seed=3)


def phi(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def test_informative_inputs_are_shifted_by_the_label_and_the_noise_is_standard_normal(data):
    assert data.inputs.shape == (N, 30) and data.inputs.dtype == torch.float32
    assert set(data.targets.tolist()) == {0, 1}
    assert abs(data.targets.double().mean() - 0.5) < 5 * 0.5 / math.sqrt(N)
    low, high = (data.inputs[data.targets == y].double() for y in (0, 1))
    difference = high.mean(0) - low.mean(0)
    assert (difference[:15] - 1).abs().max() < FIVE_SIGMA and difference[15:].abs().max() < FIVE_SIGMA
    assert low.mean(0).abs().max() < FIVE_SIGMA
    noise = data.inputs.double()
    noise[:, :15] -= data.targets[:, None]
    covariance = torch.cov(noise.T)
    assert (covariance - torch.eye(30)).abs().max() < 5 * math.sqrt(2 / N)
    assert abs((noise.abs() < 1).double().mean() - (2 * phi(1) - 1)) < 5 * 0.5 / math.sqrt(30 * N)


def test_a_function_of_the_seed_and_fewer_are_the_first_of_more(data):
    assert torch.equal(input_selection(N, seed=3).inputs, data.inputs)
    few = input_selection(100, seed=3)
    assert torch.equal(few.inputs, data.inputs[:100]) and torch.equal(few.targets, data.targets[:100])
    fewer = input_selection(2000, seed=0, informative=2, spurious=0)
    assert fewer.inputs.shape == (2000, 2) and fewer.inputs[fewer.targets == 1].mean() > 0.8
    assert len(input_selection(0, seed=0)) == 0
    other = input_selection(100, seed=4)
    assert not torch.equal(other.inputs, few.inputs) and not torch.equal(other.targets, few.targets)


def test_the_pool():
    splits = load_splits("input_selection")
    assert [len(part) for part in splits.parts().values()] == [20_000, 1_000, 10_000]
    assert splits.num_classes == 2
    everything = torch.cat([part.inputs for part in splits.parts().values()])
    assert len(everything.unique(dim=0)) == len(everything), "no example twice"
    assert torch.equal(load_splits("input_selection").test.inputs, splits.test.inputs)
    for part in splits.parts().values():
        difference = part.inputs[part.targets == 1].mean(0) - part.inputs[part.targets == 0].mean(0)
        assert (difference[:15] > 0.65).all() and (difference[15:] < 0.35).all()
    thousand = random_subset(splits.train, 1000, 0)
    assert not torch.equal(thousand.inputs, random_subset(splits.train, 1000, 1).inputs)
    own = input_selection(1000, seed=0)
    assert not (own.inputs[:, None, 20] == splits.train.inputs[None, :5000, 20]).any()


def topic_of(token: int) -> int:
    return int(WORDS[token].split("-")[1])


def test_the_label_is_the_topic_of_all_clauses_but_one():
    data = topics(50, 0, strays=0.0)
    for tokens, label in zip(data.inputs["input_ids"], data.targets.tolist(), strict=True):
        words = tokens[tokens > THE]
        about = [topic_of(token) for token in words.tolist()]
        clauses = [set(about[at : at + 4]) for at in range(0, len(about), 4)]
        assert sorted(map(len, clauses)) == [1] * len(clauses) and len(clauses) in (3, 4)
        assert [clause.pop() == label for clause in clauses].count(False) == 1
        assert len(set(about)) == 2


def test_clauses_have_the_grammar_and_padding_is_at_the_end():
    data = topics(200, 1)
    tokens, mask = data.inputs["input_ids"], data.inputs["attention_mask"]
    assert tokens.shape == mask.shape == (200, LENGTH)
    assert (mask == (tokens != PAD)).all() and (mask.diff(dim=1) <= 0).all()
    assert set(mask.sum(1).tolist()) == {22, 29}
    assert (tokens[:, 0] == START).all()
    clauses = tokens[:, 1:22].reshape(-1, 7)
    assert (clauses[:, [0, 4]] == THE).all() and (clauses[:, 6] == STOP).all()
    kinds = [[WORDS[t].split("-")[0] for t in clause] for clause in clauses[:, [1, 2, 3, 5]].tolist()]
    assert all(kind == ["adjective", "noun", "verb", "noun"] for kind in kinds)
    assert text_of(tokens[0]).startswith("[CLS] the adjective-")


def test_strays_are_as_many_as_said_and_of_any_topic():
    """At a share s of strays, s / 8 of them come back to the topic of their clause."""
    counted = topics(4000, 2, strays=0.4)
    words = counted.inputs["input_ids"][:, 1:].reshape(-1, 7)[:, [1, 2, 3, 5]]
    words = words[words[:, 0] > THE]
    of = (words - THE - 1) // ((len(WORDS) - THE - 1) // TOPICS)
    same = (of[:, 0] == of[:, 1]).float().mean().item()
    kept = 1 - 0.4 * (1 - 1 / TOPICS)
    assert same == pytest.approx(kept**2 + (1 - kept) ** 2 / (TOPICS - 1), abs=0.02)


def test_a_function_of_the_seed_and_never_of_the_pool():
    assert topics(20, 3).inputs["input_ids"].equal(topics(20, 3).inputs["input_ids"])
    assert not topics(20, 3).inputs["input_ids"].equal(topics(20, 4).inputs["input_ids"])
    pool = load_splits("topics")
    assert [len(part) for part in pool.parts().values()] == [2000, 1000, 2000]
    assert torch.bincount(pool.train.targets, minlength=TOPICS).min() > 0
    texts = {tuple(text) for part in pool.parts().values() for text in part.inputs["input_ids"].tolist()}
    assert len(texts) == 5000
    assert texts.isdisjoint(map(tuple, topics(2000, 0).inputs["input_ids"].tolist()))


def test_these_alone_in_this_order():
    whole, some = load_splits("digits"), load_splits("digits", classes=[7, 2])
    assert some.num_classes == 2
    for part, all_of_it in zip(some.parts().values(), whole.parts().values(), strict=True):
        kept = (all_of_it.targets == 7) | (all_of_it.targets == 2)
        assert part.inputs.equal(all_of_it.inputs[kept])
        assert torch.tensor([7, 2])[part.targets].equal(all_of_it.targets[kept])
    named = load_splits(f"{__name__}:load_named", classes=["a", "b"])
    assert named.classes == ("a", "b"), "a loader that takes classes gets them"


def test_names_and_groups_stay_with_their_examples_and_other_images_are_never_decoded():
    part = Dataset(torch.arange(6.0)[:, None], torch.tensor([0, 1, 2] * 2), torch.arange(6.0))
    some = of_classes(Splits(part, part, part, 3, ("cat", "dog", "owl")), [2, 0])
    assert some.classes == ("owl", "cat")
    assert some.train.groups.tolist() == some.train.inputs[:, 0].tolist() == [0, 2, 3, 5]
    assert some.train.targets.tolist() == [1, 0, 1, 0]

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
