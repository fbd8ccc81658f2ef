"""L_ML: every chunk but the first, scored by a subnetwork that has not seen it."""

from __future__ import annotations

from collections.abc import Sequence

from fedpart.data.dataset import Dataset
from fedpart.training.state import ModelState


def prequential(state: ModelState, chunks: Sequence[Dataset]) -> float:
    """L_ML = sum over k = 2..C of log p(D_k | w_s^(k-1), psi) (Eq. 2), in nats, under training's noise.

    Args:
        state: of as many partitions as there are chunks.
        chunks: D_1..D_C.

    Raises:
        ValueError: there is one network, which has seen everything.
    """
    if not state.partition.chunks == len(chunks) > 1:
        raise ValueError("L_ML needs partitions trained on two chunks or more; there is one network.")
    total = 0.0
    for k, unseen in enumerate(chunks[1:], start=2):
        scores = state.evaluate(unseen, k - 1, dropout=True, purpose=f"L_ML {k}")
        total -= scores["nll"] * len(unseen)
    return total
