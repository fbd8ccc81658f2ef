"""Members whose weights are composed from one bank: SuperWeight Networks' ensembles."""

import torch
from test_deep import made

from fedpart import Dataset, Task, fit
from fedpart.nn.models import wrn

MEMBERS = [{"model": "wrn", "depth": 10, "width": width} for width in (2, 1)]


def test_members_of_two_widths_learn_from_one_budget_with_psi_beside():
    module = made("composed", MEMBERS, {"sharing": {"kind": "bank", "clusters": "layer"}}, dropout=0.1)
    wide, narrow = (sum(p.numel() for p in wrn(3, (1, 8, 8), 10, width).parameters()) for width in (2, 1))
    numbers = sum(p.numel() for p in module.parameters())
    assert wide < numbers < wide + narrow / 10, "norms, classifier and coefficients besides the bank"
    data = Dataset(torch.rand(16, 1, 8, 8), torch.arange(16) % 3)
    task = Task(module, likelihood="ensemble", samples=1)
    result = fit(task, data, iterations=2, batch_size=4)
    assert result.metrics[-1].lml < 0 and len(task.psi_names) == 6
    assert result.state.module().eval()(data.inputs).shape == (16, 2, 3)
