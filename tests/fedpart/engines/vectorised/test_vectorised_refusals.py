"""What cannot be computed together."""

from functools import partial

import refusals
from parity import SIZES, cohort, started
from problems import CLASSES, SIZE, chain_net, shards
from torch import nn

from fedpart import Task


class Branching(nn.Module):
    """What it does depends on the data."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(SIZE**2, CLASSES)

    def forward(self, x):
        return self.linear(x.flatten(1)) if x.sum() > 0 else self.linear(-x.flatten(1))


def test_what_cannot_be_computed_together():
    _, vectorised, protocol = started(Task(Branching(), samples=1))
    branching = partial(cohort, vectorised, protocol, shards(SIZES))
    last = partial(started, Task(chain_net(), channels_last=True))
    no_rows = partial(started, Task(chain_net()), rows=0)
    loop = r"cannot be computed together \(.*; use execution: loop"
    refusals.check(
        [
            ("a network that branches on data", branching, ValueError, loop),
            ("images of channels last", last, ValueError, "channels-last"),
            ("no rows", no_rows, ValueError, "rows .* at least 1, got 0"),
        ]
    )
