"""What personalise() refuses, and what it says of a client that it cannot train."""

from functools import partial

import refusals
import torch
from problems import chain_net, shard, shards

from fedpart import AdamSettings, ClientError, Dataset, SGDSettings, federate, personalise


def learned(network):
    return federate(network, shards([6, 5, 7, 4]), rounds=1, chunks=(0.5, 0.5), cohort=4)


def test_what_cannot_be_personalised():
    result, mine = learned(chain_net()), shard(8, 5)
    frozen = chain_net()
    frozen[0].requires_grad_(False)
    with_frozen = learned(frozen)
    no_layer = r"No trained weight of the network matches the layers '0\.\*'"
    fit = partial(personalise, result, mine)
    other = partial(personalise, result, client=3)
    few = "Client 3 has too few examples"
    failed, outside = "Client 3 failed: RuntimeError: .*shape", "data of client 3 do not fit the network"
    steep = r"loss of client 3 is .* lower the learning rate"
    no_result = r"what federate\(\) or fit\(\) returns, .* got a Sequential;"
    images, labels = Dataset(torch.rand(8, 1, 5, 7), mine.targets), Dataset(mine.inputs, mine.targets + 9)
    refusals.check_keywords(
        fit,
        [
            ({"held_out": 0.0}, "lies between 0 and 1, for instance 0.25, got 0.0"),
            ({"held_out": 1}, "lies between 0 and 1"),
            ({"held_out": shard(0)}, "8 examples to train on and 0 to be scored on"),
            ({"epochs": 0}, "epochs is a whole number, at least 1, got 0"),
            ({"epochs": 1.5}, r"epochs is a whole number, at least 1, got 1\.5"),
            ({"batch_size": 0}, "batch_size is a whole number, at least 1"),
            ({"samples": 0}, "samples is a whole number, at least 1"),
            ({"client": -1}, "client is a whole number, at least 0, got -1"),
            ({"weight_decay": -1.0}, r"weight_decay is a number, at least 0, got -1\.0"),
            ({"weight_decay": float("nan")}, "weight_decay is a number, at least 0, got nan"),
            ({"sgd": AdamSettings()}, r"sgd are SGDSettings\(learning_rate, momentum\), got AdamSettings"),
            ({"layers": ["head.*"]}, "matches the layers 'head"),
            ({"layers": []}, "No layers are named"),
        ],
    )
    rows = [
        ("a frozen layer", partial(personalise, with_frozen, mine, layers=["0.*"]), ValueError, no_layer),
        ("one example", partial(other, shard(1)), ValueError, few),
        ("images of another size", partial(other, images), ClientError, failed),
        ("labels of no class", partial(other, labels), ClientError, outside),
        ("a steep loss", partial(other, mine, sgd=SGDSettings(1e30), epochs=9), ClientError, steep),
        ("a network", partial(personalise, result.module(), mine), ValueError, no_result),
    ]
    refusals.check(rows)
