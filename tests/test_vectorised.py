"""The loss under torch.func: many clients' gradients at once agree with a loop."""

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from fedpart import AffineAugmentation, Batch, Partition, Task
from fedpart.models import digits_cnn
from fedpart.noise import Noise, NoiseKey


def normed():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("family", ["minmax", "augerino"])
@pytest.mark.parametrize("build", [lambda: digits_cnn(5, (1, 8, 8)), normed], ids=["cnn", "normed"])
def test_gradients_of_stacked_weights(build, family):
    torch.manual_seed(0)
    task = Task(build(), transforms=[AffineAugmentation(family)], samples=2)
    space = task.parameter_space(3)
    jobs = 4
    theta = space.initial() + 0.05 * torch.randn(jobs, space.size)
    psi = task.psi_space.initial()
    x, y = torch.rand(jobs, 5, 1, 8, 8), torch.randint(5, (jobs, 5))
    weights = torch.tensor([[1.0] * 5] * 3 + [[1.0, 1.0, 0.0, 0.0, 0.0]])

    def loss(theta, psi, x, y, weights):
        noise = Noise(NoiseKey(0, "test"))  # the same for all jobs: a key is no tensor
        return task.loss(space.tensors(theta), psi, Batch(x, y, weights), noise)

    both = vmap(grad(loss, argnums=(0, 1)), in_dims=(0, None, 0, 0, 0))(theta, psi, x, y, weights)
    for i in range(jobs):
        alone = grad(loss, argnums=(0, 1))(theta[i], psi, x[i], y[i], weights[i])
        for stacked, single in zip(both, alone, strict=True):
            torch.testing.assert_close(stacked[i], single, rtol=0, atol=1e-5 * single.abs().max().item())


def test_subnetworks_of_stacked_weights():
    task = Task(normed(), samples=1)
    partition = Partition(task.parameter_space(3), (0.5, 0.3, 0.2))
    w = torch.randn(4, partition.space.size)
    stacked = vmap(lambda row: partition.subnetwork(row, 2))(w)
    assert torch.equal(stacked, torch.stack([partition.subnetwork(row, 2) for row in w]))
