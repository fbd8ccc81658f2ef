"""What server and clients agree on: plans, cohorts, chunks, the fingerprint."""

import copy
import json
import re

import pytest
import sizes
import torch
from flower_experiment import local
from problems import (
    accepted,
    augmentation,
    chain_net,
    norm_net,
    nothing,
    settings,
    smooth_net,
    update_of,
    upload_numbers,
)
from torch import nn
from torch.nn import functional as F

from fedpart import AdamSettings, LocalSettings, Protocol, Task
from fedpart.federated.cohorts import expected_upload_ratio, state_bytes
from fedpart.federated.wire import decode_state, encode_state
from fedpart.nn.likelihoods import Gaussian, TokenClassification
from fedpart.task.gradients import Job
from fedpart.training.agreement import difference
from fedpart.updates.update import PSI, Round

CHUNKS = (0.5, 0.3, 0.2)


def protocol(clients=20, task=None, identity="", **changes):
    task = task or Task(chain_net(), transforms=[augmentation()])
    changes = {"chunks": CHUNKS, "cohort": 6, **changes}
    return Protocol(task, settings(clients, **changes), identity)


def test_a_partitioned_client_trains_its_own_and_later_partitions_and_scores_the_subnetwork_before_it():
    p = protocol()
    plans = {p.chunk(client): p.plan(client, 1) for client in range(20)}
    assert plans[1] == [Job(1, 1), Job(2, 2), Job(3, 3)]
    assert plans[2] == [Job(2, 2), Job(3, 3), Job(1, psi=True)]
    assert plans[3] == [Job(3, 3), Job(2, psi=True)]
    assert [upload_numbers(p, 0, plans[k]) for k in (1, 2, 3)] == [
        p.partition.space.size,
        sum(p.partition.sizes[1:]) + p.task.psi_space.size,
        p.partition.sizes[2] + p.task.psi_space.size,
    ]


def test_one_partition_means_one_job_and_no_hyperparameters_no_psi_gradient():
    p = protocol(task=Task(chain_net(dropout=False)))
    assert all(not job.psi for client in range(20) for job in p.plan(client, 1))
    p = protocol(method="fedavg")
    assert {tuple(p.plan(client, 1)) for client in range(20)} == {(Job(1, 1),)}
    assert p.partition.chunks == p.chunk(3) == p.task.samples == 1
    assert not p.task.transforms and p.task.psi_names == ("3.logit",), "dropout keeps its initial rate"
    kept = protocol(method="fedavg", method_options={"augment": True})
    assert kept.task.samples == 10 and list(kept.task.transforms) == ["affine"]
    assert protocol(method="augerino").plan(3, 1) == [Job(1, 1, psi=True)]


def test_client_weights_and_what_is_frozen_stays_so_whatever_a_client_sends():
    p = protocol(method="augerino")
    learned = p.psi_mask.bool()
    assert learned.any() and not learned.all()
    size, psi = p.partition.space.size, torch.full((p.task.psi_space.size,), 5.0)
    sent, round = update_of({1: torch.zeros(size)}, psi.clone(), examples=2), Round(1, torch.zeros(size), psi)
    taken, _ = accepted(p, 0, sent, round)
    assert taken.psi is not None and torch.equal(taken.psi, 2 * psi * learned)
    for weighting, weight in (("examples", 7.0), ("uniform", 1.0)):
        p = protocol(method="fedavg", weighting=weighting)
        sent = update_of({1: torch.zeros(p.partition.space.size)}, examples=7)
        assert accepted(p, 0, sent, nothing())[0].weights == {1: weight}


