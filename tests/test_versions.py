"""The wheel where others install it: on the oldest versions, without extras, beside a torch that stays.

uv and pip install what is missing from the package registry, or from uv's cache.
"""

import json
import subprocess
import sys
import tomllib

import pytest
from installed import UV, build_wheel, call, outside
from packaging.requirements import Requirement
from packaging.version import Version
from places import ROOT

FILE = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIRED = [Requirement(line) for line in FILE["project"]["dependencies"]]
OPTIONAL = [line for lines in FILE["project"]["optional-dependencies"].values() for line in lines]
EXTRAS = {Requirement(line).name for line in OPTIONAL} - {"fedpart"}
PINS = FILE["tool"]["uv"]["constraint-dependencies"]
TOOLS = [line for line in FILE["dependency-groups"]["dev"] if line.startswith(("pytest", "hypothesis"))]
OLDEST = {r.name: s.version for r in REQUIRED for s in r.specifier if s.operator == ">="}
# Their versions follow from those of our own requirements.
FOLLOWING = (
    "cuda-", "llvmlite", "nvidia-", "onnx-ir", "pydantic-core", "setuptools", "sympy", "tokenizers", "triton",
)  # fmt: skip
CORE = "engines/test_federate.py", "randomness", "task/test_psi.py", "task/test_task.py", "training"
LOCAL = "rounds=2", "beside=null", "engine=local"
MAIN = """
import json, sys
from simulations.cli.main import app
for words in json.loads(sys.argv.pop()):
    try:
        app(words)
    except SystemExit as end:
        print(end.code, flush=True)
"""
RUN = """
import sys, torch
import fedpart
from fedpart.nn.models import digits_cnn
shard = (torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))
task = fedpart.Task(digits_cnn(input_shape=(1, 8, 8)), transforms=[fedpart.AffineAugmentation()], samples=2)
result = fedpart.federate(task, [shard] * 4, rounds=2, chunks=(0.5, 0.5))
assert result.predict(shard[0]).shape == (4, 10)
print(fedpart.__file__)
"""

pytestmark = pytest.mark.slow


def free(folder):
    """Constraints for all that is neither required by us nor follows from it."""
    ours = EXTRAS | {r.name for r in REQUIRED}
    lines = [line for line in PINS if Requirement(line).name not in ours and not line.startswith(FOLLOWING)]
    (folder / "free.txt").write_text("\n".join(lines))
    return folder / "free.txt"


def environment(folder, *options):
    """Python of a new environment."""
    subprocess.run([UV, "venv", "-q", *options, "-p", sys.executable, folder / "venv"], check=True)
    return folder / "venv" / "bin" / "python"


def install(python, *what):
    command = [UV, "pip", "install", "--no-config", "-q", "-p", python, *what]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def versions(python):
    listed = subprocess.check_output([UV, "pip", "list", "-q", "-p", python, "--format", "json"])
    return {package["name"]: Version(package["version"]) for package in json.loads(listed)}


def runs(python, folder, *settings, out="run"):
    """A run from Python, and the default one for two rounds, whose test accuracy is in its folder."""
    assert str(python.parents[1]) in call(folder, python, "-c", RUN)
    two = ("--set", "rounds=2", "beside=null", *settings, "--out", out)
    call(folder, python.parent / "fedpart", "run", "quickstart", *two)
    summary = json.loads((folder / out / "summary.json").read_text())
    assert summary["rounds"] == 2 and 0 <= summary["test_accuracy"] <= 1


def commands(python, folder, *words):
    """What several commands end with and say, all of them in one process."""
    given = [python, "-c", MAIN, json.dumps([each.split() for each in words])]
    done = subprocess.run(given, cwd=folder, env=outside(), capture_output=True, text=True)
    return [int(line) for line in done.stdout.splitlines() if line.isdigit()], done.stderr


def test_pip_keeps_the_oldest_torch_and_the_oldest_of_all_pass_tests(tmp_path):
    """In one environment: the oldest of all take the place of what pip has added."""
    python, others = environment(tmp_path, "--seed"), free(tmp_path)
    pair = {name: OLDEST[name] for name in ("torch", "torchvision")}
    install(python, *(f"{name}=={version}.*" for name, version in pair.items()))
    before = versions(python)
    call(tmp_path, python, "-m", "pip", "install", "-q", "--no-compile", "-c", others, ROOT)
    after = versions(python)
    assert {name: after[name] for name in pair} == {name: before[name] for name in pair}
    runs(python, tmp_path, "engine=local")

    oldest = ["--upgrade", "--resolution", "lowest-direct", "-c", others]
    install(python, *oldest, "-r", ROOT / "pyproject.toml", *TOOLS)
    installed = versions(python)
    lowest = {name: (*Version(bound).release, 0)[:2] for name, bound in OLDEST.items()}
    newer = [name for name, bound in lowest.items() if installed[name].release[:2] != bound]
    assert not newer, "lower bounds that nobody has tried"
    runs(python, tmp_path, out="oldest")
    tests = [ROOT / "tests" / "fedpart" / name for name in CORE]
    call(ROOT, python.parent / "pytest", "-n0", "-p", "no:cacheprovider", "-m", "not slow", *tests)


def test_without_extras_a_command_says_which_it_needs_and_with_all_of_them_every_one_runs(tmp_path):
    (tmp_path / "pins.txt").write_text("\n".join(PINS))
    python, wheel = environment(tmp_path), build_wheel(tmp_path)
    fedpart = python.parent / "fedpart"
    install(python, "-c", tmp_path / "pins.txt", wheel)
    others = {"cryptography", "httpx", "jinja2", "narwhals"}  # Flower, torch and scikit-learn bring these
    assert EXTRAS & set(versions(python)) == others
    runs(python, tmp_path)
    assert not list((tmp_path / "run").glob("*.png"))
    assert "fedpart[onnx]" in call(tmp_path, fedpart, "export", "--help")
    needing = {
        "report run": 'matplotlib: pip install "fedpart[pictures]".',
        "export run --format onnx": 'onnxscript: pip install "fedpart[onnx]".',
        "search search_quickstart": 'optuna: pip install "fedpart[search]".',
        "up quickstart": 'psutil: pip install "fedpart[deployment]".',
    }
    ended, said = commands(python, tmp_path, *needing)
    assert ended == [2] * len(needing), said
    for line, wanted in zip(said.splitlines(), needing.values(), strict=True):
        assert line.endswith(f" needs {wanted}"), said

    install(python, "-c", tmp_path / "pins.txt", f"fedpart[all] @ {wheel.as_uri()}")
    assert set(versions(python)) >= EXTRAS
    whole, few = f"--set {' '.join(LOCAL)}", "--set rounds=2 search.trials=2 search.min_rounds=1"
    ended, said = commands(
        python, tmp_path,
        f"run quickstart {whole} --out whole", "report whole", "export whole --format onnx",
        f"search search_quickstart --out search {few}",
    )  # fmt: skip
    assert ended == [0] * 4, said
    assert list((tmp_path / "whole").glob("*.png"))
    for file in ("whole/report.html", "whole/model.onnx", "search/search.json"):
        assert (tmp_path / file).stat().st_size
