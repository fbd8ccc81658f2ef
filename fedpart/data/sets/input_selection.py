"""Input selection (Lyle et al. 2020): a synthetic task with informative and spurious inputs."""

import torch

from fedpart.data.dataset import Dataset, Splits
from fedpart.data.loading import DATASETS
from fedpart.randomness.streams import generator

TRAINING, VALIDATION, TEST = 20_000, 1_000, 10_000


def input_selection(n: int, seed: int, informative: int = 15, spurious: int = 15) -> Dataset:
    """Examples whose label shifts the informative inputs by 1 and leaves the spurious ones alone.

    ``y ~ Bern(1/2)``, ``x = [y + e_1, ..., y + e_15, e_16, ..., e_30]`` with ``e ~ N(0, 1)`` (Section 5). A
    classifier knows no more about y than the sum of the informative inputs says: the best accuracy is
    ``Phi(sqrt(informative) / 2)``, 0.974 for 15. Informative inputs come first; fewer examples are the first
    of more.

    Returns:
        Inputs ``[n, informative + spurious]`` float32, labels ``[n]`` 0 or 1.
    """
    return _sample(n, seed, "data.input_selection", informative, spurious)


@DATASETS.register("input_selection")
def load_input_selection(data_dir: str | None = None) -> Splits:
    """Input selection with 15 informative and 15 spurious inputs ``[n, 30]``, see :func:`input_selection`.

    A fixed pool: 20,000 examples for training, of which an experiment takes a random subset by its own data
    seed (Section 5 uses 1,000 and App. I.5 says 3,000), 1,000 for validation and 10,000 for test (App. I.5:
    1,000). :func:`input_selection` never returns examples of this pool. ``data_dir`` is not used.
    """
    train, validation, test = (
        _sample(n, part, "data.input_selection.pool", 15, 15)
        for part, n in enumerate((TRAINING, VALIDATION, TEST))
    )
    return Splits(train, validation, test, num_classes=2)


def _sample(n: int, seed: int, purpose: str, informative: int, spurious: int) -> Dataset:
    if min(n, informative, spurious) < 0 or informative + spurious == 0:
        raise ValueError(
            f"Input selection needs numbers of 0 or more and at least one input, got n={n}, "
            f"informative={informative}, spurious={spurious}."
        )
    labels = torch.from_numpy(generator(seed, purpose, 0).integers(2, size=n))
    inputs = torch.from_numpy(
        generator(seed, purpose, 1).standard_normal((n, informative + spurious), dtype="float32")
    )
    inputs[:, :informative] += labels[:, None]
    return Dataset(inputs, labels)
