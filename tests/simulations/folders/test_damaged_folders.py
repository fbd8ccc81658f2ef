"""A fuzz of run folders: whatever is changed in a file, the right bytes come out, or one sentence does."""

import contextlib
import hashlib
import io
import itertools
import os
import random
import re
import shutil
import warnings
from pathlib import Path

import pytest
from interruptions import Died, DiesAfter
from rich.console import Console
from tiny import tiny, tiny_training

import fedpart
from simulations.cli.commands import show
from simulations.errors import ConfigError, RunError
from simulations.folders.run_directory import read_summary, saved_config
from simulations.results.report.page import write_report
from simulations.results.terminal.progress import Progress
from simulations.running.export import export_run
from simulations.running.resume import missing_beside, run_beside
from simulations.running.run import run_experiment
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.search.search import run_search

# by a page about what it leaves out: the data that it would draw
TOLD = re.compile(r"data\.json cannot be read|data are not those that the run")
KINDS = ("bit", "cut", "swap", "line", "cut line")
SENTENCES = (ConfigError, RunError, fedpart.ClientError)
PRIVATE = {"weighting": "uniform", "clip": {"weights": 1.0, "psi": 1.0}}
PRIVATE["privacy"] = {"noise_multiplier": 1.0, "delta": 1e-3}


def config(data, **changes):
    few = {"rounds": 4, "clients": 4, "cohort": 2, "samples": 1, "split": {"recipe": "iid"}}
    return tiny(**{**shared(data), **few, "evaluate_every": 1, "checkpoint_every": 1, **changes})


def trained(data, **changes):
    return tiny_training(**{**shared(data), **changes})


def shared(data):
    of_data = {"data": "table", "data_dir": str(data), "data_options": {"target": "kind"}}
    network = {"chunks": [0.5, 0.5], "model": "mlp", "model_options": {"hidden": [4]}}
    points = dict.fromkeys(("training_points", "validation_points", "test_points"))
    return {**of_data, **network, **points, "hyperparameters": {"affine": None, "dropout": {}}}


def ended(config, folder):
    run_experiment(config, folder)


def doubled(config, folder):
    """And what its ``beside`` asks for."""
    run_experiment(config, folder, resume=folder.exists())
    if (other := missing_beside(config, folder)) is not None:
        run_beside(other, folder, Progress(quiet=True))


def searched(config, folder):
    return run_search(config, folder, CellRunner(console=Console(file=io.StringIO())))


def stopped(config, folder):
    with pytest.raises(Died):
        run_experiment(config, folder, progress=DiesAfter(3))


SEARCH = {"space": {"hyperparameters.dropout.rate": [0.1, 0.5]}, "trials": 2, "sampler": "random"}
# how a folder is made, its configuration, other keys of that, and how many changes are tried (FUZZ times)
FOLDERS = {
    "ended": (ended, config, {}, 36),
    "stopped": (stopped, config, {"upload": "int8", "error_feedback": True}, 44),
    "private": (stopped, config, PRIVATE, 36),
    "trained": (ended, trained, {}, 36),
    "beside": (doubled, config, {"beside": "fedavg"}, 50),
    "search": (searched, trained, {"search": SEARCH}, 50),
}
FUZZ = int(os.environ.get("FUZZ", "1"))


def table(folder, seed):
    drawn = random.Random(seed)
    rows = ([f"{drawn.gauss(0, 1):.3f}" for _ in range(3)] + [drawn.choice("xy")] for _ in range(60))
    folder.mkdir(parents=True)
    (folder / "train.csv").write_text("\n".join(map(",".join, [["a", "b", "c", "kind"], *rows])) + "\n")
    return folder


def made(place, kind):
    """A folder of a kind, and another run's, whose files are swapped for its own."""
    make, base, changes, _ = FOLDERS[kind]
    found = place / kind, place / f"{kind}-other"
    for number, folder in enumerate(found):
        make(base(table(place / "data" / folder.name, number), seed=number, **changes), folder)
    return found


def run_of(folder):
    """A run in a folder: itself, or a search's first trial."""
    trial = Path(folder) / "trials" / "000"
    return trial if trial.exists() else Path(folder)


def loaded():
    state = fedpart.load(run_of("run")).state
    return state.completed, state.w.tolist(), state.psi.tolist()


def shown():
    with contextlib.redirect_stdout(io.StringIO()) as text:
        show(run_of("run"))
    return text.getvalue()


def reported():
    return write_report("run").read_text()


