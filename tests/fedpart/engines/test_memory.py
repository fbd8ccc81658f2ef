"""A device without enough memory: groups are halved, and nobody is blamed."""

import re
from functools import partialmethod

import pytest
import torch
from problems import after, assert_near, chain_net, settings, shards
from torch import OutOfMemoryError

from fedpart import ClientError, Dataset, Federation, Protocol, Task
from fedpart.engines.executor import OnDevice
from fedpart.engines.fused import PooledSum
from fedpart.engines.stack import Stack

SIZES = (7, 12, 3, 9)
FULL = {
    "CUDA out of memory": OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has ..."),
    "MPS backend out of memory (MPS allocated: 8.1 GB)": RuntimeError(
        "MPS backend out of memory (MPS allocated: 8.1 GB). Tried to allocate 4.0 GB on private pool."
    ),
}


@pytest.fixture(params=FULL.values(), ids=["CUDA", "MPS"])
def full(request):
    """What torch raises where a device has no memory: of one class on a GPU, of another elsewhere."""
    return request.param


def run(execution, **changes):
    protocol = Protocol(Task(chain_net(), samples=1), settings(len(SIZES), cohort=4, **changes))
    return after(2, Federation(protocol), shards(SIZES), execution=execution)[0]


def test_grouped_clients_are_computed_in_smaller_groups(monkeypatch, full):
    expected, seen, whole = run("loop"), [], Stack.run

    def small(self, round, jobs, inputs, targets):
        if len(inputs) > 12:
            raise full
        seen.append(len(inputs))
        return whole(self, round, jobs, inputs, targets)

    monkeypatch.setattr(Stack, "run", small)
    assert_near(run("grouped"), expected, rtol=1e-4, atol=1e-6)
    assert len(set(seen)) > 1


def test_fused_passes_become_smaller(monkeypatch, full):
    expected, seen, whole = run("loop"), [], PooledSum.flush

    def small(self):
        rows = sum(batch.examples for batch, *_ in self._waiting)
        if rows > 12:
            raise full
        seen.append(rows)
        return whole(self)

    monkeypatch.setattr(PooledSum, "flush", small)
    assert_near(run("fused"), expected, rtol=1e-4, atol=1e-6)
    assert max(seen) > 1


@pytest.mark.parametrize("execution", ["loop", "grouped", "fused"])
def test_kept_data_are_given_up_before_anything_else(monkeypatch, execution, full):
    expected, whole, rooms = run(execution), OnDevice.__call__, []

    def small(self, data):
        rooms.append(self._room)
        if self._room and len(self._kept) == 3:
            raise full
        return whole(self, data)

    monkeypatch.setattr(Dataset, "to", lambda self, device: self.subset(range(len(self))))
    monkeypatch.setattr(OnDevice, "__init__", partialmethod(OnDevice.__init__, room=10**6))
    monkeypatch.setattr(OnDevice, "__call__", small)
    assert_near(run(execution), expected, rtol=1e-4, atol=1e-6)
    assert rooms[0] == 10**6 and rooms[-1] == 0 and 10**6 not in rooms[rooms.index(0) :]


@pytest.mark.parametrize("execution", ["loop", "grouped", "fused"])
@pytest.mark.parametrize("errors", ["fail", "skip"])
@pytest.mark.parametrize("what", [*FULL, "DefaultCPUAllocator: .* 4000000000000000 bytes"])
def test_a_client_that_does_not_fit_is_not_to_blame(monkeypatch, execution, errors, what):
    def full(*_, **__):
        if what in FULL:
            raise FULL[what]
        torch.empty(10**15)

    monkeypatch.setattr(Task, "loss", full)
    beginning = re.escape(what) if what in FULL else what
    said = rf"^{beginning}; one client's work does not fit: lower local\.batch_size or samples, or .*\.$"
    with pytest.raises(OutOfMemoryError, match=said):
        run(execution, on_client_error=errors)


def test_an_error_that_speaks_of_something_else_is_the_clients(monkeypatch):
    monkeypatch.setattr(Task, "loss", lambda *_, **__: [].memory)
    with pytest.raises(ClientError, match="has no attribute 'memory'"):
        run("loop")


def test_a_device_that_is_not_here_is_refused_in_a_sentence():
    refused = r"The device 'cuda:99' cannot be used \(.*\); set device: cpu\.$"
    with pytest.raises(ValueError, match=refused):
        run("loop", device="cuda:99")


def test_data_are_brought_to_a_device_once_and_kept_as_far_as_there_is_room(monkeypatch):
    data = shards(SIZES)
    sizes = [one.inputs.nbytes + one.targets.nbytes for one in data]
    assert OnDevice(torch.device("cpu"))(data[0]) is data[0]
    monkeypatch.setattr(Dataset, "to", lambda self, device: self.subset(range(len(self))))
    kept = OnDevice(torch.device("cpu"), room=sizes[0] + sizes[1])
    first = [kept(shard) for shard in data]
    assert [len(moved) for moved in first] == list(SIZES)
    assert [kept(data[i]) is first[i] for i in range(4)] == [True, True, False, False]
    del data[0]
    assert kept(data[1]) is kept(data[1]), "what is gone makes room"
