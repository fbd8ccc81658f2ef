"""Partitioned training of networks that nobody changed, on four clients."""

import torch
from problems import after, settings

from fedpart import Dataset, Federation, LocalSettings, Protocol, Task

SIZES, CHUNKS = (3, 2, 2, 2), (0.5, 0.25, 0.25)


def data_of(stock, seed=0):
    return [Dataset(*stock.shard(examples, seed + client)) for client, examples in enumerate(SIZES)]


def federation_of(stock, of=None, dropout=0.2, batch_size=2, **changes):
    """All dropout of the network is on, and its rates are learned where they are those of layers."""
    task = Task(stock.network(dropout), **{"samples": 1, "learn_dropout": True, **stock.of(), **(of or {})})
    local = LocalSettings(learning_rate=0.1, batch_size=batch_size)
    return Federation(Protocol(task, settings(len(SIZES), chunks=CHUNKS, local=local, **changes)))


def trained(federation, data, rounds, workers=1, execution="loop", seed=0):
    """``seed`` is that of torch's global generator, which nothing may depend on."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return after(rounds, federation, data, workers, execution)[0]
