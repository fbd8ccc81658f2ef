"""A run that is stopped, or killed, and resumed is bit-identical to one that was left alone."""

import errno
import io
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from places import importing
from problems import assert_same_state, augmentation, chain_net, shards, untimed

from fedpart import Federation, LocalSettings, Protocol, Task, federate, fit
from fedpart.federated.cohorts import CohortSum
from fedpart.training import files

SIZES = [4, 7, 3, 9, 5, 6, 2, 8]
ROUNDS = 5


def run(rounds, task=None, **changes):
    task = task or Task(chain_net(), transforms=[augmentation()], samples=2)
    common = {"chunks": (0.5, 0.3, 0.2), "cohort": 3, "seed": 6, "local": LocalSettings(batch_size=4)}
    return federate(task, shards(SIZES), rounds=rounds, **{**common, **changes})


@pytest.fixture(scope="module")
def undisturbed():
    return run(ROUNDS)


def test_stopped_after_every_round_and_resumed(tmp_path, undisturbed):
    path = tmp_path / "new" / "folder" / "run.pt"
    for stop in range(1, ROUNDS + 1):
        resumed = run(stop, checkpoint=path, checkpoint_every=2, resume=True)
        assert len(resumed.metrics) == stop
    assert_same_state(resumed, undisturbed)
    assert resumed.state.round == undisturbed.state.round == ROUNDS
    assert untimed(resumed.metrics) == untimed(undisturbed.metrics)
    left = {p.name for p in path.parent.iterdir()}
    assert left == {"run.pt", "run.previous.pt", "run.logs"}, "no temporary file is left"


def test_an_exception_loses_nothing_that_was_saved(tmp_path, undisturbed):
    def stop(report):
        if report.round == 3:
            raise KeyboardInterrupt

    path = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        run(ROUNDS, checkpoint=path, checkpoint_every=2, on_round=stop)
    resumed = run(ROUNDS, checkpoint=path, resume=True)
    assert [report.round for report in resumed.metrics] == [1, 2, 3, 4, 5]
    assert_same_state(resumed, undisturbed)


@pytest.fixture
def handles_ctrl_c():
    """As a program does that nobody has started in the background, where a shell has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(report):
    if 2 in vars(report).values():
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_ends_the_round_saves_and_says_so_in_a_line(tmp_path, undisturbed, capsys, handles_ctrl_c):
    path = tmp_path / "run.pt"
    stopped = run(ROUNDS, checkpoint=path, checkpoint_every=5, on_round=interrupt)
    assert stopped.state.round == 2 and len(stopped.metrics) == 2
    (line,) = capsys.readouterr().err.split("\n")[1:-1]
    assert line.startswith(f"Stopping after this round; it is saved in {path}, and resume=True goes on.")
    resumed = run(ROUNDS, checkpoint=path, resume=True)
    assert_same_state(resumed, undisturbed)
    assert untimed(resumed.metrics) == untimed(undisturbed.metrics)
    assert run(ROUNDS, on_round=interrupt).state.round == 2, "without a checkpoint, too"
    with pytest.raises(KeyboardInterrupt):  # once more
        run(ROUNDS, on_round=lambda report: interrupt(report) or interrupt(report))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_fit_and_its_history(tmp_path, handles_ctrl_c):
    data, other = shards([30, 30])

    def trained(dataset=data, **changes):
        task = Task(chain_net(), transforms=[augmentation()], samples=2)
        options = {"iterations": 6, "chunks": (0.5, 0.5), "batch_size": 4, "evaluate_every": 2}
        return fit(task, dataset, **options, **changes)

    path, whole = tmp_path / "run.pt", trained()
    stopped = trained(checkpoint=path, on_report=interrupt)
    assert stopped.state.completed == 2
    again = trained(checkpoint=path, resume=True)
    assert torch.equal(again.state.w, whole.state.w)
    assert [report.iteration for report in again.metrics] == [2, 4, 6]
    done = trained(checkpoint=path, resume=True)  # nothing is left to do
    assert [report.psi for report in done.metrics] == [report.psi for report in whole.metrics]
    with pytest.warns(RuntimeWarning, match="trained on other data"):
        trained(checkpoint=path, resume=True, dataset=other)


def test_resuming_begins_anew_goes_on_with_less_care_and_computes_nothing_of_a_finished_run(
    tmp_path, undisturbed
):
    path = tmp_path / "run.pt"
    run(2, checkpoint=path, resume=True)
    for computed in ([3, 4, 5], []):
        seen = []
        resumed = run(ROUNDS, checkpoint=path, resume=True, on_client_error="skip", on_round=seen.append)
        assert [report.round for report in resumed.metrics] == [1, 2, 3, 4, 5]
        assert [report.round for report in seen] == computed
        assert_same_state(resumed, undisturbed)


def test_other_data_are_told_and_a_longer_run_is_refused_when_it_is_resumed(tmp_path):
    task, path, data = Task(chain_net()), tmp_path / "run.pt", shards([8] * 3)
    other = [*data[:2], data[2].subset(slice(0, 7))]
    options = {"chunks": (0.5, 0.5), "checkpoint": path}
    federate(task, data, rounds=2, **options)
    federate(task, data, rounds=2, resume=True, **options)
    with pytest.warns(RuntimeWarning, match=r"trained on other data: 24 examples .* now 23 examples"):
        federate(task, other, rounds=3, resume=True, **options)
    with pytest.warns(RuntimeWarning, match="trained on other data: 23 examples"):
        federate(task, [other[1], other[0], other[2]], rounds=3, resume=True, **options)
    with pytest.raises(ValueError, match="has completed 3, more than the 2 asked for"):
        federate(task, other, rounds=2, resume=True, **options)
    federate(task, Lazy(data), rounds=4, resume=True, **options)  # nobody knows before they are read


class Lazy:
    """Clients' data that are read one at a time."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, client):
        return self.data[client]


