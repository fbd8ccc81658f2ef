"""The server's optimisers: torch's own Adam, one independent state per partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AdamSettings:
    """Settings of a server-side Adam (Reddi et al. 2020): torch's, bias-corrected."""

    learning_rate: float = 1e-3
    eps: float = 1e-8
    betas: tuple[float, float] = (0.9, 0.999)


class SlicedAdam:
    """Adam on slices of one flat vector; a slice that is not stepped keeps its moments and step count.

    Args:
        vector: flat ``[N]``, updated in place.
        slices: the parts with a state of their own.
        settings: of Adam.
    """

    def __init__(self, vector: Tensor, slices: Sequence[slice], settings: AdamSettings) -> None:
        self._parts = [vector[s] for s in slices]
        self._optimisers = [
            torch.optim.Adam([part], lr=settings.learning_rate, eps=settings.eps, betas=settings.betas)
            for part in self._parts
        ]

    def step(self, index: int, gradient: Tensor) -> None:
        """One step of slice ``index`` along ``gradient`` (for weights: minus the mean delta)."""
        self._parts[index].grad = gradient.to(self._parts[index].device)
        self._optimisers[index].step()
        self._parts[index].grad = None

    def state_dict(self) -> list[dict[str, Tensor]]:
        """Per slice ``step``, ``exp_avg``, ``exp_avg_sq``, not copied; empty if it was never stepped."""
        return [
            dict(optimiser.state.get(part, {}))
            for part, optimiser in zip(self._parts, self._optimisers, strict=True)
        ]

    def load_state_dict(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Inverse of :meth:`state_dict`."""
        for part, optimiser, state in zip(self._parts, self._optimisers, states, strict=True):
            optimiser.state.clear()
            if state:  # the step count stays on the CPU, where torch's Adam keeps it
                moments = {
                    key: value.to(part.device, copy=True) for key, value in state.items() if key != "step"
                }
                optimiser.state[part] = {"step": state["step"].clone(), **moments}
