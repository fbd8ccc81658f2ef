"""Hostile uploads of clients with networks of several sizes, in every codec: refused, or as asked for."""

import os
import tracemalloc
from collections import Counter
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from malformed import array, declared
from problems import Gain, nothing, settings
from torch import nn
from torch.overrides import TorchFunctionMode

from fedpart import Protocol, Task
from fedpart.engines.executor import Executor
from fedpart.federated.wire import Header, encode_update, npy_bytes, update_scalars
from fedpart.flower.messages import read_reply
from fedpart.updates.codecs import CODECS
from fedpart.updates.errors import Refusal
from fedpart.updates.update import LARGEST, PSI, Update

COUNT = 400 * int(os.environ.get("FUZZ", "1"))  # of each of eight ways to send: 3,200, or FUZZ times it
CLIENTS = 12
WIDTHS = {1.0: 0.34, 0.5: 0.33, 0.25: 0.33}
CODED = [(None, {}), *((name, {}) for name in sorted(CODECS)), ("topk", {"share": 0.3, "values": "int8"})]
CODED.append(("topk", {"share": 1.0, "values": "fp16"}))
CATEGORIES = {"malformed", "partitions", "size", "dtype", "not_finite", "too_large"}
SMALL = 2**16  # bytes for Python's own objects, whatever the size of the network


def net(width=1.0):
    units = int(64 * width)
    return nn.Sequential(nn.Linear(120, units), Gain(), nn.Linear(units, 3))


class Largest(TorchFunctionMode):
    """The bytes of the largest tensor that any operation leaves."""

    bytes = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, (list, tuple)) else (found,):
            if isinstance(one, torch.Tensor):
                self.bytes = max(self.bytes, one.untyped_storage().nbytes())
        return found