def exported():
    return export_run(run_of("run"), "safetensors")[0].read_bytes()


def resumed():
    """The outcome without how long it took; of a private run that epsilon has not become less."""
    config, run = saved_config("run"), Path("run")
    if config.search is not None:
        return [(row.values, row.state, row.objective) for row in searched(config, run).rows]
    run_experiment(config, run, resume=True)
    if getattr(config, "beside", None) is not None:
        doubled(config, run)
        run = run / "beside"
    summary = read_summary(run)
    if "epsilon" in summary:
        return summary["rounds"], summary["epsilon"] >= least_epsilon()
    times = dict.fromkeys(("seconds", "client_seconds", "git_commit"))
    return hashlib.sha256((run / "state.safetensors").read_bytes()).hexdigest(), summary | times


def least_epsilon():
    from fedpart.updates.ledger import epsilon, renyi

    return epsilon(renyi(0.5, 1.0), 4, 1e-3)


WAYS = (loaded, shown, reported, exported, resumed)


def outcome(way):
    """What comes out, or that a sentence does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a checkpoint that cannot be read
            return way()
    except SENTENCES as sentence:
        assert len(str(sentence).splitlines()) == 1, sentence
        assert 20 < len(str(sentence)) < 1500, sentence
        return None


def changed(file, other, kind, drawn):
    """One change of a file in place."""
    content = bytearray(file.read_bytes())
    lines = content.splitlines(keepends=True)
    if not content:
        return  # of two changes the second may meet nothing
    if kind == "bit":
        place = drawn.randrange(len(content))
        content[place] ^= 1 << drawn.randrange(8)
    elif kind == "cut":
        content = content[: drawn.randrange(len(content))]
    elif kind == "line":
        del lines[drawn.randrange(len(lines))]
        content = bytearray().join(lines)
    elif kind == "cut line":
        content = bytearray().join(lines[: drawn.randrange(len(lines))])
    else:
        content = bytearray(other.read_bytes())
    file.write_bytes(content)


def cases(run, other):
    """Files, what they are swapped for, and changes, in turn.

    A file is swapped for that of another run; what has no such name there, for another of its kind here.
    """
    files = []
    for file in sorted(path for path in run.rglob("*") if path.is_file()):
        alike = [path for path in sorted(run.rglob(f"*{file.suffix}")) if path != file]
        there = other / file.relative_to(run)
        files.append((file.relative_to(run), there if there.is_file() else alike[-1]))
    while True:
        yield from ((*case, change) for change in KINDS for case in files)


def numbers_drawn(figure, stream, **options):
    """In place of a picture, which takes a while, what it is of."""
    drawn = [line.get_xydata().tolist() for axes in figure.axes for line in axes.lines]
    stream.write(f"<svg>{drawn}</svg>")


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_changed_file_gives_the_right_bytes_or_a_sentence(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", numbers_drawn)
    monkeypatch.setattr(
        "simulations.results.report.page.clients_section", lambda *_: "left out"
    )  # of the data alone
    for name in ("running.resume.draw_pictures", "sweeps.search.search.plot_search"):
        monkeypatch.setattr(f"simulations.{name}", lambda *_: [])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    whole, other = made(tmp_path, kind)
    shutil.copytree(whole, "run")
    (tmp_path / "state").mkdir(exist_ok=True)
    shutil.copytree("state", "kept")
    known = [outcome(way) for way in WAYS]
    assert (known[0] is None, known[-1] is None) == (FOLDERS[kind][0] is stopped, False)
    drawn, wrong, changes = random.Random(47), [], cases(whole, other)
    for number in range(FUZZ * FOLDERS[kind][3]):
        for place, before in (("run", whole), ("state", "kept")):
            shutil.rmtree(place)
            shutil.copytree(before, place)
        told_of = []
        for file, there, change in itertools.islice(changes, 2 if number % 4 == 3 else 1):
            changed(Path("run") / file, there, change, drawn)
            told_of.append(f"{change} of {file}")
        for way, right in zip(WAYS, known, strict=True):
            what = f"change {number}, {' and '.join(told_of)}, {way.__name__}"
            try:
                result = outcome(way)
            except Exception as error:
                wrong.append(f"{what}: {type(error).__name__}: {error}")
                continue
            told = way is reported and isinstance(result, str) and TOLD.search(result)
            if result not in (None, right) and not told:
                wrong.append(f"{what}: another outcome in silence")
    assert not wrong, "\n".join(wrong)
