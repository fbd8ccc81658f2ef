"""What a private run has released stays counted, whatever becomes of its checkpoints."""

import shutil
from functools import partial

import pytest
import refusals
import torch
from problems import chain_net, shards

import fedpart
from fedpart import ClipSettings, PrivacySettings, Task, federate
from fedpart.updates.ledger import epsilon, renyi
from fedpart.updates.stages import Privacy

RATE, Z, DELTA = 0.5, 1.0, 1e-5


def run(rounds, path, **changes):
    known = {"weighting": "uniform", "clip": ClipSettings(1.0, psi=1.0), "cohort": 2}
    known |= {"privacy": PrivacySettings(Z, DELTA), "checkpoint": path, "checkpoint_every": 1, "resume": True}
    return federate(Task(chain_net()), shards([2] * 4), rounds=rounds, **known | changes)


def spent(releases):
    return epsilon(renyi(RATE, Z), releases, DELTA)


def last(result):
    return result.metrics[-1].epsilon


def test_releases_of_lost_and_older_checkpoints_count(tmp_path):
    path = tmp_path / "run.pt"
    assert last(run(2, path)) == spent(2)
    shutil.copy(path, tmp_path / "second.pt")
    assert last(run(8, path)) == spent(8)
    shutil.copy(tmp_path / "second.pt", path)
    assert last(run(9, path)) == spent(8 + 7)
    path.unlink()  # so the one before it is gone on from, of round 8
    assert last(run(9, path)) == spent(15 + 1)
    for file in fedpart.training.files.kept(path):
        file.unlink()
    assert last(run(1, path)) == spent(16 + 1)


def test_checkpoints_may_be_rare_and_a_damaged_one_gives_way_to_the_one_before(tmp_path):
    path = tmp_path / "run.pt"
    assert last(run(5, path, checkpoint_every=2)) == spent(5)
    path.write_bytes(b"torn")
    with pytest.warns(RuntimeWarning, match=r"run\.pt cannot be read .*run\.previous\.pt"):
        assert last(run(5, path)) == spent(5 + 1)  # round 5 again, from round 4


@pytest.mark.parametrize("counted", [False, True])
def test_a_release_is_counted_before_it_is_made(tmp_path, monkeypatch, counted):
    """A crash before the line, and one between it and the release."""
    path, name = tmp_path / "run.pt", "_noise" if counted else "total"

    def die(*arguments, **options):
        raise KeyboardInterrupt

    run(2, path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Privacy, name, die)
        run(3, path)
    with path.with_suffix(".releases").open("ab") as file:
        file.write(b'{"round": 3, "ti')  # torn: nobody knows whether the release after it was made
    assert last(run(3, path)) == spent(3 + counted + 1)
    assert last(run(4, path)) == spent(4 + counted + 1)


def test_a_last_line_without_its_end_counts(tmp_path):
    path = tmp_path / "run.pt"
    run(3, path)
    ledger = path.with_suffix(".releases")
    ledger.write_bytes(ledger.read_bytes()[:-1])
    assert last(run(4, path)) == spent(4)
    fedpart.training.files.previous_of(path).unlink()
    path.unlink()
    ledger.write_bytes(ledger.read_bytes()[:-9])
    assert last(run(1, path)) == spent(4 + 1)


def test_a_ledger_and_checkpoints_that_are_put_back_together_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "runs"
    for what in ("put back", "deleted"):
        shutil.rmtree(folder, ignore_errors=True)
        path = folder / f"{what}.pt"
        run(2, path)
        shutil.copytree(folder, tmp_path / what)
        run(5, path)
        shutil.rmtree(folder)
        if what == "put back":
            shutil.copytree(tmp_path / what, folder)
        with pytest.raises(ValueError, match=r"has made 5 releases, of which .* counts [02]; put"):
            run(6, path)
        assert last(run(1, folder / f"{what} elsewhere.pt")) == spent(1)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "put back" / "put back.pt"))  # no folder
    with pytest.warns(RuntimeWarning, match="counted in .* alone"):
        assert last(run(1, tmp_path / "last.pt")) == spent(1)


def test_a_run_from_before_ledgers_counts_its_rounds(tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    run(3, path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nothing"))
    path.with_suffix(".releases").unlink()
    state = torch.load(path)
    del state["releases"]
    torch.save(state, path)
    assert last(run(4, path)) == spent(4)
    shutil.copy(fedpart.training.files.previous_of(path), path)  # the old one, of round 3
    assert last(run(4, path)) == spent(5)


def test_a_ledger_that_does_not_have_what_was_released_is_refused(tmp_path):
    rows = []
    few = "has made 3 releases, of which"
    for name, says in (
        ("none", few),
        ("shorter", few),
        ("changed", r"cannot be read \(line 2: it was changed"),
        ("another's", "behind it that .* does not count"),
        ("other noise", r"cannot be read \(line 1: .*another run"),
    ):
        path, changes = tmp_path / name / "run.pt", {}
        run(3, path)
        ledger = path.with_suffix(".releases")
        lines = ledger.read_bytes().splitlines(keepends=True)
        if name == "none":
            ledger.unlink()
        elif name == "another's":
            run(3, tmp_path / "another" / "run.pt")
            shutil.copy(tmp_path / "another" / "run.releases", ledger)
        elif name == "other noise":
            changes = {"privacy": PrivacySettings(2.0, DELTA)}
        else:
            ledger.write_bytes(b"".join(lines[:2] if name == "shorter" else [lines[0], lines[2]]))
        rows.append((name, partial(run, 4, path, **changes), f"{says}.*put the file back"))
    refusals.check(rows)