@pytest.mark.parametrize(
    ("chunks", "parameters", "expected"),
    [
        ((0.7, 0.2, 0.1), None, 0.77),
        ((0.9, 0.1), None, 0.91),
        ((0.7, 0.2, 0.1), (0.5, 0.25, 0.25), 0.7 + 0.2 * 0.5 + 0.1 * 0.25),
    ],
)
def test_expected_upload(chunks, parameters, expected):
    wide = Task(nn.Sequential(nn.Linear(99, 100), nn.Linear(99, 100)))
    p = protocol(task=wide, chunks=chunks, parameters=parameters)
    assert expected_upload_ratio(p) == pytest.approx(expected, abs=1e-12)
    assert expected_upload_ratio(protocol(task=wide, chunks=chunks, method="fedavg")) == 1


SIZES = {"architectures": sizes.ARCHITECTURES, "task": sizes.task()}


@pytest.mark.parametrize(
    "changes",
    [{}, {"caps": {1: 0.7, 2: 0.1, 3: 0.2}}, {"caps": {1: 0.3, 2: 0.3, 3: 0.4}}, {"upload": "int4"}, SIZES],
    ids=["plain", "psi only", "caps", "codec", "sizes"],
)
def test_the_expected_upload_is_that_of_all_clients(changes):
    p = protocol(**changes)
    sizes = [pair for c in range(20) for pair in p.upload_sizes(c, p.plan(c, 1)).items()]
    sent = sum(p.bytes_of(part, size) for part, size in sizes if part != PSI)
    assert expected_upload_ratio(p) == pytest.approx(sent / (20 * 4 * p.partition.space.size), rel=1e-12)


def test_cohorts_are_exact_and_reproducible_cover_everybody_and_come_from_whoever_is_available():
    drawn = (protocol(seed=seed) for seed in (3, 3, 4))
    cohorts, same, others = ([p.cohort(round) for round in range(1, 101)] for p in drawn)
    assert all(len(set(c)) == 6 and c == sorted(c) and set(c) <= set(range(20)) for c in cohorts)
    assert cohorts == same != others
    counts = [sum(client in cohort for cohort in cohorts) for client in range(20)]
    assert sum(counts) == 600 and min(counts) >= 15 and max(counts) <= 46, "30 each, standard deviation 4.6"
    assert all(type(client) is int for client in cohorts[0]), "plain numbers, fit for a message"
    p = protocol()
    for round in range(1, 20):
        assert p.cohort(round, range(20)) == p.cohort(round) == p.cohort(round, reversed(range(20)))
    few = [19, 4, 7, 0, 11, 2, 16]
    assert p.cohort(1, few) == p.cohort(1, sorted(few)) == p.cohort(1, [*few, 4, 4])
    assert set(p.cohort(1, few)) <= set(few) and len(p.cohort(1, few)) == 6
    assert p.cohort(1, [5, 3]) == [3, 5]
    assert p.cohort(1, []) == []


