"""The artificial language: labels, padding, and what a text consists of."""

import pytest
import torch

from fedpart.data import load_splits
from fedpart.data.sets.topics import LENGTH, PAD, START, STOP, THE, TOPICS, WORDS, text_of, topics


def topic_of(token: int) -> int:
    return int(WORDS[token].split("-")[1])


def test_the_label_is_the_topic_of_all_clauses_but_one():
    """Without strays every clause is of one topic."""
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
