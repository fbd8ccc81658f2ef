"""Clients whose examples differ in shape are told so where they would be computed together."""

import pytest
import torch
from problems import Lazy, settings
from torch import nn

from fedpart import ClientError, Dataset, Protocol, Task, federate
from fedpart.engines.alike import Alike, NotAlike
from fedpart.engines.executor import Executor

LENGTHS = (3, 3, 5, 4)
SAYS = (
    r"An example's inputs\['tokens'\] have the shape \(5,\) on client 2 and \(3,\) on client 0, .* pad all "
    r"clients to one length, e\.g\. in collate_fn, or use execution: loop"
)


class Words(nn.Module):
    """The mean of words, of any number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, tokens, mask):
        return self.head((self.words(tokens) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def texts(length, rows=6):
    g = torch.Generator().manual_seed(length)
    tokens = torch.randint(20, (rows, length), generator=g)
    return {"tokens": tokens, "mask": torch.ones_like(tokens)}, torch.randint(3, (rows,), generator=g)


def run(data, execution, **options):
    options = {"rounds": 1, "chunks": (0.5, 0.5), "cohort": 4, "execution": execution, **options}
    return federate(Task(Words(), samples=1), data, **options)


@pytest.mark.parametrize("execution", ["fused", "vectorised"])
def test_text_of_several_lengths_is_refused_before_anything_is_computed(execution, monkeypatch):
    data = [texts(length) for length in LENGTHS]
    run(data, "loop")
    monkeypatch.delattr(Executor, "run")
    with pytest.raises(ValueError, match=SAYS):
        run(data, execution)
    with pytest.raises(ClientError, match=SAYS):
        run(Lazy(data.__getitem__, 4), execution)


@pytest.mark.parametrize("execution", ["fused", "vectorised"])
def test_a_client_of_another_shape_that_fails_is_skipped(execution):
    data = [texts(3) for _ in range(4)]
    data[2][0]["mask"] = torch.ones(6, 2, dtype=torch.int64)
    result = run(data, execution, on_client_error="skip")
    assert [skip["client"] for skip in result.metrics[-1].skipped] == [2]


def test_all_parts_count_and_no_rows_do_not():
    one = Dataset(torch.zeros(2, 3), torch.zeros(2, 4))
    protocol = Protocol(Task(Words(), samples=1), settings(5))
    alike = Alike(protocol, [Dataset(torch.zeros(0), torch.zeros(0, dtype=torch.int64)), one])
    alike.check(2, Dataset(torch.zeros(9, 3), torch.zeros(9, 4)))
    with pytest.raises(NotAlike, match=r"An example's targets have the shape \(\) on client 3 and \(4,\)"):
        alike.check(3, Dataset(torch.zeros(2, 3), torch.zeros(2)))
    with pytest.raises(NotAlike, match=r"inputs\['x'\] have the shape \(3,\) on client 4 and None"):
        alike.check(4, Dataset({"x": torch.zeros(2, 3)}, torch.zeros(2, 4)))