def test_fingerprints_ignore_where_things_are_computed_and_see_a_dropout_temperature_and_a_buffer():
    others = {}, {"device": "cuda", "on_client_error": "skip"}, {"chunks": list(CHUNKS)}
    (fingerprint,) = {protocol(**changes).fingerprint for changes in others}
    assert len(fingerprint) == 16 and json.dumps(protocol().agreement)
    written = settings(4, chunks=[1], parameters=["1"])
    assert written.chunks == written.parameters == (1.0,) and type(written.chunks[0]) is float

    def task(temperature, scale):
        net = smooth_net()
        net.register_buffer("scale", torch.tensor([scale]))
        net.temperature = temperature
        net.extra_repr = lambda: f"temperature={temperature}"
        return Task(net)

    prints = {protocol(task=task(t, s)).fingerprint for t, s in ((0.1, 1.0), (0.2, 1.0), (0.1, 2.0))}
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 4}, "seed was 3, is 4"),
        ({"clients": 21}, "clients was 20, is 21"),
        ({"cohort": 5}, "cohort was 6, is 5"),
        ({"chunks": (0.6, 0.2, 0.2)}, r"chunks was \[0.5, 0.3, 0.2\], is \[0.6, 0.2, 0.2\]"),
        ({"parameters": (0.6, 0.2, 0.2)}, r"parameters was None, is \[0.6"),
        ({"method": "fedavg"}, "method was 'partitioned', is 'fedavg'"),
        ({"local": LocalSettings(epochs=2)}, "local was .*'epochs': 1.*, is .*'epochs': 2"),
        ({"server": AdamSettings(1e-2)}, "server was .*0.001.*, is .*0.01"),
        ({"server_psi": AdamSettings(1e-2)}, "server_psi was "),
        ({"weighting": "uniform"}, "weighting was 'examples', is 'uniform'"),
        ({"defaults": "zeros"}, "defaults was 'initial', is 'zeros'"),
        ({"scheme": "node"}, "the partition hash differs"),
        ({"identity": "other data"}, "data was '', is 'other data'"),
        ({"task": Task(chain_net(), samples=4)}, "samples was 10, is 4"),
        ({"task": Task(chain_net(), average="probabilities")}, "average was 'logits', is 'probabilities'"),
        ({"task": Task(chain_net(), share_dropout_mask=True)}, "share_dropout_mask was False, is True"),
        ({"task": Task(chain_net(), precision="fp64")}, "precision was 'fp32', is 'fp64'"),
        ({"task": Task(chain_net(), likelihood=F.mse_loss)}, "likelihood was 'classification', is"),
        ({"task": Task(norm_net())}, "the network differs"),
        ({"task": Task(chain_net(seed=1))}, "the default values hash differs"),
        ({"task": Task(chain_net(), transforms=[augmentation()])}, "input transforms differ|hyperparam"),
    ],
)
def test_fingerprints_change_with_everything_that_matters(changes, says):
    before = {"task": Task(chain_net()), **({"clients": 20} if "clients" in changes else {})}
    one, other = protocol(**before), protocol(**{**before, **changes})
    assert one.fingerprint != other.fingerprint
    assert difference(one.agreement, one.agreement) == ""
    assert re.search(says, difference(other.agreement, one.agreement))


class Scaled(Gaussian):
    """A likelihood of one's own with a constant."""

    def __init__(self, scale):
        super().__init__()
        self.register_buffer("scale", torch.tensor([scale]))


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (Gaussian(), Gaussian(0.01), "options was .*variance=1.0.*, is .*variance=0.01"),
        (TokenClassification(), TokenClassification(shift=True), "was .*shift=False.*, is .*shift=True"),
        (TokenClassification(), TokenClassification(ignored=0), "was .*ignored=-100.*, is .*ignored=0"),
        (Scaled(1.0), Scaled(2.0), "the default values hash differs"),
    ],
)
def test_fingerprints_see_the_fixed_options_of_a_likelihood(one, other, says):
    likelihoods = one, copy.deepcopy(one), other
    first, again, second = (protocol(task=Task(chain_net(), likelihood=which)) for which in likelihoods)
    assert first.fingerprint == again.fingerprint != second.fingerprint
    assert re.search(says, difference(second.agreement, first.agreement))


KINDS = {"fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize("kind", KINDS)
def test_clients_start_from_rounded_weights_and_the_server_does_not(kind):
    federation, _ = local(1, download=kind)
    start, before = federation.start(2), federation.w.clone()
    assert torch.equal(start.w, before.to(KINDS[kind]).float())
    assert torch.equal(federation.w, before) and not torch.equal(start.w, before)
    assert start.psi is federation.psi
    sent = encode_state(federation.w, federation.psi, federation.protocol, federation.partition)
    w, psi = decode_state(sent, federation.protocol, 0)
    assert torch.equal(w, start.w) and torch.equal(psi, start.psi)
    assert sum(array.nbytes for array in sent.values()) == state_bytes(federation.protocol, 0)


def test_half_the_bytes_of_the_weights_go_down_and_as_many_up():
    (state, narrow), (_, plain) = local(1, download="bf16"), local(1)
    assert plain[0].download_bytes - narrow[0].download_bytes == 5 * 2 * state.partition.space.size
    assert narrow[0].upload_bytes == plain[0].upload_bytes