class Server:
    """What a server has: the protocol; and what its clients would send if they were honest."""

    def __init__(self, name, options):
        torch.manual_seed(0)
        sizes = [{"share": share, "model_options": {"width": width}} for width, share in WIDTHS.items()]
        task = Task(net(), samples=1, sizes=net)
        coded = {"upload": name, "upload_options": options}
        common = {"chunks": (0.5, 0.5), "max_examples": 1000, "architectures": sizes}
        self.protocol = Protocol(task, settings(CLIENTS, **common, **coded))
        self.honest = [self._update(client) for client in range(CLIENTS)]
        self.arrays = [encode_update(update) for update in self.honest]

    def _update(self, client):
        g, protocol = torch.Generator().manual_seed(client), self.protocol
        sizes = protocol.upload_sizes(client, protocol.plan(client, 1))
        parts = {part: torch.randn(size, generator=g) for part, size in sizes.items()}
        more = {"unseen_loss": 0.3, "unseen_examples": 5} if PSI in parts else {}
        return Executor(protocol).send(Update(parts, examples=5, loss=0.5, **more), client, nothing())

    def read(self, client, arrays):
        """The update in a reply, as the strategy reads it."""
        content = {
            "arrays": ArrayRecord(arrays),
            "metrics": MetricRecord(update_scalars(self.honest[client])),
            "config": ConfigRecord(Header.of(self.protocol, 1, client).scalars()),
        }
        return read_reply(self.protocol, 1, client, SimpleNamespace(content=RecordDict(content)))

    def check_answer(self, client, update):
        """What is taken answers the plan, and can be summed."""
        sizes = self.protocol.upload_sizes(client, self.protocol.plan(client, 1))
        shapes = {part: tuple(tensor.shape) for part, tensor in update.parts.items()}
        assert shapes == {part: (size,) for part, size in sizes.items()}
        for part in update.parts.values():
            assert part.dtype == torch.float32 and part.abs().max() <= LARGEST  # so none is NaN

    def cells(self, client):
        """The client's ``w`` cut at its cells."""
        held = self.protocol.upload_sizes(client, self.protocol.plan(client, 1))
        item = self.arrays[client]["w"].itemsize
        ends = np.cumsum([self.protocol.bytes_of(j, size) // item for j, size in held.items() if j != PSI])
        return np.split(self.arrays[client]["w"], ends[:-1])


def shapes(arrays):
    return {name: values.shape for name, values in arrays.items()}


def wrong_messages(rng, server, client):
    """Arrays by name that are no answer of ``client``, by what is wrong with them."""
    own, cells = server.arrays[client], server.cells(client)
    w, honest = own["w"], {name: array(values) for name, values in own.items()}
    others = [arrays for arrays in server.arrays if shapes(arrays) != shapes(own)]
    other, at = others[rng.integers(len(others))], int(rng.integers(len(cells)))
    n = int(rng.integers(0, 3 * len(w)))
    types = "int8", "float16", "float64", ">u2", "complex64", "bool"
    dtype = str(rng.choice([type for type in types if type != w.dtype]))
    cut = npy_bytes(w)[: int(rng.integers(len(npy_bytes(w))))]
    yield "of another kind", {name: array(values) for name, values in other.items()}
    yield "without a cell", honest | {"w": array(np.concatenate([w[:0], *cells[:at], *cells[at + 1 :]]))}
    yield "a cell twice", honest | {"w": array(np.concatenate([*cells[: at + 1], *cells[at:]]))}
    yield "length", honest | {"w": array(np.resize(w, n + (n >= len(w))))}
    yield "dtype", honest | {"w": array(w.astype(dtype))}
    yield "declares", honest | {"w": declared(w, w.dtype.str, (int(rng.integers(len(w) + 1, 10**15)),))}
    yield "dimensions", honest | {"w": array(w.reshape(1, -1))}
    yield "cut", honest | {"w": Array(str(w.dtype), w.shape, "numpy.ndarray", cut)}
    yield "junk", honest | {"w": Array(str(w.dtype), w.shape, "numpy.ndarray", rng.bytes(99))}
    yield "cells by name", {f"w_{j}": array(cell) for j, cell in enumerate(cells, 1)}
    yield "more", honest | {f"w_{at}": array(cells[at])}
    yield "psi", honest | {"psi": array(np.zeros(9, np.float32))}
    poisoned = (own["psi"] if "psi" in own else np.zeros(1, np.float32)).copy()
    poisoned[0] = rng.choice([np.nan, np.inf, -np.inf, 1e30])
    yield "value of psi", honest | {"psi": array(poisoned)}
    if server.protocol.codec is None:
        values = w.copy()
        values[rng.integers(len(w))] = rng.choice([np.nan, np.inf, -np.inf, 2e15])
        yield "value", honest | {"w": array(values)}


def doubtful_messages(rng, server, client):
    """Messages of the right form, whose bytes may be an answer: none is taken that cannot be summed."""
    own, cells = server.arrays[client], server.cells(client)
    honest, data = {name: array(values) for name, values in own.items()}, own["w"].copy()
    places = rng.integers(data.nbytes, size=int(rng.choice([1, 3, 30, data.nbytes])))
    data.view(np.uint8)[places] = rng.integers(256, size=len(places))
    yield "bytes", honest | {"w": array(data)}
    yield "noise", honest | {"w": array(np.frombuffer(rng.bytes(data.nbytes), data.dtype))}
    yield "order", honest | {"w": array(np.concatenate([cells[i] for i in rng.permutation(len(cells))]))}


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "options"), CODED, ids=lambda value: str(value))
def test_what_is_taken_answers_the_plan_and_nothing_takes_more_memory_than_the_network(name, options):
    server, rng, seen = Server(name, options), np.random.default_rng(0), Counter()
    size = 4 * server.protocol.partition.bounds[-1]
    trains = [client for client in range(CLIENTS) if "w" in server.arrays[client]]
    kinds = {(server.protocol.chunk(c), server.protocol.architectures[c]) for c in trains}
    assert len(kinds) == 6
    for client in trains:  # and is read to the bit if it is honest
        found = server.read(client, {key: array(value) for key, value in server.arrays[client].items()})
        assert all(torch.equal(found.cells[j], delta) for j, delta in server.honest[client].cells.items())
    tracemalloc.start()
    try:
        while seen.total() < COUNT:
            client = int(rng.choice(trains))
            messages = wrong_messages(rng, server, client), doubtful_messages(rng, server, client)
            for kind, arrays in chain(*messages):
                tracemalloc.reset_peak()
                before, taken = tracemalloc.get_traced_memory()[0], None
                with Largest() as largest:
                    try:
                        taken = server.read(client, arrays)
                    except Refusal as refusal:
                        assert refusal.category in CATEGORIES and str(refusal).isprintable()
                peak = tracemalloc.get_traced_memory()[1] - before
                assert peak <= size + SMALL and largest.bytes <= size, (kind, peak, largest.bytes)
                if taken is not None:
                    assert kind in ("bytes", "noise", "order"), kind
                    server.check_answer(client, taken)
                seen[kind] += 1
    finally:
        tracemalloc.stop()
    assert min(seen.values()) > 20, seen
