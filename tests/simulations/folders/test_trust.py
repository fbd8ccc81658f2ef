"""What a folder names is data until it is said to be trusted, and looked at before it is called."""

import os
import shutil
import signal
import sys
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import refusals
import yaml
from command_line import fedpart, refused, succeeds
from tiny import tiny, tiny_file, tiny_training

import fedpart as library
from fedpart.data import DATASETS
from fedpart.data.splitting.recipes import SPLITS
from fedpart.loggers import LOGGERS, Logger, Loggers, RunInfo, logged
from fedpart.loggers.lines import flat
from fedpart.methods import METHODS
from fedpart.nn.hyperparameters import TRANSFORMS
from fedpart.nn.likelihoods import LIKELIHOODS
from fedpart.nn.models import MODELS
from fedpart.partition.sharing import SHARINGS
from fedpart.registry import trusting
from fedpart.updates.codecs import CODECS
from fedpart.updates.defences import DEFENCES
from simulations.building.experiment import build
from simulations.cli.main import main
from simulations.config.load import ConfigError
from simulations.deployment.up import private_folder
from simulations.folders.resolved import is_own, write_config
from simulations.folders.run_directory import RunDirectory, saved_config

OWN = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
from torch import nn
class Likely: pass
def network(num_classes, input_shape, hidden=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, num_classes))
def number() -> int: return 3
"""
NAMED = [
    {"likelihood": "os:system", "likelihood_options": {"command": "touch owned"}},
    {"likelihood": "theirs:Likely"},
    {"model": "theirs:network"},
    {"data": "theirs:number"},
    {"method": "theirs:Likely"},
    {"method_options": {"theirs:Likely": {}}},
    {"hyperparameters": {"transforms": [{"use": "theirs:number"}]}},
    {"loggers": [{"use": "theirs:number"}]},
    {"upload": "theirs:Likely"},
    {"upload": "topk", "upload_options": {"values": "theirs:Likely"}},
    {"defence": "theirs:Likely"},
    {"scheme": "theirs:number"},
    {"execution": "theirs:number"},
    {"attack": {"kind": "theirs:Likely"}},
    {"devices": {"speed": {"theirs:number": [1]}}},
    {"model": "ensemble", "model_options": {"members": [{"model": "theirs:network"}]}},
]
READERS = ["report", "export", "retrain", "personalise", "run --resume", "search --resume"]
PRIVATE = {
    "weighting": "uniform",
    "clip": {"weights": 0.5, "psi": 0.05},
    "privacy": {"noise_multiplier": 1.0, "delta": 1e-5, "randomness": "seed"},
    "on_client_error": "skip",
    "checkpoint_every": 1,
}


@pytest.fixture(autouse=True)
def a_folder_with_modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    (tmp_path / "theirs.py").write_text(OWN)
    monkeypatch.setattr("fedpart.registry.FOLDERS", [str(tmp_path)])
    monkeypatch.setattr("fedpart.registry._named", set())


def folder(path, config, **changes):
    """A run that has begun, with other values in its configuration."""
    RunDirectory.create(path, config).close()
    data = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump({**data, "code_dir": str(path.parent), **changes}))
    return path


def test_whatever_names_code_in_a_folder_is_refused_before_it_is_imported(tmp_path):
    runs = [folder(tmp_path / str(number), tiny(), **changes) for number, changes in enumerate(NAMED)]
    refusals.check(
        (str(changes), partial(saved_config, run), ConfigError, "is code, .*--trust-code")
        for run, changes in zip(runs, NAMED, strict=True)
    )
    load = partial(library.load, runs[0])
    refusals.check([("load", load, ConfigError, "os:system.*trust_code=True")])
    assert not list(tmp_path.glob("**/*.ran")) and not Path("owned").exists()


@pytest.mark.parametrize("words", READERS)
def test_no_command_that_reads_a_folder_runs_its_code_unasked(tmp_path, words):
    run = folder(tmp_path / "theirs", tiny(), model="theirs:network")
    refused(fedpart(*words.split(), run), "'theirs:network' is code")
    assert not (tmp_path / "theirs.ran").exists()


def test_what_is_imported_is_of_its_kind_before_it_is_called(tmp_path):
    kinds = (LIKELIHOODS, DATASETS, MODELS, TRANSFORMS, METHODS, CODECS, DEFENCES, SHARINGS, LOGGERS)
    python = ("os:system", "subprocess:Popen", "builtins:eval", "shutil:rmtree", "fedpart.registry:os.system")
    names = dict.fromkeys(python, "a part of Python, and no")
    names |= {"theirs:Likely": "the class Likely, and no", "theirs:number": "that returns int, and no"}
    run = partial(library.load, folder(tmp_path / "run", tiny(), **NAMED[0]), trust_code=True)
    with trusting(True):
        refusals.check(
            (f"{kind.kind} {name}", partial(kind.resolve, name), ValueError, f"{says} {kind.kind}")
            for kind in kinds
            for name, says in names.items()
        )
        refusals.check([("load", run, ConfigError, "'os:system' is a part of Python")])
    assert not Path("owned").exists()


@pytest.mark.slow
def test_a_users_own_code_runs_and_goes_on_and_is_trusted_by_nobody_else(tmp_path):
    file = tiny_file(tmp_path, model="theirs:network", rounds=1, hyperparameters={"affine": {}})
    succeeds("run", file, "--out", "run")
    succeeds("run", "--resume", "run", "--set", "rounds=2")
    succeeds("run", "--resume", "run", "--set", "rounds=3")
    refused(fedpart("export", "run"), "add --trust-code")
    succeeds("export", "run", "--trust-code")
    config = Path("run/config.yaml")
    config.write_text(config.read_text().partition("\n")[2].replace("seed: 0", "seed: 1", 1))
    refused(fedpart("run", "--resume", "run", "--set", "rounds=4"), "add --trust-code")


def test_trust_ends_with_the_command_and_with_a_change_of_the_code(tmp_path):
    (tmp_path / "theirs.py").write_text(OWN.replace("from torch", "import helps\nfrom torch"))
    (tmp_path / "helps.py").write_text("")
    config = tiny(model="theirs:network", rounds=1, hyperparameters={"affine": {}}, code_dir=str(tmp_path))
    RunDirectory.create(tmp_path / "own", config).close()
    assert is_own(tmp_path / "own")
    grown, state = config.model_copy(update={"rounds": 2}), build(config).start()
    for rounds, own in ((3, False), (2, True)):
        shutil.copytree(tmp_path / "own", tmp_path / str(rounds))
        if not own:
            write_config(tmp_path / "3", config.model_copy(update={"seed": 1}), None, own=False)
        with trusting(True), closing(RunDirectory.reopen(tmp_path / str(rounds), grown)) as run:
            run.rewind(state)
        assert is_own(tmp_path / str(rounds)) is own
    with trusting(True):  # as what retrain makes of somebody's
        RunDirectory.create(tmp_path / "theirs", config.model_copy(update={"seed": 5})).close()
    assert not is_own(tmp_path / "theirs")
    for file in ("helps.py", "theirs.py"):
        before = (tmp_path / file).read_text()
        (tmp_path / file).write_text(f"{before}# changed")
        assert not is_own(tmp_path / "own")
        (tmp_path / file).write_text(before)
        assert is_own(tmp_path / "own")
    (tmp_path / "helps.py").unlink()
    assert not is_own(tmp_path / "own")


def test_what_a_folder_names_in_an_installed_package_tells_its_kind(tmp_path):
    (tmp_path / "plain.py").write_text("def network(num_classes): ...\nfrom torch import load, save")
    sys.path.insert(0, str(tmp_path))
    names = ("pandas:read_pickle", "torch:load", "torch:save", "plain:load", "pandas:ExcelFile")
    with trusting(True):
        refusals.check(
            (f"{kind.kind} {name}", partial(kind.resolve, name), ValueError, f"no {kind.kind}")
            for kind in (DATASETS, MODELS, LIKELIHOODS, LOGGERS, SPLITS)
            for name in names
        )
        assert MODELS.resolve("plain:network") and MODELS.resolve("torchvision.models:resnet18")
    assert DATASETS.resolve("pandas:read_pickle")  # of a configuration that the user runs
    with trusting(True):
        assert DATASETS.resolve("pandas:read_pickle")  # and so in the folder that it leaves


def test_modules_in_the_current_folder_take_nothings_place(tmp_path, monkeypatch):
    run = folder(tmp_path / "run", tiny())
    before = [*sys.path]
    monkeypatch.setattr("simulations.cli.main.app", lambda: None)
    main()  # as the command begins
    saved_config(run)
    assert sys.path == before


@pytest.mark.parametrize("config", [tiny(), tiny_training()], ids=["run", "train"])
def test_a_configuration_that_is_cut_or_changed_is_no_other_one(tmp_path, config):
    RunDirectory.create(tmp_path / "run", config).close()
    file = tmp_path / "run" / "config.yaml"
    whole = file.read_bytes()
    assert saved_config(file.parent) == config
    lines = whole.splitlines(keepends=True)
    cuts = {f"cut after {n} lines": b"".join(lines[:n]) for n in range(0, len(lines), 4)}
    cuts |= {f"{what}, no checksum": text.partition(b"\n")[2] for what, text in cuts.items()}
    cuts |= {f"without line {n}": b"".join(lines[:n] + lines[n + 1 :]) for n in range(1, len(lines), 9)}
    cuts |= {"another seed": whole.replace(b"seed: 0", b"seed: 1", 1)}

    def read(text):
        file.write_bytes(text)
        saved_config(file.parent)

    refusals.check((what, partial(read, text), ConfigError, "config.yaml") for what, text in cuts.items())
    read(b"".join(lines[1:]))  # of a version without checksums


@pytest.mark.filterwarnings("ignore:Loggers get")
def test_folders_of_private_runs_are_their_owners_alone(tmp_path):
    """And what loggers of ``federate()`` leave."""
    for name, config in (("private", tiny(**PRIVATE)), ("other", tiny())):
        RunDirectory.create(tmp_path / name, config).close()
        with logged([Logger()], tmp_path / f"logs of {name}", settings=config.settings()):
            pass
    for what in ("", "logs of "):
        modes = [(tmp_path / f"{what}{name}").stat().st_mode & 0o077 for name in ("private", "other")]
        assert modes == [0, 0o055]
    (tmp_path / "private").chmod(0o755)
    RunDirectory.reopen(tmp_path / "private", tiny(**PRIVATE)).close()
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700


def test_loggers_of_private_runs_are_told_what_epsilon_does_not_cover(tmp_path):
    loggers = Loggers([Logger()])
    with pytest.warns(RuntimeWarning, match="not covered by epsilon"):
        loggers.start(RunInfo(tmp_path, config=flat(tiny(**PRIVATE).resolved())))
    loggers.start(RunInfo(tmp_path, config=flat(tiny().resolved())))  # of others nothing


def test_keys_of_a_killed_federation_are_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if (child := os.fork()) == 0:
        with private_folder() as stale:
            (stale / "keys").mkdir()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (stale,) = tmp_path.glob("fedpart-up-*")
    with private_folder() as first, private_folder() as second:
        assert not stale.exists() and first.is_dir() and second.is_dir()
        assert first.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.glob("*fedpart-*"))
