"""GroupNorm behind layers without a gradient, in channels-last memory format; torch crashes there."""

import subprocess
import sys

import pytest
import torch
from places import importing
from torch import nn

from fedpart import Batch, Task

NETWORK = """
import torch
from torch import nn

def network(frozen):
    torch.manual_seed(0)
    body, head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)
    body.requires_grad_(not frozen)
    return nn.Sequential(body, nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
"""
STEP = """
from fedpart import Batch, Task

task = Task(network(True), samples=1, channels_last=True, precision={precision!r})
task = task.replace()  # which does not guard it twice
w = {{name: p.detach().requires_grad_() for name, p in task.module.named_parameters() if p.requires_grad}}
batch = Batch(torch.rand(6, 3, 8, 8), torch.arange(6) % 5)
task.loss(w, task.psi_space.initial(), batch, None).backward()
assert w["1.weight"].grad.any()
assert len(task.module[1]._forward_pre_hooks) == 1
"""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_its_own_numbers_are_trained_behind_frozen_ones(precision):
    """In a process of its own, which a segmentation fault would end."""
    code = NETWORK + STEP.format(precision=precision)
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": importing(__file__)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_its_gradient_is_that_of_the_other_memory_format():
    found = []
    for channels_last in (False, True):
        scope = {}
        exec(NETWORK, scope)
        task = Task(scope["network"](True), samples=1, channels_last=channels_last, precision="fp64")
        w = {
            name: p.detach().requires_grad_() for name, p in task.module.named_parameters() if p.requires_grad
        }
        torch.manual_seed(1)
        batch = Batch(torch.rand(6, 3, 8, 8, dtype=torch.float64), torch.arange(6) % 5)
        found.append(torch.autograd.grad(task.loss(w, task.psi_space.initial(), batch, None), [*w.values()]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert isinstance(task.module[1], nn.GroupNorm)
