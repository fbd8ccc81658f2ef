import numpy as np
import pytest
import torch
from flower_experiment import build
from problems import AtRound

from fedpart.engines.executor import Executor
from fedpart.federated.federation import Federation
from fedpart.federated.wire import (
    VERSION,
    Header,
    decode_jobs,
    decode_state,
    decode_update,
    encode_jobs,
    encode_state,
    encode_update,
    update_scalars,
)
from fedpart.task.jobs import Job

CLIENT = 0  # whose sizes those of all are
SCALARS = {"examples": 3, "loss": 0.5, "unseen_loss": 0.7}


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
    assert numbers == protocol.upload_numbers(CLIENT, jobs)
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


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"subnetwork": "1"}]', '[{"code": "x"}]', None, 3])
def test_foreign_jobs_are_refused(text):
    with pytest.raises(ValueError):
        decode_jobs(text)


def test_header_names_the_first_difference(experiment):
    header = Header.of(experiment.protocol, 3, 1)
    assert header.version == VERSION
    header.check(Header.read(header.scalars()))
    for name, wrong in {"version": 99, "round": 4, "client": 2, "chunk": 7, "fingerprint": "0"}.items():
        other = Header.read({**header.scalars(), name: wrong})
        with pytest.raises(ValueError, match=f"its {name} is .* where .* is expected"):
            header.check(other)


@pytest.mark.parametrize("change", [{"round": "1"}, {"round": True}, {"client": 1.0}, {"fingerprint": 5}])
def test_header_of_wrong_types_is_refused(experiment, change):
    with pytest.raises(ValueError, match=f"the {next(iter(change))} in its header"):
        Header.read({**Header.of(experiment.protocol, 1, 1).scalars(), **change})


def test_incomplete_header_is_refused():
    with pytest.raises(ValueError, match="version in its header is missing"):
        Header.read({})


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("w", lambda a: a[:-1], "w has shape"),
        ("w", lambda a: np.append(a, a[:1]), "w has shape"),
        ("w", lambda a: a[None], "w has shape"),
        ("w", lambda a: a.astype(np.float64), "w has dtype float64 where float32"),
        ("w", lambda a: a.astype(np.float16), "w has dtype float16"),
        ("w", lambda a: a.astype(">f4"), "w has dtype >f4"),
        ("w", lambda a: np.where(np.arange(len(a)) == 3, np.nan, a).astype(a.dtype), "w_2 has values"),
        (
            "w",
            lambda a: np.where(np.arange(len(a)) == len(a) - 1, np.inf, a).astype(a.dtype),
            "w_3 has values",
        ),
        ("psi", lambda a: a[1:], "psi has shape"),
        ("psi", lambda a: a * np.float32(np.nan), "psi gradient has values"),
    ],
)
def test_update_that_does_not_fit_is_refused(experiment, federation, name, change, reason):
    update, jobs = upload(experiment, federation, 2)
    arrays = encode_update(update)
    arrays[name] = change(arrays[name])
    with pytest.raises(ValueError, match=reason):
        decode_update(arrays, SCALARS, experiment.protocol, client_of_chunk(experiment.protocol, 2), jobs)


@pytest.mark.parametrize(
    "scalars",
    [
        {},
        {"examples": 0, "loss": 0.1, "unseen_loss": 0.1},
        {"examples": 2.0, "loss": 0.1, "unseen_loss": 0.1},
        {"examples": 2, "loss": float("nan"), "unseen_loss": 0.1},
        {"examples": 2, "loss": 0.1},
        {"examples": 2, "loss": 0.1, "unseen_loss": 1},
        {"examples": 2, "loss": 0.1, "unseen_loss": float("inf")},
        {"examples": 2, "loss": 0.1, "unseen_loss": [0.1]},
        {**SCALARS, "visited": 2.0, "seconds": 0.1},
        {**SCALARS, "visited": 2, "seconds": "0.1"},
        {**SCALARS, "visited": 10**16, "seconds": 0.1},
    ],
)
def test_scalars_that_do_not_fit_are_refused(experiment, federation, scalars):
    update, jobs = upload(experiment, federation, 2)
    with pytest.raises(ValueError):
        decode_update(
            encode_update(update), scalars, experiment.protocol, client_of_chunk(experiment.protocol, 2), jobs
        )


def test_arrays_that_were_not_asked_for_are_refused(experiment, federation):
    update, jobs = upload(experiment, federation, 2)
    arrays = encode_update(update)
    without = {"w": arrays["w"]}
    for held in (without, {**arrays, "more": arrays["psi"]}, {}):
        with pytest.raises(ValueError, match="it holds the arrays"):
            decode_update(held, SCALARS, experiment.protocol, client_of_chunk(experiment.protocol, 2), jobs)
