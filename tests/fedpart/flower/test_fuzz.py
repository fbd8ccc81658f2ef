"""Four thousand malformed uploads among valid ones, and as many where norms follow the clients.

FUZZ=4 in the environment: 4 times as many, also in test_cell_fuzz.py; by hand, after a change of the wire.
"""

import ast
import collections
import copy
import io
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from inprocess_grid import InProcessGrid
from malformed import EXECUTED, FIXED, HEADER, MALFORMED, array, header, objects
from problems import Gain, update_of
from problems import settings as federation_settings
from tiny import tiny
from torch import nn

import fedpart
from fedpart import Federation, Protocol, Task
from fedpart.federated.cohorts import CohortSum, aggregate
from fedpart.federated.wire import VERSION, Header, encode_update, update_scalars
from fedpart.flower.strategy import FedPart
from fedpart.updates.update import clip
from simulations.building import experiment
from simulations.errors import RunError
from simulations.folders.run_directory import SUMMARY, read_metrics
from simulations.running.run import run_experiment

ROUNDS, BAD, GOOD = 120 * int(os.environ.get("FUZZ", "1")), 50, 5
IN_TURN = 8  # of the bad ones, so that each of these comes up often enough, whatever is drawn
TURN = [*FIXED, *(header(name, "other") for name in HEADER)]
CLIENTS = BAD + GOOD
WITHOUT_CHECKS = {"phases": [Phase.generate], "suppress_health_check": list(HealthCheck)}


def protocol(clip):
    torch.manual_seed(0)
    options = {"on_client_error": "skip", "max_examples": 1000, "clip": clip}
    return Protocol(Task(nn.Sequential(nn.Linear(4, 5), Gain())), federation_settings(CLIENTS, **options))


def valid(protocol, client, round):
    """An update as that client could have made it."""
    g = torch.Generator().manual_seed(1000 * round + client)
    jobs = protocol.plan(client, round)
    trained = [job.partition for job in jobs if job.partition is not None]
    deltas = {j: torch.randn(protocol.partition.sizes[j - 1], generator=g) for j in trained}
    psi = torch.randn(protocol.task.psi_space.size, generator=g) if any(job.psi for job in jobs) else None
    more = {} if psi is None else {"unseen_loss": 0.7, "unseen_examples": 1 + client}
    return update_of(deltas, psi, examples=1 + client, loss=0.5, **more)


class Server:
    """A federation that lives through all rounds, and what it should be: the sum of the valid updates."""

    def __init__(self, clip):
        self.protocol = protocol(clip)
        self.federation, self.expected = Federation(self.protocol), Federation(self.protocol)
        self.reports, self.malformed, self.valid = [], {}, []
        self.old = None  # a valid reply of the round before
        self.grid = InProcessGrid(self.client, CLIENTS, tamper=self.tamper)
        self.pull, self.grid.pull_messages = self.grid.pull_messages, self.with_more
        self.strategy = FedPart(self.federation, on_round=self.reports.append)

    def client(self, message, context):
        number = context.node_config["partition-id"]
        if message.metadata.message_type == "query":
            answer = {"version": VERSION, "client": number, "clients": CLIENTS}
            return Message(RecordDict({"config": ConfigRecord(answer)}), reply_to=message)
        round = message.content["config"]["round"]
        update = valid(self.protocol, number, round)
        arrays = {name: array(values) for name, values in encode_update(update).items()}
        content = {
            "arrays": ArrayRecord(arrays),
            "metrics": MetricRecord(update_scalars(update)),
            "config": ConfigRecord(Header.of(self.protocol, round, number).scalars()),
        }
        return Message(RecordDict(content), reply_to=message)

    def tamper(self, reply):
        kind = self.malformed.get(reply.content["config"]["client"])
        if kind is not None:
            kind.apply(reply.content)
        return reply

    def with_more(self, ids):
        """Of a round: a valid reply once more, and one of the round before."""
        replies = list(self.pull(ids))
        if len(replies) == CLIENTS and replies[0].metadata.message_type == "train":
            again = next(one for one in replies if self.is_valid(one))
            replies.append(copy.deepcopy(again))
            replies += [] if self.old is None else [self.old]
            self.old = again
        return replies

    def is_valid(self, reply):
        config = reply.content.get("config") if reply.has_content() else None
        return isinstance(config, ConfigRecord) and config.get("client") in self.valid

    def round(self, malformed, first):
        round = self.federation.round + 1
        self.valid = [(first + 11 * i) % CLIENTS for i in range(GOOD)]
        bad = [client for client in range(CLIENTS) if client not in self.valid]
        self.malformed = dict(zip(bad, malformed, strict=True))
        self.strategy.run(self.grid, round)
        self.grid.sent.clear()
        del self.reports[:-1]

        bounds, norms = self.expected.start(round).bounds, {}

        def term(client):
            if client not in self.valid:
                return None
            update = valid(self.protocol, client, round)
            if bounds is not None:
                norms[client] = clip(update, bounds)
            return update.weigh(float(update.examples))

        self.expected.step(CohortSum(total=aggregate(range(CLIENTS), term), norms=norms))
        return self.reports[-1]


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, "adaptive"])
def test_malformed_uploads_change_nothing_and_are_counted(clip):
    server, seen, slowest = Server(clip), collections.Counter(), 0.0
    EXECUTED.clear()

    @settings(max_examples=ROUNDS, deadline=None, derandomize=True, database=None, **WITHOUT_CHECKS)
    @given(st.lists(MALFORMED, min_size=BAD - IN_TURN, max_size=BAD - IN_TURN), st.integers(0, CLIENTS - 1))
    def fuzz(drawn, first):
        turn = IN_TURN * server.federation.round
        in_turn = [TURN[(turn + i) % len(TURN)] for i in range(IN_TURN)]
        nonlocal slowest
        start = time.perf_counter()
        report = server.round(in_turn + drawn, first)
        slowest = max(slowest, time.perf_counter() - start)
        assert torch.equal(server.federation.w, server.expected.w)
        assert torch.equal(server.federation.psi, server.expected.psi)
        assert report.replies == GOOD
        for one in report.skipped:
            kind = server.malformed[one["client"]]
            assert one["category"] in kind.categories, (kind.name, one)
            assert one["reason"].isprintable() and 0 < len(one["reason"]) <= 400
            seen[kind.name] += 1
        more = {"repeated": 1, **({"late": 1} if report.round > 1 else {})}
        counted = collections.Counter(skip["category"] for skip in report.skipped)
        assert report.refused == dict(sorted({**counted, **more}.items()))
        seen["valid"] += report.replies

    fuzz()
    print(f"slowest round {slowest:.2f} s, its checks included")
    assert seen.pop("valid") >= ROUNDS * GOOD
    assert seen.total() >= ROUNDS * BAD >= 4_000
    assert min(seen.values()) > 20, seen  # every kind took part
    assert EXECUTED == []
    assert np.isfinite(server.federation.w.numpy()).all()


