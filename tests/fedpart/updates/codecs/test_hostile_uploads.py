"""Encoded uploads that do not fit: whatever a client claims, it is refused before memory is asked for."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from malformed import array, declared, objects
from problems import Gain, nothing, settings, update_of
from torch import nn

from fedpart import Protocol, Task
from fedpart.federated.wire import Header, encode_update, npy_bytes, update_scalars
from fedpart.flower.messages import read_reply
from fedpart.updates.codecs import CODECS
from fedpart.updates.errors import Refusal

COUNT = 1300  # of each codec: 6,500 in all
STEPS = {"int8": 127, "int4": 7}
NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


def protocol_of(name):
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Linear(30, 31), Gain(), nn.Linear(31, 3)), samples=1)
    return Protocol(task, settings(6, chunks=(0.5, 0.5), upload=name, max_examples=1000))


def honest(protocol, client):
    """An update of a client of chunk 1 as it leaves the client."""
    g = torch.Generator().manual_seed(client)
    deltas = {j: torch.randn(n, generator=g) for j, n in enumerate(protocol.partition.sizes, 1)}
    return protocol.send(update_of(deltas, examples=5, loss=0.5), client, nothing())


def reply_with(protocol, client, update, w):
    content = {
        "arrays": ArrayRecord({"w": w}),
        "metrics": MetricRecord(update_scalars(update)),
        "config": ConfigRecord(Header.of(protocol, 1, client).scalars()),
    }
    return SimpleNamespace(content=RecordDict(content))  # as much of a Message as is read


def of_the_form(rng, data):
    """Another length or dtype, or what declares one; and the categories that may refuse it."""
    n = int(rng.integers(0, 3 * len(data)))
    wrong = np.resize(data, n + (n >= len(data)))
    dtype = str(rng.choice(["int8", "bool", "float16", "float32", ">u2"]))
    huge = (int(rng.integers(len(data) + 1, 10**15)),)
    return [
        (array(wrong), {"size"}),
        (array(data.view("int8") if dtype == "int8" else data.astype(dtype)), {"dtype"}),
        (declared(data, "|u1", huge), {"size"}),
        (declared(data, "<f4", (len(data),)), {"dtype"}),
        (declared(wrong, "|u1", (len(data),)), {"size"}),
        (Array("uint8", data.shape, "numpy.ndarray", rng.bytes(60)), {"malformed"}),
        (Array("uint8", data.shape, "numpy.ndarray", objects(b"")), {"size", "dtype"}),
        (
            Array("uint8", data.shape, "numpy.ndarray", npy_bytes(data)[: n % len(data)]),
            {"size", "malformed"},
        ),
    ]


def of_the_values(rng, data, name, first):
    """Bytes of the right number that no honest client sends; ``first``: how many numbers come first."""
    changed = data.copy()
    bad = float(rng.choice([np.nan, np.inf, -np.inf, 1e30]))
    if name in NARROW:
        values = changed.view(np.int16)
        wrong = torch.tensor([bad]).to(NARROW[name]).view(torch.int16).numpy()
        values[rng.integers(len(values))] = wrong[0]
        return [(array(changed), {"not_finite", "too_large"})]
    codec = CODECS[name]()
    if name == "topk":
        return of_places(rng, data, codec, first, bad)
    blocks, size = -(-first // codec.block), codec.size(first)
    scale, code = changed.copy(), changed.copy()
    at = 4 * int(rng.integers(blocks))
    scale[at : at + 4] = np.frombuffer(np.float32(bad).tobytes(), np.uint8)
    lengths = {"malformed", "not_finite", "too_large"}
    negative = changed
    negative[at + 3] |= 128
    code[int(rng.integers(4 * blocks, size - 1))] = 128 if name == "int8" else int(rng.choice([0, 7, 16]))
    junk = np.frombuffer(rng.bytes(len(data)), np.uint8)
    return [(array(one), lengths) for one in (scale, negative, code, junk)]


def of_places(rng, data, codec, first, bad):
    """A value that is not finite; bits of the places turned, so that there are more or fewer; junk."""
    k = codec.count(first)
    value, turned, junk = data.copy(), data.copy(), data.copy()
    at = 4 * int(rng.integers(k))
    value[at : at + 4] = np.frombuffer(np.float32(bad).tobytes(), np.uint8)
    end = codec.size(first)
    low = (first // k).bit_length() - 1
    upper = 8 * 4 * k + k * low + int(rng.integers(k + (first - 1 >> low)))
    turned[upper // 8] ^= 1 << upper % 8
    junk[4 * k : end] = np.frombuffer(rng.bytes(end - 4 * k), np.uint8) | 3 << 6
    return [
        (array(value), {"not_finite", "too_large"}),
        (array(turned), {"malformed"}),
        (array(junk), {"malformed"}),
    ]


@pytest.mark.parametrize("name", sorted(CODECS))
def test_what_does_not_fit_is_refused_and_what_fits_is_read_to_the_bit(name):
    protocol, rng = protocol_of(name), np.random.default_rng(0)
    clients = [client for client in range(6) if protocol.chunk(client) == 1]
    first = protocol.partition.sizes[0]
    done = 0
    while done < COUNT:
        client = int(rng.choice(clients))
        update = honest(protocol, client)
        data = encode_update(update)["w"]
        for wrong, categories in of_the_form(rng, data) + of_the_values(rng, data, name, first):
            with pytest.raises(Refusal) as refused:
                read_reply(protocol, 1, client, reply_with(protocol, client, update, wrong))
            assert refused.value.category in categories
            done += 1
    found = read_reply(protocol, 1, client, reply_with(protocol, client, update, array(data)))
    assert found.cells.keys() == update.cells.keys()
    assert all(torch.equal(found.cells[j], update.cells[j]) for j in update.cells)
