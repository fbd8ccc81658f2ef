import pytest
import torch
from flower_experiment import build
from problems import AtRound

from fedpart.engines.executor import Executor
from fedpart.federated.cohorts import upload_numbers
from fedpart.federated.federation import Federation
from fedpart.federated.wire import (
    decode_jobs,
    decode_state,
    decode_update,
    encode_jobs,
    encode_state,
    encode_update,
    update_scalars,
)
from fedpart.task.gradients import Job

CLIENT = 0  # whose sizes those of all are


@pytest.fixture(scope="module")
def experiment():
    return build({})


@pytest.fixture(scope="module")
def federation(experiment):
    return Federation(experiment.protocol)


def client_of_chunk(protocol, chunk):
    return next(c for c in range(protocol.settings.clients) if protocol.chunk(c) == chunk)


def upload(experiment, federation, chunk):
    client = client_of_chunk(experiment.protocol, chunk)
    jobs = experiment.protocol.plan(client, 1)
    executor = AtRound(Executor(experiment.protocol))
    executor.begin(1, federation.w, federation.psi)
    return executor.run(client, experiment.shards[client], jobs), jobs


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_update_survives_the_wire(experiment, federation, chunk):
    protocol, (update, jobs) = experiment.protocol, upload(experiment, federation, chunk)
    arrays = encode_update(update)
    numbers = sum(array.size for array in arrays.values())
    assert numbers == upload_numbers(protocol, CLIENT, jobs)
    scalars = update_scalars(update)
    assert ("unseen_loss" in scalars) == (chunk > 1)
    decoded = decode_update(
        {k: a.copy() for k, a in arrays.items()}, scalars, protocol, client_of_chunk(protocol, chunk), jobs
    )
    assert sorted(decoded.deltas) == sorted(update.deltas)
    assert all(torch.equal(decoded.deltas[j], update.deltas[j]) for j in update.deltas)
    assert (decoded.psi is None) == (chunk == 1)
    assert chunk == 1 or torch.equal(decoded.psi, update.psi)
    for name in ("examples", "loss", "unseen_examples", "unseen_loss", "visited", "seconds"):
        assert getattr(decoded, name) == getattr(update, name)


def test_state_survives_the_wire(experiment, federation):
    protocol = experiment.protocol
    state = encode_state(federation.w, federation.psi, protocol, protocol.partition)
    w, psi = decode_state(state, protocol, 0)
    assert torch.equal(w, federation.w)
    assert torch.equal(psi, federation.psi)


def test_jobs_survive_the_wire():
    jobs = [Job(2, 2), Job(3, 3), Job(1, psi=True)]
    assert decode_jobs(encode_jobs(jobs)) == jobs
