"""What the end of a run says: scores of any task, what has been learned, and commands that can be copied."""

import io
import re
import shlex

import pytest
import torch
from command_line import shown, succeeds
from rich.console import Console
from tiny import tiny, tiny_file, tiny_training
from torch import nn

from fedpart.data import Splits, load_splits
from fedpart.methods import METHODS
from simulations.cli.guards import say
from simulations.folders.run_directory import read_summary
from simulations.results.psi_parts import PsiParts, kept, whole
from simulations.results.tables import terminal_table
from simulations.results.terminal.panel import panel, show_end
from simulations.results.terminal.progress import Progress
from simulations.running.run import run_experiment
from simulations.sweeps.cell_runner import CellRunner

FedAvg = METHODS.resolve("fedavg")


class OwnFedAvg(FedAvg):
    """A FedAvg of one's own: hyperparameters stay where they are."""


class Offset(nn.Module):
    """A linear layer of ink, and a scalar hyperparameter below 0."""

    def __init__(self):
        super().__init__()
        self.line, self.offset = nn.Linear(784, 1), nn.Parameter(torch.tensor(-0.5))

    def forward(self, x):
        return self.line(x.flatten(1)) + self.offset


def offset(num_classes, input_shape):
    return Offset()


def ink(data_dir=None):
    """How much of each digit is written on: a number to predict."""
    digits = load_splits("digits")
    parts = [part.relabelled(part.inputs.mean((1, 2, 3))[:, None]) for part in digits.parts().values()]
    return Splits(*parts, num_classes=1)


REGRESSION = {
    "likelihood": "gaussian",
    "data": f"{__name__}:ink",
    "model": f"{__name__}:offset",
    "split": {"recipe": "iid"},
    "hyperparameters": {"affine": None, "dropout": None, "names": ["offset"]},
}


@pytest.mark.parametrize("kind", ["federated", "centralised"])
def test_a_regression_tells_its_loss_and_its_error_and_scalars_keep_their_sign(tmp_path, kind):
    of_data = {key: value for key, value in REGRESSION.items() if key != "split"}
    central = tiny_training(**of_data, model_options={}, keep_best=False, iterations=10)
    summary = run_experiment(tiny(**REGRESSION, rounds=2) if kind == "federated" else central, tmp_path)
    text = shown(panel(summary, tmp_path))
    assert summary["psi"]["offset"] < 0 and f"offset {summary['psi']['offset']:.3g}" in text
    assert f"{summary['val_nll']:.3f} nats on validation data" in text
    assert f"rmse {summary['test_rmse']:.4g}, mae {summary['test_mae']:.4g} on test data" in text


@pytest.fixture(autouse=True)
def not_under_uv(monkeypatch):
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Summaries of a few rounds of some methods."""
    methods = ("fedavg", f"{__name__}:OwnFedAvg", "augerino", "partitioned")
    folders = [tmp_path_factory.mktemp("run") for _ in methods]
    runs = zip(methods, folders, strict=True)
    return {name: (run_experiment(tiny(method=name, rounds=3), out), out) for name, out in runs}


@pytest.mark.quick(1)
@pytest.mark.parametrize("method", ["fedavg", f"{__name__}:OwnFedAvg"])
def test_a_fedavg_learns_nothing_and_sends_what_fedavg_sends(found, method):
    summary, out = found[method]
    text = shown(panel(summary, out))
    assert summary["psi_learned"] == [] and summary["psi"] and "moved  " not in text
    assert "100.0% of what FedAvg's clients send" in text


def test_a_fedavg_with_augmentation_does_not_say_that_it_is_off(tmp_path):
    options = {"fedavg": {"augment": True}}
    summary = run_experiment(tiny(method="fedavg", method_options=options, rounds=1), tmp_path)
    text = shown(panel(summary, tmp_path))
    assert any(name.startswith("affine.") for name in summary["psi"]) and "only the network is" in text
    assert "augmentation" not in text and "hyperparameter" not in text


@pytest.mark.parametrize("method", ["fedex", "fedex+yogi"])
def test_fedex_has_no_drop_rate_at_the_start_for_its_arms_are_all_alike(found, method):
    summary, out = found["partitioned"]
    psi = {"dropout1.rate [%]": 40.0, "arms.probability[dropout=40%] [%]": 99.0}
    course = {"state": "moved", "mean": 40.0, "low": 2.5, "high": 40.0}
    told = {name: {**course, "last": value} for name, value in psi.items()}
    more = {"method": method, "psi": psi, "psi_course": told, "psi_learned": [*psi]}
    text = shown(panel({**summary, **more}, out))
    assert "learned   dropout 40.0%" in text and "at the start" not in text and "moved" not in text


def test_what_is_not_for_a_terminal_does_not_reach_it(found, capsys):
    """Names of a file's clients and classes, and what remote clients have said."""
    summary, out = found["partitioned"]
    odd = "\x1b[2J[red]a\x07\u202e"
    rows = panel({**summary, "parted": odd, "client_names": [odd]}, out)
    console = Console(width=100, file=io.StringIO(), force_terminal=True)
    console.print(rows)
    console.print(terminal_table(["client"], "t", rows=[[odd]]))
    Progress(console).note(odd)
    CellRunner(console=console).say(odd)
    say(odd, "red")
    for written in (console.file.getvalue(), capsys.readouterr().err):
        assert "[red]a" in written and not any(sign in written for sign in ("\x1b[2J", "\x07", "\u202e"))


