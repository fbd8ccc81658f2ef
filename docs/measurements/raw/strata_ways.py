"""A run with antithetic or Sobol samples where ``stratified: true`` has Latin hypercubes.

python docs/measurements/raw/strata_ways.py antithetic run CONFIG --set stratified=true ... (as ``fedpart``)
"""

import sys

import torch
from torch import Tensor

from fedpart.randomness import noise
from simulations.cli.main import main


def antithetic(draw: Tensor, _order: Tensor, samples: int, axis: int = 0) -> Tensor:
    """Every second of an example's rows mirrors the one before it; in an odd number the last stands alone."""
    shape = (*draw.shape[:axis], -1, samples, *draw.shape[axis + 1 :])
    rows = draw.reshape(shape).unbind(axis + 1)
    mirrored = [1 - rows[row - 1] if row % 2 else rows[row] for row in range(samples)]
    return torch.stack(mirrored, axis + 1).reshape(draw.shape)


def sobol(draw: Tensor, order: Tensor, samples: int, axis: int = 0) -> Tensor:
    """The first points of a Sobol sequence over a row's numbers, shifted by uniform ones (Cranley and
    Patterson 1976) and in a random order for each example, so that those of two draws are independent."""
    if axis:
        raise ValueError("Sobol samples are for clients one by one or fused; leave out execution: grouped.")
    shifts = draw.reshape(-1, samples, draw[0].numel())
    points = torch.quasirandom.SobolEngine(shifts.shape[-1]).draw(samples)
    turn = order.reshape(shifts.shape)[..., 0].argsort(dim=1)
    spread = (points[turn] + shifts[:, :1]) % 1
    tiny = torch.finfo(torch.float32).eps / 2
    return spread.clamp(tiny, 1 - tiny).reshape(draw.shape).to(draw.dtype)


if __name__ == "__main__":
    way, *arguments = sys.argv[1:]
    noise.stratified = {"antithetic": antithetic, "sobol": sobol}[way]
    sys.argv = ["fedpart", *arguments]
    main()
