"""Refusals of damaged run folders, each of which keeps the weights."""

import json
import shutil
from functools import partial

import pytest
import refusals
import safetensors.torch
import torch
from interruptions import Died, DiesAfter
from tiny import same_run, tiny, tiny_training, unnamed

import fedpart
from fedpart.training.files import completed
from simulations.building.experiment import build
from simulations.cli.commands import show
from simulations.config.load import ConfigError
from simulations.errors import RunError
from simulations.folders.run_directory import RunDirectory, read_metrics, read_summary, saved_config
from simulations.results.report.page import write_report
from simulations.results.terminal.progress import Progress
from simulations.running.export import export_run
from simulations.running.personalise import Tuning, personalise_run
from simulations.running.resume import retraining_config
from simulations.running.run import run_experiment

LAST = {"rounds": 4, "checkpoint_every": 1, "model": "mlp", "model_options": {"hidden": [4]}}
LAST["hyperparameters"] = {"affine": None, "dropout": {}}


class Notes(Progress):
    """Keeps what is said."""

    def __init__(self):
        super().__init__(quiet=True)
        self.said = []

    def note(self, text):
        self.said.append(text)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended") / "run"
    run_experiment(tiny(**LAST), folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """After round 3 of 4."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Died):
        run_experiment(tiny(**LAST), folder, progress=DiesAfter(3))
    return folder


def resume(folder, progress=None, **changes):
    config = saved_config(folder).model_copy(update=changes)
    return run_experiment(config, folder, resume=True, progress=progress)


def test_damaged_folders(ended, stopped, tmp_path):
    deep, long = "[" * 100_000, "9" * 5000
    anew = "delete it and continue the run with --resume"
    keeps = r"delete it and continue the run with --resume .*: the weights are in the checkpoint"
    rows = []

    def row(name, kind, file, change, call, says, old=False):
        folder = tmp_path / name / "run"
        shutil.copytree(kind, folder)
        if old:
            unnamed(folder)
        target = folder / file
        target.write_bytes(change(target.read_bytes()))
        rows.append((name, partial(call, folder), ConfigError, says))

    def objects(**changes):
        return lambda text: json.dumps({**json.loads(text), **changes}).encode()

    def line(number, text):
        return lambda old: b"\n".join(
            text.encode() if index == number else part for index, part in enumerate(old.split(b"\n"), start=1)
        )

    wrong = {"method": 3, "psi": [], "rounds": "4", "seconds": int("9" * 30), "inputs": "pictures"}
    for key, value in (wrong | {"psi_learned": 1, "versions": [1]}).items():
        says = rf"summary\.json is damaged .*{anew}"
        row(f"{key} {value}", ended, "summary.json", objects(**{key: value}), show, says, True)
    row("a score", ended, "summary.json", objects(test_accuracy=1.0), show, f"changed after .*{anew}")
    row("deep", ended, "summary.json", lambda _: deep.encode(), show, f"no JSON object.*{anew}")
    row("many digits", ended, "summary.json", lambda _: f'{{"seed": {long}}}'.encode(), show, anew)
    row("stages", ended, "summary.json", objects(stages=[{}]), fedpart.load, "what no run writes", True)
    row("psi of text", ended, "summary.json", objects(psi={"a": "b"}), show, r"psi\.a: .*number", True)
    settings = r"config\.yaml is damaged, or was changed by hand"
    row("a setting", ended, "config.yaml", lambda t: t.replace(b"seed: 0", b"seed: 1"), show, settings)
    row("a cut", ended, "config.yaml", lambda t: b"\n".join(t.split(b"\n")[:9]) + b"\n", resume, settings)
    for name, change, says in (
        ("no object", line(2, "[]"), r"Line 2 of .* is damaged \(it holds no JSON object"),
        ("deep lines", line(2, deep), r"Line 2 of .* is damaged \(it holds no JSON object"),
        ("digits", line(1, f'{{"round": {long}}}'), r"Line 1 of .* is damaged"),
        ("a lost line", lambda t: t.partition(b"\n")[2], r"Line 1 of .* is damaged \(it was changed"),
        ("lost lines at the end", lambda t: t[: t.index(b"\n") + 1], "does not hold the rounds 1 to 3"),
        ("no line", lambda t: b"", "does not hold the rounds 1 to 3"),
    ):
        row(name, stopped, "metrics.jsonl", change, resume, rf"{says}.*{keeps}")
    for name, change, says in (
        ("no bytes", line(1, '{"round": 1, "seconds": 1.0}'), "it has no upload_bytes"),
        ("no clock", line(3, "{}"), "Line 3 .*it has no round and no iteration"),
        ("a cohort of text", line(1, '{"round": 1, "cohort": "all"}'), "cohort: .* valid list"),
    ):
        row(f"old, {name}", stopped, "metrics.jsonl", change, resume, rf"{says}.*{keeps}", True)
    nul = partial(run_experiment, tiny(), "a\0b")
    rows.append(("NUL", nul, ConfigError, r"No folder can be called 'a\\x00b'; leave the NUL"))
    row("a page", ended, "metrics.jsonl", lambda t: t[:-30] + t[-2:], write_report, "jsonl is damaged")
    refusals.check(rows)


def test_files_of_another_run_are_refused(ended, stopped, tmp_path):
    """Also of one with the same configuration: it is the run that counts."""
    other = tmp_path / "other"
    run_experiment(tiny(**LAST), other)
    rows = []
    for name, call, says in (
        ("config.yaml", fedpart.load, r"summary\.json is damaged \(it was changed .*another run"),
        ("summary.json", show, r"summary\.json is damaged \(it was changed .*another run"),
        ("metrics.jsonl", write_report, r"Line 1 .*another run"),
    ):
        folder = tmp_path / name
        shutil.copytree(ended, folder)
        shutil.copy(other / name, folder / name)
        rows.append((name, partial(call, folder), ConfigError, says))
    for name in ("metrics.jsonl", "checkpoint.pt"):
        folder = tmp_path / f"stopped {name}"
        shutil.copytree(stopped, folder)
        shutil.copy(other / name, folder / name)
        says = "another run" if name == "metrics.jsonl" else "another configuration: run was"
        rows.append((f"resuming with {name}", partial(resume, folder), ConfigError, says))
    refusals.check(rows)


def test_weights_that_are_not_the_summary_s(ended, tmp_path):
    state = safetensors.torch.load_file(ended / "state.safetensors")
    first = next(iter(state))
    flipped = bytearray((ended / "state.safetensors").read_bytes())
    flipped[-3] ^= 4
    half = safetensors.torch.save({**state, first: state[first].half()})
    contents = {"a bit": bytes(flipped), "another type": half}
    ways = {
        "load": fedpart.load,
        "export": lambda run: export_run(run, "safetensors"),
        "personalise": lambda run: personalise_run(run, Tuning(clients=1)),
        "retrain": lambda run: build(retraining_config(run, ["iterations=1"])).start(),
    }
    rows = []
    for name, content in contents.items():
        folder = tmp_path / name
        shutil.copytree(ended, folder)
        (folder / "state.safetensors").write_bytes(content)
        says = r"state\.safetensors cannot be read as what summary\.json was written for.*--resume"
        rows += [(f"{name}, {way}", partial(call, folder), ValueError, says) for way, call in ways.items()]
    folder = tmp_path / "old"
    shutil.copytree(tmp_path / "another type", folder)
    unnamed(folder)
    rows.append(("old, another type", partial(fedpart.load, folder), ConfigError, "is torch.float16"))
    refusals.check(rows)
    (tmp_path / "a bit" / "summary.json").unlink()  # the remedy
    resume(tmp_path / "a bit")
    same_run(ended, tmp_path / "a bit")


def test_metrics_that_are_lost_cost_no_weights(ended, stopped, tmp_path):
    for kind, lines in ((stopped, [4]), (ended, [])):
        folder, notes = tmp_path / kind.parent.name, Notes()
        shutil.copytree(kind, folder)
        (folder / "metrics.jsonl").unlink()
        (folder / "summary.json").unlink(missing_ok=True)
        summary = resume(folder, notes)
        assert [line["round"] for line in read_metrics(folder)] == lines
        assert (folder / "state.safetensors").read_bytes() == (ended / "state.safetensors").read_bytes()
        assert summary["test_accuracy"] == (read_summary(ended) or {})["test_accuracy"]
        assert any("metrics begin at round" in said for said in notes.said)
    central = tmp_path / "central"
    run_experiment(tiny_training(), central)
    before = (central / "state.safetensors").read_bytes()
    for name in ("metrics.jsonl", "summary.json", "state.safetensors"):
        (central / name).unlink()
    assert resume(central)["iterations"] == 30
    assert (central / "state.safetensors").read_bytes() == before


def test_weights_are_written_before_statistics(stopped, ended, tmp_path, monkeypatch):
    def fail(*arguments):
        raise ValueError("The statistics fail.")

    shutil.copytree(stopped, tmp_path / "run")
    monkeypatch.setattr("simulations.running.run.summarise", fail)
    with pytest.raises(RunError, match="The statistics fail"):
        resume(tmp_path / "run")
    found, right = (folder / "state.safetensors" for folder in (tmp_path / "run", ended))
    assert found.read_bytes() == right.read_bytes()


def test_threads_that_change_bits_are_told(stopped, tmp_path):
    for threads, told in ((1, []), (2, ["threads was 1, is 2"])):
        folder, notes = tmp_path / str(threads), Notes()
        shutil.copytree(stopped, folder)
        resume(folder, notes, threads=threads)
        assert [said.partition(":")[0] for said in notes.said] == told


def test_an_old_folder_goes_on_without_seals(stopped, ended, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    unnamed(folder)
    resume(folder)
    same_run(ended, folder)
    assert "seal" not in (folder / "summary.json").read_text() + (folder / "metrics.jsonl").read_text()


def test_crafted_checkpoints(stopped, tmp_path):
    state = torch.load(stopped / "checkpoint.pt", weights_only=True)
    adam = state["optimiser"][0]
    crafted = {
        "no mapping": [1],
        "no weights": {key: value for key, value in state.items() if key != "w"},
        "text": {**state, "w": "all"},
        "one number for all": {**state, "w": state["w"][:1]},
        "another type": {**state, "psi": state["psi"].double()},
        "a number of rounds that is none": {**state, "completed": "3"},
        "rounds before the first": {**state, "completed": -1},
        "fewer optimisers": {**state, "optimiser": state["optimiser"][:1]},
        "moments of one number": {**state, "optimiser": [{**adam, "exp_avg": adam["exp_avg"][:1]}] * 3},
        "half of Adam": {**state, "optimiser": [{"step": adam["step"]}] * 3},
        "norms of no list": {**state, "norms": 3},
        "deep": {**state, "agreement": "[" * 100_000},
    }
    rows = []
    for name, content in crafted.items():
        folder = tmp_path / name
        shutil.copytree(stopped, folder)
        (folder / "checkpoint.previous.pt").unlink()
        torch.save(content, folder / "checkpoint.pt")
        says = r"checkpoint\.pt cannot be read \(\w+\); start the run anew"
        rows.append((name, partial(resume, folder), ConfigError, says))
    refusals.check(rows)


def test_every_flipped_bit_of_a_checkpoint_is_found(stopped, ended, tmp_path):
    """What is in no checksum decides nothing."""
    right = build(saved_config(stopped)).start()
    RunDirectory.reopen(stopped, saved_config(stopped)).close()
    content = (stopped / "checkpoint.pt").read_bytes()
    file = tmp_path / "checkpoint.pt"
    right.agreement["run"] = json.loads(torch.load(stopped / "checkpoint.pt")["agreement"])["run"]
    right.load(stopped / "checkpoint.pt")
    w, refused = right.w.clone(), 0
    for place in range(0, len(content), 149):
        file.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        try:
            right.load(file)
        except ValueError:
            refused += 1
        else:
            assert torch.equal(right.w, w)
    assert refused > len(content) / 149 / 4
    place = len(content) // 2
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert (completed(stopped / "checkpoint.pt"), completed(file)) == (3, 0)  # it tells no round