METHODS = ["augerino", "fedex", "partitioned+scaffold", "feddyn+yogi", "fedprox+fedavgm", "fedrep+adagrad"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("method", [*METHODS, "partitioned+ditto"])
def test_every_method_resumes_with_what_clients_keep_and_in_double_precision(tmp_path, method):
    task = Task(chain_net(), transforms=[augmentation()], samples=2, precision="fp64")
    options = {"method": method, "evaluation": "clients", "evaluate_every": 3}
    whole = run(4, task, **options)
    run(2, task, checkpoint=tmp_path / "run.pt", **options)
    resumed = run(4, task, checkpoint=tmp_path / "run.pt", resume=True, **options)
    assert_same_state(resumed, whole)
    assert resumed.metrics[-1].client_nll == whole.metrics[-1].client_nll is not None


CHILD = """
import time
import torch
torch.set_num_threads(1)
from test_checkpoint import run
run(100_000, checkpoint={path!r}, checkpoint_every=1, on_round=lambda report: time.sleep(0.005))
"""


@pytest.mark.slow
def test_killed_at_a_random_moment(tmp_path):
    path = tmp_path / "run.pt"
    environment = {**os.environ, "PYTHONPATH": importing(__file__)}
    script = CHILD.format(path=str(path))
    child = subprocess.Popen([sys.executable, "-c", script], env=environment)
    try:
        deadline = time.monotonic() + 600
        while not path.exists():
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.3))
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    (tmp_path / "run.pt.tmp").write_bytes(path.read_bytes()[:1000])  # torn, as if killed while writing

    reached = torch.load(path)["completed"]
    resumed = run(reached + 3, checkpoint=path, resume=True)
    assert [report.round for report in resumed.metrics] == list(range(1, reached + 4))
    assert_same_state(resumed, run(reached + 3))


