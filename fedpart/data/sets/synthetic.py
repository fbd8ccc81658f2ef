"""Data sets that are computed: input selection (Lyle et al. 2020), and texts of an artificial language."""

import numpy as np
import torch

from fedpart.data.dataset import Dataset, Splits
from fedpart.data.loading import DATASETS
from fedpart.randomness.streams import generator


def input_selection(
    n: int, seed: int, informative: int = 15, spurious: int = 15, stream: str = "data.input_selection"
) -> Dataset:
    """Examples whose label shifts the informative inputs by 1 and leaves the spurious ones alone.

    ``y ~ Bern(1/2)``, ``x = [y + e_1, ..., y + e_15, e_16, ..., e_30]`` with ``e ~ N(0, 1)`` (Section 5). A
    classifier knows no more about y than the sum of the informative inputs says: the best accuracy is
    ``Phi(sqrt(informative) / 2)``, 0.974 for 15. Informative inputs come first; fewer examples are the first
    of more.

    Inputs are ``[n, informative + spurious]`` float32, labels ``[n]``; ``stream`` is of their random numbers.
    """
    if min(n, informative, spurious) < 0 or informative + spurious == 0:
        needs = "Input selection needs numbers of 0 or more and at least one input"
        raise ValueError(f"{needs}, got n={n}, informative={informative}, spurious={spurious}.")
    labels = torch.from_numpy(generator(seed, stream, 0).integers(2, size=n))
    noise = generator(seed, stream, 1).standard_normal((n, informative + spurious), dtype="float32")
    inputs = torch.from_numpy(noise)
    inputs[:, :informative] += labels[:, None]
    return Dataset(inputs, labels)


@DATASETS.register("input_selection")
def load_input_selection(data_dir: str | None = None) -> Splits:
    """Input selection with 15 informative and 15 spurious inputs ``[n, 30]``, see :func:`input_selection`.

    A fixed pool: 20,000 examples for training, of which an experiment takes a random subset by its own data
    seed (Section 5 uses 1,000 and App. I.5 says 3,000), 1,000 for validation and 10,000 for test (App. I.5:
    1,000). They are none that :func:`input_selection` returns by default. ``data_dir`` is not used.
    """
    stream, sizes = "data.input_selection.pool", enumerate((20_000, 1_000, 10_000))
    train, validation, test = (input_selection(n, part, stream=stream) for part, n in sizes)
    return Splits(train, validation, test, num_classes=2)


TOPICS = 8
LENGTH = 29
"""Tokens of a text: one that stands for it, and four clauses of seven."""

_PARTS = {"adjective": 10, "noun": 20, "verb": 10}  # words of each topic
_SPECIAL = ("[PAD]", "[CLS]", "[MASK]", ".", "the")
PAD, START, MASK, STOP, THE = range(len(_SPECIAL))
WORDS = (
    *_SPECIAL,
    *(f"{part}-{t}-{i}" for t in range(TOPICS) for part, n in _PARTS.items() for i in range(n)),
)
"""Every word of the language by its number: five special ones, then those of each topic, as ``noun-3-17``."""

_OF_TOPIC = sum(_PARTS.values())
_SLOTS = ("adjective", "noun", "verb", "noun")  # of a clause
_FIRST = dict(zip(_PARTS, (0, 10, 30), strict=True))


def topics(n: int, seed: int, strays: float = 0.15, stream: str = "data.topics") -> Dataset:
    """Texts of three or four clauses whose label is the topic of all but one.

    A clause is ``the ADJECTIVE NOUN VERB the NOUN .`` with words of its topic, all equally likely: words of
    one topic and part of speech are synonyms. The other clause is a distractor about another topic, and every
    word strays to any topic with probability ``strays``. Clauses come in any order, and every second text is
    padded, as it has one clause less. A model that knows which words go together needs few labels.

    Inputs are ``{"input_ids": [n, 29], "attention_mask": [n, 29]}`` int64, labels ``[n]`` in 0..7; ``stream``
    is of their random numbers."""
    if n < 0 or not 0 <= strays <= 1:
        fault = "Topics need a number of texts of 0 or more and strays between 0 and 1"
        raise ValueError(f"{fault}, got {n} and {strays}.")
    random = generator(seed, stream)
    others = random.permuted(np.tile(np.arange(TOPICS), (n, 1)), axis=1)
    labels, about = others[:, 0], others[:, [0, 0, 1, 0]]  # [n], and [n, 4] the clauses' topics
    used = np.ones((n, 4), dtype=bool)
    used[:, 3] = random.random(n) < 0.5
    order = random.permuted(np.tile(np.arange(4), (n, 1)), axis=1)
    about, used = np.take_along_axis(about, order, 1), np.take_along_axis(used, order, 1)
    stray = random.random((n, 4, 4)) < strays
    topic = np.where(stray, random.integers(TOPICS, size=(n, 4, 4)), about[..., None])
    word = random.random((n, 4, 4)) * np.array([_PARTS[slot] for slot in _SLOTS])
    begins = np.array([_FIRST[slot] for slot in _SLOTS])
    content = len(_SPECIAL) + topic * _OF_TOPIC + begins + word.astype(int)
    clauses = np.full((n, 4, 7), THE)
    clauses[..., [1, 2, 3, 5]] = content
    clauses[..., 6] = STOP
    tokens, mask = np.full((n, LENGTH), PAD), np.zeros((n, LENGTH), dtype=int)
    # what is used comes first, so that padding is at the end
    first = np.argsort(~used, axis=1, kind="stable")
    clauses[~used] = PAD
    tokens[:, 0] = START
    tokens[:, 1:] = np.take_along_axis(clauses, first[..., None], 1).reshape(n, 28)
    mask[tokens != PAD] = 1
    inputs = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(mask)}
    return Dataset(inputs, torch.from_numpy(labels.copy()))


@DATASETS.register("topics")
def load_topics(data_dir: str | None = None) -> Splits:
    """A fixed pool of :func:`topics`: 2,000 texts for training, 1,000 for validation, 2,000 for test.

    They are none that :func:`topics` returns by default, which may serve to pretrain. ``data_dir`` is not
    used."""
    stream, sizes = "data.topics.pool", enumerate((2_000, 1_000, 2_000))
    train, validation, test = (topics(n, part, stream=stream) for part, n in sizes)
    return Splits(train, validation, test, num_classes=TOPICS)


def text_of(tokens: torch.Tensor) -> str:
    """The words of one text ``[29]``, without padding."""
    return " ".join(WORDS[token] for token in tokens.tolist() if token != PAD)
