"""A task's psi gradient beside central differences of its loss, at fixed noise."""

import torch

from fedpart import Batch, RandomPartition
from fedpart.randomness.noise import Noise, NoiseKey

STEP, TOLERANCE = 1e-6, 1e-6
NOISE = NoiseKey(0, "psi", (1, 2, 3))


def assert_psi_gradient(task, inputs, zero=0.3, targets=None):
    """To 1e-6 of the largest component, in float64; at most a share ``zero`` of the components is 0.

    The task has 5 classes, in ``precision="fp64"``; there are three examples, whose ``targets`` are classes
    if None.
    """
    partition = RandomPartition(task.parameter_space(3), (0.5, 0.3, 0.2))
    w = partition.to_partition_order(partition.space.initial())
    tensors = partition.materialise(w + 0.1 * torch.randn_like(w), 2)  # chunk 3 scores subnetwork 2
    targets = torch.tensor([0, 4, 2]) if targets is None else targets
    batch = Batch(inputs, targets, torch.tensor([1.0, 2.0, 0.5]))

    def loss(psi):
        return task.loss(tensors, psi, batch, Noise(NOISE, dtype=torch.float64))

    psi = task.psi_space.initial().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(psi), psi)
    numeric = torch.empty_like(gradient)
    with torch.no_grad():
        for i in range(len(psi)):
            step = torch.zeros_like(gradient)
            step[i] = STEP
            numeric[i] = (loss(psi + step) - loss(psi - step)) / (2 * STEP)
    scale = gradient.abs().max().item()
    assert scale > 1e-3 and (gradient == 0).double().mean() < zero
    torch.testing.assert_close(gradient, numeric, rtol=0, atol=TOLERANCE * scale)