def test_commands_for_a_run_with_code_of_its_user_say_that_it_is_trusted(found):
    """As they would be refused without."""
    console = Console(width=400, file=io.StringIO())
    summary, out = found[f"{__name__}:OwnFedAvg"]
    show_end(console, summary, out)
    for command in ("export", "report"):
        assert f"fedpart {command} {out} --trust-code\n" in console.file.getvalue()


def test_the_first_sentence_names_method_and_combination_and_claims_no_more_than_a_guess(found):
    summary, out = found["partitioned"]
    scores = {"test_accuracy": 0.5, "test_examples": 40, "guess": {"accuracy": 0.5}}
    combined = {**summary, **scores, "method": "partitioned+scaffold+yogi"}
    text = " ".join(shown(panel(combined, out)).replace("│", " ").split())
    assert "One federated run learned the network" in text and "and is not ahead of a guess; this" in text
    assert "Clients were combined by scaffold and yogi." in text
    ahead = shown(panel({**summary, **scores, "test_accuracy": 0.95}, out))
    assert "not ahead" not in ahead
    console = Console(width=400, file=io.StringIO())
    show_end(console, combined, out, "own.yaml")
    assert "fedpart run own.yaml --set method=fedavg+scaffold+yogi\n" in console.file.getvalue()


def test_a_run_that_has_learned_no_hyperparameters_has_none_to_do_without(found):
    summary, out = found["partitioned"]
    for untaught, offered in ((None, True), ("Nothing to learn.", False)):
        console = Console(record=True, width=200, force_terminal=False)
        show_end(console, {**summary, "untaught": untaught}, out, "own.yaml")
        text = console.export_text()
        assert ("the same without learned hyperparameters" in text) is offered and "all methods" in text


def test_all_that_has_moved_is_learned_and_nothing_else(found):
    text = shown(panel(*found["augerino"]))
    assert "scale " in text and "stretch " in text and "dropout" not in text
    assert re.search(r"dropout [^(]*% \(10.0% at the start\)", shown(panel(*found["partitioned"])))


def test_the_title_counts_all_stages_and_the_files_are_those_that_are_there(tmp_path):
    finetuned = {"method": "validation", "method_options": {"validation": {"finetune_epochs": 1}}}
    summary = run_experiment(tiny_training(**finetuned, chunks=[0.5, 0.5]), tmp_path)
    first, last = summary["stages"]
    assert last["iteration"] > first["iteration"] == summary["iterations"]
    text = shown(panel(summary, tmp_path))
    assert f"validation, {last['iteration']} iterations" in text
    assert "% on test data, before the next stage (finetuned)" in text
    assert ("*.png" in text) == any(tmp_path.glob("*.png"))
    for picture in tmp_path.glob("*.png"):
        picture.unlink()
    assert "*.png" not in shown(panel(summary, tmp_path)) and "state.safetensors" in text


