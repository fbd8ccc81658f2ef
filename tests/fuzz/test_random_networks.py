"""A hundred random networks, two rounds: the numbers of plain PyTorch, or a refusal in one sentence.

A test's name is its seed; ``features(seed)`` says what is in the network, and so does a failure.
"""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpart import LocalSettings, SGDSettings, Task, federate
from fedpart.randomness.streams import generator
from fedpart.updates.errors import ClientError
from fuzz.either import EITHER, INPUTS
from fuzz.pieces import WIDTH
from fuzz.plain import averaged
from fuzz.promised import PROMISED

MAY_BE_REFUSED, MUST_BE_TRAINED = [*EITHER, *INPUTS], [*PROMISED]
SEEDS, SIZES, ROUNDS, EPOCHS, RATE = 3 * len(MAY_BE_REFUSED) // 2, (5, 8, 3), 2, 2, 0.1
MAKERS = {**PROMISED, **EITHER, **INPUTS}
NEAR = 5e-5  # outputs: norms of small numbers magnify what processors round, 1e-6 of the weights


class Chain(nn.Module):
    """A sum of what goes around each piece and through it, and a head."""

    def __init__(self, pieces):
        super().__init__()
        self.pieces = nn.ModuleDict({f"at{i}": p for i, p in enumerate(pieces)})
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        for piece in self.pieces.values():
            x = piece(x) + 0.5 * torch.tanh(x)
        return self.head(x)


def features(seed):
    """Names of what the network has: of every third seed all are promised, of others all but one are."""
    rng, (turn, kind) = random.Random(seed), divmod(seed, 3)
    names = rng.sample(MUST_BE_TRAINED, rng.randint(1, 3))
    if not kind:  # two of the promised ones in turn
        due = (MUST_BE_TRAINED[(2 * turn + i) % len(MUST_BE_TRAINED)] for i in range(2))
        return [*names, *(name for name in due if name not in names)]
    name = MAY_BE_REFUSED[2 * turn + kind - 1]
    names.insert(0 if name in INPUTS else rng.randint(0, len(names)), name)
    return names


def network(seed):
    torch.manual_seed(seed)
    pieces = [MAKERS[name]() for name in features(seed)]
    if random.Random(-seed).random() < 0.5:
        return Chain(pieces)
    return nn.Sequential(*pieces, nn.Linear(WIDTH, 3))


def shard(examples, *key):
    g = torch.Generator().manual_seed(hash(key) % 2**32)
    return torch.randn(examples, WIDTH, generator=g), torch.randint(3, (examples,), generator=g)


def order(seed, client, round, examples, batch_size):
    """The batches of a client; one that has a single batch keeps its order."""
    found = []
    for epoch in range(EPOCHS):
        places = torch.arange(examples)
        if examples > batch_size:
            rng = generator(seed, "shuffle 1", epoch, client, round)
            places = torch.from_numpy(rng.permutation(examples))
        found += places.split(batch_size)
    return found


def copies(tensors):
    return [tensor.clone() for tensor in tensors]


def differences(seed, execution):
    """What is not as plain PyTorch has it, in words.

    Raises:
        ValueError, ClientError: the network is refused.
    """
    batch_size = random.Random(seed + 0.5).choice([3, 64])
    shards, validation = [shard(n, seed, client) for client, n in enumerate(SIZES)], shard(7, seed, -1)
    data = [tensor for pair in (*shards, validation) for tensor in pair]
    before = copies(data)
    clients, rounds = [*enumerate(SIZES)], range(1, ROUNDS + 1)
    orders = [[order(seed, c, round, n, batch_size) for c, n in clients] for round in rounds]
    expected, net = averaged(lambda: network(seed).train(), shards, orders, RATE)
    for tensor, kept in zip(data, before, strict=True):
        assert torch.equal(tensor, kept), "plain PyTorch has changed the data"
    with torch.no_grad():
        outputs = net(validation[0].clone())
    given = network(seed)
    held = copies(given.state_dict().values())
    local = LocalSettings(learning_rate=RATE, batch_size=batch_size, epochs=EPOCHS)
    options = {"method": "fedavg", "chunks": (1.0,), "cohort": len(SIZES), "server": SGDSettings(1.0)}
    options |= {"validation": validation, "evaluate_every": 1, "execution": execution, "seed": seed}
    result = federate(Task(given, samples=1), shards, rounds=ROUNDS, local=local, **options)
    found = []
    for name, tensor in result.state.tensors().items():
        size = max(1.0, float(expected[name].abs().max()))
        if not float((tensor - expected[name]).abs().max()) <= 1e-6 * size:
            found.append(f"weight {name}")
    if not torch.allclose(result.module()(before[-2].clone()), outputs, rtol=1e-5, atol=NEAR):
        found.append("outputs of result.module()")
    if abs(result.metrics[-1].val_nll - float(F.cross_entropy(outputs, validation[1]))) > NEAR:
        found.append("val_nll")
    if not all(map(torch.equal, data, before)):
        found.append("the caller's data")
    if not all(map(torch.equal, held, given.state_dict().values())):
        found.append("the caller's network")
    return found


def check(seed, execution, promised):
    """The network is trained as plain PyTorch does, or, where that may be, refused."""
    told = f"seed {seed}, {execution}, {features(seed)}"
    try:
        found = differences(seed, execution)
    except (ValueError, ClientError) as refusal:
        sentence = str(refusal)
        assert not promised, f"{told} is refused: {sentence}"
        assert sentence.endswith(".") and "\n" not in sentence, f"{told}: {sentence!r} is not one sentence"
    else:
        assert not found, f"{told} differs in silence: {', '.join(found)}"


def test_each_feature_is_in_a_network_and_each_promised_one_in_a_network_of_such_alone():
    drawn = [features(seed) for seed in range(SEEDS)]
    assert set(MAKERS) == {name for names in drawn for name in names}
    assert set(PROMISED) == {name for names in drawn[::3] for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_network_is_trained_as_plain_pytorch_does_or_is_refused(seed):
    check(seed, "loop", promised=seed % 3 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, SEEDS, 7))
def test_several_clients_at_a_time_are_those_networks_or_are_refused(seed):
    check(seed, "grouped", promised=False)