@pytest.mark.parametrize("content", [b"", None], ids=["torn", "gone"])
def test_the_checkpoint_before_the_last_stands_in_for_it(tmp_path, undisturbed, content):
    """A disk that lost the last one, or a death between the two renames of saving."""
    path = tmp_path / "run.pt"
    run(3, checkpoint=path, checkpoint_every=1)
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.pt exists already; pass resume=True"):
        run(ROUNDS, checkpoint=path)
    with nullcontext() if content is None else pytest.warns(RuntimeWarning, match="from run.previous.pt"):
        resumed = run(ROUNDS, checkpoint=path, resume=True)
    assert [report.round for report in resumed.metrics] == [1, 2, 3, 4, 5]
    assert_same_state(resumed, undisturbed)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, undisturbed, monkeypatch):
    """Simulated: nothing more can be written into new files."""

    class Full(io.FileIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill_the_disk(report):
        if report.round == 3:
            monkeypatch.setattr(Path, "open", lambda self, mode, **more: Full(self, mode))

    path = tmp_path / "run.pt"
    with pytest.raises(OSError, match="No space left") as raised:
        run(ROUNDS, checkpoint=path, checkpoint_every=1, on_round=fill_the_disk)
    monkeypatch.undo()
    assert raised.value.errno == errno.ENOSPC
    assert {file.name for file in tmp_path.iterdir()} == {"run.pt", "run.previous.pt", "run.logs"}
    resumed = run(ROUNDS, checkpoint=path, resume=True)
    assert [report.round for report in resumed.metrics] == [1, 2, 3, 4, 5]
    assert_same_state(resumed, undisturbed)


def test_options_that_are_no_plain_data_can_be_saved(tmp_path, undisturbed):
    augerino = {"method": "augerino", "method_options": {"initial": torch.full((6,), -1.0)}}
    settings = replace(undisturbed.state.protocol.settings, **augerino)
    task = Task(chain_net(), transforms=[augmentation()])
    first, second = (Federation(Protocol(task, settings)) for _ in range(2))
    first.step(CohortSum())
    first.save(tmp_path / "run.pt")
    second.load(tmp_path / "run.pt")
    assert second.round == 1


class Death(BaseException):
    pass


def without_links(*_):
    raise OSError("Operation not supported")


def save(path, content):
    files.replace(path, lambda file: file.write(content), files.previous_of(path))


@pytest.mark.parametrize("last", ["unlink", "link", "replace"])
def test_the_file_is_there_whenever_the_writer_dies(tmp_path, monkeypatch, last):
    path = tmp_path / "run.pt"
    for content in (b"one", b"two"):
        save(path, content)

    def die(*_, **__):
        raise Death

    monkeypatch.setattr(os, last, die)
    with pytest.raises(Death):
        save(path, b"three")
    monkeypatch.undo()
    assert path.read_bytes() == b"two"
    save(path, b"four")
    assert [file.read_bytes() for file in files.kept(path)] == [b"four", b"two"]


def test_a_file_system_without_links_keeps_the_previous_one_too(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", without_links)
    path = tmp_path / "run.pt"
    for content in (b"one", b"two", b"three"):
        save(path, content)
    assert [file.read_bytes() for file in files.kept(path)] == [b"three", b"two"]


def test_checkpoints_whose_names_differ_after_a_dot_have_reports_of_their_own(tmp_path):
    net, data = chain_net(), shards([8] * 3)
    for rounds, name in ((3, "lr0.1"), (1, "lr0.2")):
        federate(net, data, rounds=rounds, checkpoint=tmp_path / name, chunks=(0.5, 0.5))
    again = federate(net, data, rounds=4, checkpoint=tmp_path / "lr0.1", chunks=(0.5, 0.5), resume=True)
    assert [report.round for report in again.metrics] == [1, 2, 3, 4]
    older, newer = tmp_path / "lr0.logs", tmp_path / "lr0.1.logs"
    newer.rename(older)  # as checkpoints had them before
    again = federate(net, data, rounds=5, checkpoint=tmp_path / "lr0.1", chunks=(0.5, 0.5), resume=True)
    assert [report.round for report in again.metrics] == [1, 2, 3, 4, 5] and not newer.exists()
    federate(net, data, rounds=2, checkpoint=tmp_path / "ck.pt", chunks=(0.5, 0.5))
    federate(net, data, rounds=1, checkpoint=tmp_path / "ck.one", chunks=(0.5, 0.5), resume=True)
    whole = federate(net, data, rounds=3, checkpoint=tmp_path / "ck.pt", chunks=(0.5, 0.5), resume=True)
    assert [report.round for report in whole.metrics] == [1, 2, 3]
