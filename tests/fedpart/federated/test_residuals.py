"""Error feedback by itself: nothing is lost for good, and only what has happened is fed back."""

import pytest
import torch
from problems import nothing, settings, update_of
from torch import nn

from fedpart import ClipSettings, Protocol, Task
from fedpart.engines.executor import Executor
from fedpart.updates.client_state import ClientState

KNOWN = {"chunks": (0.6, 0.4), "error_feedback": True}


def made(tmp_path, net=None, precision="fp64", **changes):
    torch.manual_seed(0)
    task = Task(net or nn.Linear(6, 5), samples=1, precision=precision)
    protocol = Protocol(task, settings(2, **{**KNOWN, **changes}))
    return protocol, ClientState(tmp_path, protocol.fingerprint)


def changes(protocol, seed):
    """Whole numbers below 1000: sums of these are exact."""
    g = torch.Generator().manual_seed(seed)
    sizes = enumerate(protocol.partition.sizes, 1)
    return {j: torch.randint(-999, 999, (n,), generator=g).to(protocol.task.dtype) for j, n in sizes}


def sent(protocol, residuals, client, round, deltas, taken=True):
    deltas = {j: delta.clone() for j, delta in deltas.items()}
    update = update_of(deltas)
    Executor(protocol).begin(update, client, nothing(round, residuals))
    found = Executor(protocol).send(update, client, nothing(round, residuals)).cells
    if taken:
        residuals.take(round, [client])
    return found


def same(one, other):
    return all(torch.equal(one[j], other[j]) for j in other)


@pytest.mark.parametrize(
    ("upload", "options", "error"),
    [("topk", {"share": 0.1}, 0), ("topk", {"share": 0.3, "values": "int8"}, 1e-9), ("int4", {}, 1e-9)],
)
def test_what_was_sent_and_what_is_left_are_all_changes(tmp_path, upload, options, error):
    protocol, residuals = made(tmp_path, upload=upload, upload_options=options)
    missing, lost = {1: 0, 2: 0}, 0.0
    for round in range(1, 9):
        deltas = changes(protocol, round)
        received, left = sent(protocol, residuals, 0, round, deltas), residuals.read(0)
        for j, delta in deltas.items():
            missing[j] = missing[j] + delta - received[j]
            assert (missing[j] - left[j]).abs().max() <= error
            lost += float(left[j].abs().sum())
    assert lost > 0


def test_what_was_not_taken_is_not_fed_back(tmp_path):
    protocol, residuals = made(tmp_path, upload="topk", upload_options={"share": 0.2})
    first, second = changes(protocol, 1), changes(protocol, 2)
    sent(protocol, residuals, 0, 3, first)
    expected = sent(protocol, residuals, 0, 4, second, taken=False)
    sent(protocol, residuals, 0, 5, first, taken=False)
    for round in (6, 4):  # a later one; and the same again, whose reply got lost
        assert same(sent(protocol, residuals, 0, round, second, taken=False), expected)
    residuals.take(6, [0])
    assert not same(sent(protocol, residuals, 0, 7, second), expected)
    assert residuals.read(1) == {}, "of another client"


def test_only_trained_partitions_change_and_what_is_sent_is_clipped_with_what_is_fed_back(tmp_path):
    protocol, residuals = made(tmp_path, upload="topk", upload_options={"share": 0.2})
    sent(protocol, residuals, 0, 1, changes(protocol, 1))
    before = residuals.read(0)
    sent(protocol, residuals, 0, 2, {2: changes(protocol, 2)[2]})
    after = residuals.read(0)
    assert torch.equal(before[1], after[1]) and not torch.equal(before[2], after[2])
    norms = {"clip": ClipSettings(5.0)}
    protocol, residuals = made(tmp_path, upload="topk", upload_options={"share": 0.2}, **norms)
    for round in range(1, 6):
        found = sent(protocol, residuals, 0, round, changes(protocol, round))
        assert all(torch.linalg.vector_norm(delta) <= 5 for delta in found.values())
        assert all(torch.linalg.vector_norm(left) <= 5 for left in residuals.read(0).values())


def test_files_stay_that_a_checkpoint_can_ask_for(tmp_path):
    protocol, residuals = made(tmp_path, upload="topk", upload_options={"share": 0.2})
    checkpoints = []
    for round in range(1, 21):
        sent(protocol, residuals, 0, round, changes(protocol, round), taken=round % 3 > 0)
        if round % 4 == 0:
            checkpoints = [*checkpoints[-1:], (round, dict(residuals.versions))]
            residuals.saved()
        for _, versions in checkpoints:
            again = ClientState(tmp_path, protocol.fingerprint)
            again.versions = versions
            assert again.read(0)
        assert len(list((tmp_path / protocol.fingerprint / "0").iterdir())) <= 4


@pytest.mark.parametrize("content", [None, b"", b"torn"])
def test_what_is_gone_ends_the_run_or_where_clients_come_and_go_is_nothing(tmp_path, content):
    for policy in ("fail", "skip"):
        protocol, residuals = made(tmp_path, upload="topk", on_client_error=policy)
        expected = sent(protocol, residuals, 0, 1, changes(protocol, 1))
        (file,) = tmp_path.glob("*/0/1.pt")
        file.unlink() if content is None else file.write_bytes(content)
        if policy == "skip":
            assert same(sent(protocol, residuals, 0, 2, changes(protocol, 1)), expected)
        else:
            with pytest.raises(ValueError, match=r"of round 1 cannot be read .*; put .*1.pt back, or start"):
                sent(protocol, residuals, 0, 2, changes(protocol, 1))


def test_runs_of_other_settings_have_other_files(tmp_path):
    for seed in (0, 1):
        protocol, residuals = made(tmp_path, upload="topk", seed=seed)
        other = ClientState(tmp_path, protocol.fingerprint)
        other.take(1, [0])
        with pytest.raises(ValueError, match="cannot be read"):
            other.read(0)
        sent(protocol, residuals, 0, 1, changes(protocol, 1))
        assert other.read(0)
