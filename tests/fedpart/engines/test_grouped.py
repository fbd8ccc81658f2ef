"""Grouped execution: what clients compute together agrees with what each computes alone."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from parity import ROUND, SIZES, assert_parity, cohort, started
from problems import (
    CLASSES,
    after,
    assert_near,
    augmentation,
    chain_net,
    norm_net,
    settings,
    shards,
    smooth_net,
)
from torch import nn

from fedpart import (
    AffineAugmentation,
    ClientError,
    Dataset,
    Federation,
    HyperModule,
    LocalSettings,
    Protocol,
    Task,
    normal,
)
from fedpart.engines.stack import Stack
from fedpart.methods.partitioned import Partitioned

SEVERAL_STEPS = LocalSettings(
    learning_rate=0.25, batch_size=4, epochs=2, momentum=0.9, weight_decay=0.01
)  # large steps, since an fp32 delta is rounded to w's own precision; in larger ones differences grow


def images(**options):
    return Task(chain_net(), transforms=[augmentation()], samples=2, **options)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "network, method, precision, tolerance, local",
    [
        (chain_net, "augerino", "fp64", 1e-12, SEVERAL_STEPS),
        (chain_net, "fedavg", "fp32", 1e-6, SEVERAL_STEPS),
        (chain_net, "partitioned", "fp32", 1e-6, LocalSettings(0.5)),
        (smooth_net, "partitioned", "fp64", 1e-12, SEVERAL_STEPS),
        (smooth_net, "augerino", "fp32", 1e-6, LocalSettings(0.5)),
    ],
)
def test_updates(network, method, precision, tolerance, local):
    task = Task(network(), transforms=[augmentation()], samples=2, precision=precision)
    assert_parity(task, tolerance, method=method, local=local)


@pytest.mark.slow
@hypothesis_settings(max_examples=6, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 14), min_size=3, max_size=6),
    batch_size=st.integers(1, 16),
    epochs=st.integers(1, 2),
    psi_batch=st.sampled_from(["shard", 1, 5]),
    rows=st.sampled_from([1, 20, 61, 10_000]),
)
def test_any_sizes_in_any_number_of_rows(sizes, batch_size, epochs, psi_batch, rows):
    local = LocalSettings(0.3, batch_size, epochs, momentum=0.5, psi_batch=psi_batch)
    assert_parity(images(precision="fp64"), 1e-11, sizes=sizes, local=local, rows=rows)


NODE = {"scheme": "node", "defaults": "zeros"}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "changes, average, share",
    [
        ({}, "probabilities", True),
        ({"scheme": "node"}, "log_probabilities", False),
        (NODE, "logits", True),
        (NODE | {"caps": {1: 2 / 3, 3: 1 / 3}}, "log_probabilities", True),
    ],
    ids=str,
)
def test_every_kind_of_task(changes, average, share):
    task = images(precision="fp64", average=average, share_dropout_mask=share)
    assert_parity(task, 1e-12, local=SEVERAL_STEPS, **changes)


PADDINGS = itertools.cycle(["zeros", "border", "reflection"])


@pytest.mark.quick(2)
@pytest.mark.parametrize("family, padding", [*zip(AffineAugmentation.components, PADDINGS, strict=False)])
def test_every_affine_family(family, padding):
    transform = AffineAugmentation(family, 0.1, padding=padding)
    assert_parity(Task(chain_net(), transforms=[transform], samples=2, precision="fp64"), 1e-12)


class Blur(HyperModule):
    """Noise of another distribution; a buffer; an odd number per row and one number for all rows."""

    hyperparameters = ("width",)

    def __init__(self):
        super().__init__()
        self.width = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        per_feature = normal(x.shape[1:], like=x)
        return x + self.width * self.scale * (normal(x.shape, like=x) + per_feature + normal((), like=x))


LAYERS = {
    "of vectors": lambda: [*norm_net()[:-1], nn.Linear(8, 144), Blur(), nn.Dropout(0.0), nn.RMSNorm(144)],
    "of images": lambda: [
        nn.ConvTranspose2d(1, 4, 3, padding=1),
        nn.GELU(),
        nn.InstanceNorm2d(4, affine=True),
        nn.Conv2d(4, 16, 1, groups=2),
        nn.AdaptiveMaxPool2d(3),
        nn.Flatten(),
    ],
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("layers", LAYERS)
def test_layers(layers):
    torch.manual_seed(0)
    network = nn.Sequential(*LAYERS[layers](), nn.Linear(144, CLASSES))
    task = Task(network, transforms=[augmentation()], samples=2, precision="fp64")
    assert_parity(task, 1e-12, local=SEVERAL_STEPS)


class Reader(nn.Module):
    """Attention over tokens."""

    def __init__(self, need_weights=True):
        super().__init__()
        torch.manual_seed(0)
        self.need_weights = need_weights
        self.tokens = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.classes = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.tokens(x)
        read, _ = self.attention(x, x, x, need_weights=self.need_weights)
        return self.classes(self.norm(x + read).mean(1))


def texts():
    g = torch.Generator().manual_seed(0)
    return [
        Dataset(torch.randint(0, 11, (n, 5), generator=g), torch.randint(0, CLASSES, (n,), generator=g))
        for n in SIZES
    ]


@pytest.mark.filterwarnings("error")  # a layer computed network after network warns
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_over_tokens(need_weights):
    task = Task(Reader(need_weights), samples=1, precision="fp64")
    assert_parity(task, 1e-12, data=texts(), local=SEVERAL_STEPS)


def test_a_token_beyond_the_vocabulary_does_not_read_another_clients_table():
    _, grouped, protocol = started(Task(Reader(), samples=1))
    data = texts()
    data[1].inputs[3, 2] = 11
    failed = cohort(grouped, protocol, data)[1]
    assert isinstance(failed, ClientError) and "data of client 1 do not fit the network" in str(failed)


def test_low_precision_is_that_of_the_loop():
    """Convolutions and linear layers see bfloat16, and no update is further off than a few roundings."""
    seen = []

    class Peek(nn.Module):
        def forward(self, x):
            seen.append(x.dtype)
            return x

    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), Peek(), nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES), Peek()]
    task = Task(nn.Sequential(*layers), transforms=[augmentation()], samples=2, precision="bf16")
    assert_parity(task, 0.03)
    assert set(seen) == {torch.bfloat16}


@pytest.mark.slow
def test_weights_after_several_rounds():
    local = LocalSettings(0.1, batch_size=5, epochs=2, momentum=0.9)
    task = Task(norm_net(), transforms=[augmentation()], samples=2, precision="fp64")
    sizes = (7, 12, 3, 9, 10, 1, 5, 16)
    protocol = Protocol(task, settings(len(sizes), chunks=(0.5, 0.3, 0.2), cohort=4, local=local))
    kinds = ("loop", "grouped")
    loop, together = (after(4, Federation(protocol), shards(sizes), execution=kind)[0] for kind in kinds)
    assert_near(loop, together, rtol=0, atol=1e-9)
    assert (loop.w - protocol.partition.initial()).abs().max() > 1e-3


@pytest.fixture
def stacks(monkeypatch):
    """Of every stack its jobs, rows of the largest batch (two samples), and examples that are read."""
    seen, run = [], Stack.run

    def spy(self, round, jobs, inputs, targets):
        seen.append((len(jobs), max(len(of.batches[0]) for of in jobs) * 2, len(inputs)))
        return run(self, round, jobs, inputs, targets)

    monkeypatch.setattr(Stack, "run", spy)
    return seen


@pytest.mark.slow
def test_rows_and_numbers_of_networks_bound_what_is_computed_at_once(stacks, monkeypatch):
    """Many small shards of a large network have few rows and many numbers."""
    for rows in (1, 40, 100):
        stacks.clear()
        _, grouped, protocol = started(images(), rows=rows)
        cohort(grouped, protocol, shards(SIZES))
        assert all(jobs == 1 or jobs * width <= rows for jobs, width, _ in stacks)
        assert all(examples <= max(rows / 2, max(SIZES)) for _, _, examples in stacks), "nor is more read"
        assert sum(jobs for jobs, _, _ in stacks) == sum(len(protocol.plan(c, ROUND)) for c in range(6))
    assert any(jobs > 1 for jobs, _, _ in stacks)
    task = images(precision="fp64")
    size = task.parameter_space(3).size
    for numbers, most in ((4 * size + 1, 4), (size - 1, 1)):
        stacks.clear()
        monkeypatch.setattr("fedpart.engines.grouped.NUMBERS_CPU", numbers)
        assert_parity(task, 1e-12, sizes=[1] * 12, rows=10_000)
        assert most // 2 <= max(jobs for jobs, *_ in stacks) <= most
        assert max(examples for *_, examples in stacks) <= most


def test_a_client_without_jobs_has_an_empty_update():
    _, grouped, protocol = started(images())
    protocol.plan = lambda client, round: []
    (update,) = grouped.run_cohort([1], shards(SIZES))
    assert not update.cells and update.psi is None and update.examples == SIZES[1]


def test_a_loss_that_tells_jobs_apart_and_clients_with_settings_of_their_own():
    class Scaled(Partitioned):
        def loss(self, task, job, w, psi, batch, noise):
            return job.subnetwork * super().loss(task, job, w, psi, batch, noise)

    assert_parity(images(precision="fp64"), 1e-12, watched=Scaled())

    class Apart(Partitioned):
        def local_settings(self, client):
            scaling = ("none", "reciprocal", "square_root")[client.number % 3]
            own = {"epochs": 1 + client.number // 3, "decay_scaling": scaling, "psi_batch": 2 + client.number}
            return replace(client.local, **own)

    local = LocalSettings(learning_rate=0.3, batch_size=4, weight_decay=0.1)
    assert_parity(images(precision="fp64"), 1e-11, watched=Apart(), local=local)
