"""Which passes through a network draw, and that these draw reproducibly."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedpart.checks import NetworkError
from fedpart.randomness.redirect import TorchDraws
from fedpart.randomness.watching import states, watched
from fedpart.trees import same_numbers

Found = TypeVar("Found")
REPEATS = 8  # passes that must agree, where a generator may have been moved by another thread
WAITS = 10  # looks at whether it moves while this thread does nothing
Drawing = Callable[[], AbstractContextManager[object]]
Kind = tuple[bool | str, ...]
"""Of passes: whether stochastic layers are on, whether gradients are taken, what follows the network, and
whether draws come from torch's own generator; and of which tensors gradients are taken, if that matters."""


class Redirection:
    """Has a network draw reproducibly where it calls torch's random functions; what it does not is refused.

    The first pass, of training and of inference, looks whether anything is drawn at all. If not, those that
    follow cost some ten microseconds more: they look whether torch's generators have moved."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._draws: dict[Kind, bool] = {}

    def __call__(
        self, kind: Kind, drawing: Drawing | None, compute: Callable[[], Found], like: Tensor,
        due: bool = False,
    ) -> Found:  # fmt: skip
        """What a pass returns; the first one of its kind is watched, and those that are ``due``.

        ``drawing`` is :meth:`.Noise.active`, with which a pass that is computed again draws from the
        beginning; None: the pass draws from torch's own generator, and nobody looks. ``like`` is a tensor
        where the pass computes. A ValueError says what cannot be reproduced, see :func:`.watched`.
        """
        if drawing is None:
            return compute()
        draws = self._draws.get(kind)
        if due or draws is None:
            mode = TorchDraws()
            with drawing(), watched(self._model, partial(self._alike, drawing, compute)), mode:
                outputs = compute()
            self._draws[kind] = mode.drawn or bool(draws)
            return outputs
        if draws:
            with drawing(), TorchDraws():
                return compute()
        generators = [torch.default_generator]  # those from which torch's functions draw
        if like.device.type == "cuda":  # whose state, a seed and a count, is held by the host
            number = torch.cuda.current_device() if like.device.index is None else like.device.index
            generators.append(torch.cuda.default_generators[number])
        before = [generator.get_state() for generator in generators]
        with drawing():
            outputs = compute()
        if not _moved(generators, before):
            return outputs
        return self._again(kind, drawing, compute, generators, before)

    def _again(
        self, kind: Kind, drawing: Drawing, compute: Callable[[], Found], generators: list[torch.Generator],
        before: list[Tensor],
    ) -> Found:  # fmt: skip
        """The pass computed as one that draws, as if the first try had not been."""
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
        with drawing(), TorchDraws() as mode:
            outputs = compute()
        if _moved(generators, before) and (
            threading.active_count() == 1 or not self._alike(drawing, compute)
        ):
            raise NetworkError(
                "The network draws from torch's global generator where its draws cannot be redirected, so "
                "that equal seeds would give different weights; draw with torch.rand or fedpart.uniform in "
                "its forward()."
            )
        self._draws[kind] = mode.drawn  # not, if somebody else has moved the generator meanwhile
        return outputs

    def _alike(self, drawing: Drawing, compute: Callable[[], object]) -> bool:
        """Whether passes return the same, and it is another thread that moves the process's generators."""
        passes, quiet = [], False
        for _ in range(REPEATS):
            before = states()
            with drawing(), TorchDraws():
                passes.append(compute())
            quiet |= states() == before
        return all(same_numbers(passes[0], outputs) for outputs in passes) and (quiet or _moves_by_itself())


def _moves_by_itself() -> bool:
    before = states()
    for _ in range(WAITS):
        time.sleep(0.005)
        if states() != before:
            return True
    return False


def _moved(generators: list[torch.Generator], before: list[Tensor]) -> bool:
    return any(
        generator.get_state().numpy().tobytes() != state.numpy().tobytes()
        for generator, state in zip(generators, before, strict=True)
    )