def test_more_than_fit_are_counted(found):
    summary, out = found["partitioned"]
    many = {f"own.number[{i}]": float(i) for i in range(11)}
    ends = ("mean", "low", "high", "last")
    told = {name: {"state": "moved"} | dict.fromkeys(ends, value) for name, value in many.items()}
    text = shown(panel({**summary, "psi": many, "psi_course": told}, out))
    assert "own.number[7] 7, and 3 more in summary.json" in text and "number[8]" not in text


def test_commands_carry_what_was_set_and_stay_in_a_line(found, tmp_path):
    """As a shell reads them: words with spaces too, on any width of the terminal."""
    summary, out = found["partitioned"]
    file = str(tiny_file(tmp_path))
    own = ["rounds=3", "method = partitioned", "chunks=[0.5, 0.3, 0.2]"]
    console = Console(width=40, file=io.StringIO())
    show_end(console, summary, out, file, own)
    lines = [shlex.split(line) for line in console.file.getvalue().splitlines() if "  fedpart " in line]
    assert lines == [
        ["fedpart", "run", file, "--set", "rounds=3", "chunks=[0.5, 0.3, 0.2]", "method=fedavg"],
        ["fedpart", "compare", file, "--set", "rounds=3", "chunks=[0.5, 0.3, 0.2]"],
        ["fedpart", "run", "--resume", str(out), "--set", "rounds=6"],
        ["fedpart", "report", str(out)],
        ["fedpart", "export", str(out)],
    ]
    succeeds(*lines[0][1:], "--out", tmp_path / "again")
    assert read_summary(tmp_path / "again")["method"] == "fedavg"


def test_a_command_is_written_as_uv_runs_it(found, tmp_path, monkeypatch):
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.touch(mode=0o700)
    monkeypatch.setenv("UV", str(uv))
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    monkeypatch.chdir(tmp_path)
    words = {}
    for path in ("/nowhere", str(uv.parent)):
        monkeypatch.setenv("PATH", path)
        console = Console(width=40, file=io.StringIO())
        show_end(console, *found["partitioned"])
        words[path] = console.file.getvalue().splitlines()[-1].split()[:3]
    assert [*words.values()] == [["bin/uv", "run", "fedpart"], ["uv", "run", "fedpart"]]


def test_a_mask_is_told_whole_and_a_range_with_both_ends():
    """An input that is always 0 never moves; the others keep their numbers, and the mask its length."""
    psi = {f"mask.keep[{i}] [%]": 90.0 if i in (1, 3) else 10.0 for i in range(4)}
    psi |= {f"affine.{name}": 0.5 * (name == "scale_min") for name in ("scale_min", "shear_min", "shear_max")}
    psi["affine.scale_max"] = 1.0
    moved = ["mask.keep[1] [%]", "mask.keep[3] [%]", "affine.scale_min"]
    found = whole(moved, psi)
    assert kept(found) == [1, 3] and len(PsiParts.of(found).keeps) == 4
    assert PsiParts.of(found).ranges == [("affine.scale_min", "affine.scale_max")]


@pytest.mark.parametrize("state, says", [("not moved", "may move it"), ("swinging", "calms it")])
def test_a_hint_names_a_key_that_the_method_reads(found, state, says):
    """FedEx never steps by the server's rate of psi: it chooses, and has no number that moves or settles."""
    summary, out = found["partitioned"]
    course = {"state": state, "mean": 0.0, "low": 0.0, "high": 0.1, "last": 0.1}
    told = {**summary, "psi": {"a.b": 0.1}, "psi_course": {"a.b": course}, "psi_initial": {"a.b": 0.1}}
    text = " ".join(shown(panel(told, out)).split())
    assert says in text and "server_psi.learning_rate" in text
    told |= {"method": "fedex", "psi_learned": ["a.b"]}
    text = " ".join(shown(panel(told, out)).split())
    assert "learned a.b 0.1" in text and says not in text and "learning_rate" not in text.split("accuracy")[0]
