"""A device without enough memory: groups are halved, and nobody is blamed."""

from functools import partialmethod

import numpy as np
import pytest
import torch
from problems import after, assert_near, assert_same, chain_net, settings, shards
from torch import OutOfMemoryError

from fedpart import ClientError, Dataset, Federation, Protocol, Task
from fedpart.data.dataset import OnDevice
from fedpart.engines.fused import PooledSum
from fedpart.engines.stack import Stack
from fedpart.updates.update import Update

SIZES = (7, 12, 3, 9)
MPS = "MPS backend out of memory (MPS allocated: 8.1 GB)"
FULL = {
    "CUDA out of memory": OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has ..."),
    MPS: RuntimeError(f"{MPS}. Tried to allocate 4.0 GB on private pool."),
}


@pytest.fixture(params=FULL.values(), ids=["CUDA", "MPS"])
def full(request):
    """What torch raises where a device has no memory: of one class on a GPU, of another elsewhere."""
    return request.param


def run(execution, workers=1, **changes):
    protocol = Protocol(Task(chain_net(), samples=1), settings(len(SIZES), cohort=4, **changes))
    return after(2, Federation(protocol), shards(SIZES), workers, execution=execution)[0]


SIZE_OF = {
    "grouped": (Stack, "run", lambda self, round, jobs, inputs, targets: len(inputs)),
    "fused": (PooledSum, "flush", lambda self: sum(batch.examples for batch, *_ in self._waiting)),
}


@pytest.mark.parametrize("execution", SIZE_OF)
def test_clients_that_are_computed_together_are_fewer(monkeypatch, execution, full):
    kind, name, size = SIZE_OF[execution]
    expected, seen, whole = run("loop"), [], getattr(kind, name)

    def small(*arguments):
        if size(*arguments) > 12:
            raise full
        seen.append(size(*arguments))
        return whole(*arguments)

    monkeypatch.setattr(kind, name, small)
    assert_near(run(execution), expected, rtol=1e-4, atol=1e-6)
    assert len(set(seen)) > 1


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


def empty_handed(what):
    def full(*_, **__):
        if isinstance(what, Exception):
            raise what
        return what(10**15)

    return full


NOTHING = {
    r"CUDA out of memory": FULL["CUDA out of memory"],
    r"MPS backend out of memory \(MPS allocated: 8\.1 GB\)": FULL[MPS],
    r"DefaultCPUAllocator: .* 4000000000000000 bytes": torch.empty,
    r"Unable to allocate .* array with shape .*": np.empty,
    r"no memory is left": bytearray,
}


WAYS = [("loop", 2), ("grouped", 1), ("loop", 2), ("loop", 1), ("loop", 2), ("fused", 1)]
CASES = [(says, what, *way) for (says, what), way in zip([*NOTHING.items()] * 2, WAYS, strict=False)]


@pytest.mark.parametrize("says, what, execution, workers", CASES)
@pytest.mark.parametrize("errors", ["fail", "skip"])
def test_a_client_that_does_not_fit_is_not_to_blame(monkeypatch, execution, workers, errors, says, what):
    monkeypatch.setattr(Task, "loss", empty_handed(what))
    lower = r"lower local\.batch_size or samples, or set device: cpu\."
    said = rf"^{says}; one client's work does not fit: {lower}"
    kind = type(what) if isinstance(what, Exception) else RuntimeError if what is torch.empty else MemoryError
    with pytest.raises(kind, match=said) as raised:
        run(execution, workers, on_client_error=errors)
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Unable to allocate a handle for record 17"),
        RuntimeError("unsupported memory format option"),
        ValueError("MPS backend out of memory"),
        ClientError("Client 3 failed: RuntimeError: DefaultCPUAllocator: not enough memory"),
    ],
    ids=repr,
)
def test_an_error_that_speaks_of_something_else_is_the_clients(monkeypatch, error):
    monkeypatch.setattr(Task, "loss", empty_handed(error))
    with pytest.raises(ClientError):
        run("loop")
    assert run("loop", on_client_error="skip").completed == 2


def test_a_sum_for_which_there_is_no_room_is_made_again_without_kept_data(monkeypatch, full):
    expected, given_up, whole = run("loop"), [], Update.add

    def small(update, other):
        if not given_up:
            raise full
        return whole(update, other)

    monkeypatch.setattr(Update, "add", small)
    monkeypatch.setattr(OnDevice, "give_up", lambda self: given_up.append(self) is None)
    assert_same(run("loop"), expected)
    assert len(given_up) == 1


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
