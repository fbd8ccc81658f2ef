"""What cannot take the place of a BatchNorm."""

from functools import partial

import refusals
from torch import nn

from fedpart import replace_batchnorm


class NormAndReLU(nn.BatchNorm1d):
    """As some libraries have it: more than its base class does."""

    def forward(self, x):
        return super().forward(x).relu()


def test_layers_that_cannot_be_replaced():
    plain, derived = nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), NormAndReLU(4))
    lazy = [nn.Sequential(nn.LazyBatchNorm1d(affine=affine).eval()) for affine in (True, False)]
    kinds = "replaced by 'group' or by 'frozen', not by"
    rows = [(plain, by, rf"{kinds} {by!r}") for by in ("layer", "", None)]
    for by in ("group", "frozen"):
        rows.append((derived, by, r"NormAndReLU is a BatchNorm .*; call layer.eval\(\) to keep"))
        rows += [(m, by, r"LazyBatchNorm1d is not known yet; .* module\(inputs\[:2\]\)") for m in lazy]
    refusals.check(
        (f"{i}: {module} by {by}", partial(replace_batchnorm, module, by), says)
        for i, (module, by, says) in enumerate(rows)
    )
