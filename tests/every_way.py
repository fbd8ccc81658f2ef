"""What every hyperparameter of the library must do: its gradient, and the same numbers in every execution."""

import torch
from finite_differences import assert_psi_gradient
from parity import SIZES, assert_parity
from problems import CLASSES, after, settings
from torch import nn

from fedpart import Dataset, Federation, LocalSettings, Protocol, Task


def classifier(shape, classes, *first):
    """A small smooth network for inputs of ``shape``, behind the layers ``first``."""
    torch.manual_seed(0)
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(shape.numel(), 8), nn.Tanh(), nn.Linear(8, classes))


def waves(n, shape, seed=0):
    """Smooth inputs ``[n, *shape]`` in float64."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, *[1] * len(shape), generator=g, dtype=torch.float64)
    for axis, length in enumerate(shape):
        view = [-1 if other == axis else 1 for other in range(len(shape))]
        place = torch.linspace(0, 1, length, dtype=torch.float64).view(view)
        speed, phase = torch.rand(2, n, *[1] * len(shape), generator=g, dtype=torch.float64)
        x = x + torch.sin(4 * speed * place + 6 * phase)
    return x


def labels(n, classes, seed):
    return torch.arange(n) % classes


def assert_learned_every_way(
    transform=None,
    layer=None,
    shape=(1, 6, 6),
    inputs=waves,
    network=classifier,
    targets=labels,
    likelihood=lambda classes: "classification",
    average="logits",
):
    """The psi gradient is right, and grouped and fused execution agree with the loop.

    The HyperModule is before the network (``transform``) or in front of its layers (``layer``); ``shape`` is
    of an example. ``inputs(n, shape, seed)``, ``network(shape, classes, *first)``, ``targets(n, classes,
    seed)`` and ``likelihood(classes)`` make the rest.
    """
    shape, first = torch.Size(shape), [] if layer is None else [layer]

    def task(classes):
        options = {"transforms": [] if transform is None else [transform], "likelihood": likelihood(classes)}
        net = network(shape, classes, *first)
        return Task(net, average=average, samples=3, precision="fp64", **options)

    torch.manual_seed(0)
    assert_psi_gradient(task(5), inputs(3, shape, 0), targets=targets(3, 5, 0))
    data = [Dataset(inputs(n, shape, i), targets(n, CLASSES, i)) for i, n in enumerate(SIZES)]
    assert_parity(task(CLASSES), 1e-11, data=data, local=LocalSettings(0.2, batch_size=4))
    found = []
    for execution in ("loop", "fused"):
        protocol = Protocol(task(CLASSES), settings(len(data), local=LocalSettings(0.2)))
        federation, _ = after(2, Federation(protocol), data, execution=execution)
        found.append((federation.w, federation.psi))
    start = protocol.task.psi_space.initial()
    assert not torch.equal(found[0][1], start)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