ROOT = Path(fedpart.__file__).parent.parent
WIRE = [ROOT / "fedpart" / "federated" / "wire.py", *(ROOT / "fedpart" / "updates" / "codecs").glob("*.py")]
WIRE += (ROOT / "fedpart" / "flower").rglob("*.py")
UNPICKLES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def names(tree):
    """Every module that is imported and every attribute or keyword that is used."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword):
            yield node.arg


def test_what_reads_messages_cannot_unpickle():
    banned = {*UNPICKLES, "load", "loads_pickle", "allow_pickle", "fromfile"}
    used = {file: banned & set(names(ast.parse(file.read_text()))) for file in WIRE}
    assert len(used) > 15 and not {file: names for file, names in used.items() if names}


def test_a_pickled_array_is_not_read_by_clients_either():
    """Clients read the server's arrays with Flower's own reader."""
    EXECUTED.clear()
    data = objects(b"")
    with pytest.raises(ValueError, match="allow_pickle=False"):
        Array("object", (1,), "numpy.ndarray", data).numpy()
    assert EXECUTED == []
    np.load(io.BytesIO(data), allow_pickle=True)
    assert EXECUTED == ["unpickled"], "the payload works"


@pytest.mark.parametrize(("engine", "expected"), [("local", "fail"), ("ray", "fail"), ("flower", "skip")])
def test_deployed_runs_skip_unless_they_are_told_otherwise(engine, expected):
    assert tiny(engine=engine).settings().on_client_error == expected
    served = tiny().model_copy(update={"engine": engine})  # as the ServerApp makes it
    assert served.settings().on_client_error == expected
    for told in ("fail", "skip"):
        assert tiny(engine=engine, on_client_error=told).settings().on_client_error == told


PRIVATE = {
    "weighting": "uniform",
    "clip": {"weights": 1.0, "psi": 1.0},
    "privacy": {"noise_multiplier": 2.0, "delta": 1e-3, "randomness": "seed"},
}


@pytest.fixture
def most(monkeypatch):
    """Lets runs take no larger claims than a number of examples, though shards are larger."""

    def set_to(number):
        limited = partial(replace, max_examples=number)
        monkeypatch.setattr(experiment, "replace", lambda settings, **_: limited(settings))

    return set_to


def test_a_run_tells_what_it_refused_and_spent(most, tmp_path):
    most(8)
    config = tiny(rounds=2, on_client_error="skip", **PRIVATE)
    summary = run_experiment(config, tmp_path / "run")
    lines = read_metrics(tmp_path / "run")
    refused = sum(len(line["skipped"]) for line in lines)
    assert refused > 0 and summary["refused"] == {"examples": refused}
    assert summary["skipped_clients"] == refused
    assert all(line["refused"] == ({"examples": n} if (n := len(line["skipped"])) else {}) for line in lines)
    assert {one["category"] for line in lines for one in line["skipped"]} == {"examples"}
    assert 0 < lines[0]["epsilon"] < lines[1]["epsilon"] == summary["epsilon"]
    assert summary["delta"] == 1e-3 and summary["rounds_without_step"] == 0


def test_a_run_in_which_no_round_steps_fails_with_the_commonest_reason(most, tmp_path):
    """Its summary would be one of untrained weights."""
    most(1)
    nobody = {"on_client_error": "skip"}
    for more in ({"min_replies": 2}, PRIVATE):  # with privacy every round steps, if only by noise
        folder, config = tmp_path / str(len(more)), tiny(rounds=2, **nobody, **more)
        says = r"none of 2 rounds had .* \(\d times\) because of examples, .* client"
        for resume in (False, True):
            with pytest.raises(RunError, match=says):
                run_experiment(config, folder, resume=resume)
        assert not (folder / SUMMARY).exists()
    told = [(line["stepped"], line["replies"], line["train_loss"]) for line in read_metrics(tmp_path / "1")]
    assert told == [(False, 0, None)] * 2


def test_a_run_in_which_some_rounds_do_not_step_says_how_many(most, tmp_path):
    most(10)
    config = tiny(rounds=3, on_client_error="skip", min_replies=2)
    summary, lines = run_experiment(config, tmp_path), read_metrics(tmp_path)
    assert [line["stepped"] for line in lines] == [line["replies"] >= 2 for line in lines]
    assert 0 < summary["rounds_without_step"] == sum(not line["stepped"] for line in lines) < 3
