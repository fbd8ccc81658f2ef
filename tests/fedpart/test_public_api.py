"""The library stands on torch and numpy alone, and says what it offers."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedpart

FOLDER = Path(fedpart.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))
FOREIGN = (
    "flwr", "ray", "torchvision", "sklearn", "yaml", "pydantic", "safetensors", "typer", "rich", "matplotlib",
    "scipy", "pandas", "laplace", "server", "client", "simulations",
)  # fmt: skip

# What a room needs besides torch and numpy: as it is imported, and when it is used.
AT_ONCE = {
    "flower": {
        *("flwr", "cryptography", "fastapi", "google", "httpx", "psutil"),  # google: protobuf
        *("sqlalchemy", "starlette", "uvicorn"),
    },
    "kernels": {"numba", "llvmlite", "triton"},
}
LATER = {
    "data": {"PIL", "datasets", "pyarrow", "sklearn", "torchvision"},
    "methods": {"laplace"},
    "loggers": {"PIL"},
    "nn": {"peft", "torchmetrics", "torchvision", "transformers"},
}

BLOCKED = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {foreign!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
import torch
torch.set_num_threads(1)
import fedpart, fedpart.data, fedpart.nn.models, fedpart.engines, fedpart.methods
from fedpart.nn.models import digits_cnn
shard = (torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))
task = fedpart.Task(digits_cnn(input_shape=(1, 8, 8)), transforms=[fedpart.AffineAugmentation()], samples=2)
result = fedpart.federate(task, [shard] * 4, rounds=1, chunks=(0.5, 0.5))
assert result.predict(shard[0]).shape == (4, 10)
assert not set({foreign!r}) & {{name.partition(".")[0] for name in sys.modules}}
print("ok")
"""


@pytest.mark.slow
def test_it_runs_where_nothing_else_is_installed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(foreign=FOREIGN)],
        env={"PYTHONPATH": str(FOLDER.parent), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "ok", done.stderr


def imports(nodes):
    """Top-level package of every import among ``nodes``; relative ones are fedpart's own."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "fedpart" if node.level else node.module.partition(".")[0]


def executed_on_import(tree):
    """All statements but those in functions and under ``if TYPE_CHECKING``."""
    todo = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def test_import_graph():
    wrong = []
    for file in FILES:
        path, tree = file.relative_to(FOLDER), ast.parse(file.read_text())
        allowed = {"fedpart", "torch", "numpy", *sys.stdlib_module_names} | AT_ONCE.get(path.parts[0], set())
        later = allowed | LATER.get(path.parts[0], set())
        wrong += [f"{path}: {name}" for name in set(imports(executed_on_import(tree))) - allowed]
        wrong += [f"{path}: {name}, later" for name in set(imports(ast.walk(tree))) - later]
    assert not wrong


def test_names():
    for name in ("Task", "Partition", "ParameterSpace", "Method", "AffineAugmentation", "ConcreteDropout"):
        assert inspect.isclass(getattr(fedpart, name))
    assert callable(fedpart.federate)
    assert fedpart.__all__ == sorted(fedpart.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n))
    assert all(hasattr(fedpart, name) for name in fedpart.__all__)


def public_objects():
    for info in pkgutil.walk_packages([str(FOLDER)], "fedpart."):
        module = importlib.import_module(info.name)
        yield info.name, module
        for name, thing in vars(module).items():
            own = getattr(thing, "__module__", None) == info.name
            if name.startswith("_") or not own or not (inspect.isclass(thing) or inspect.isfunction(thing)):
                continue
            yield f"{info.name}.{name}", thing
            if inspect.isclass(thing):
                for method, member in vars(thing).items():
                    plain = getattr(member, "fget", None) or getattr(member, "__func__", member)
                    if not method.startswith("_") and inspect.isfunction(plain):
                        yield f"{info.name}.{name}.{method}", getattr(thing, method)


def test_everything_public_is_documented():
    """Methods may inherit the text of what they override."""
    objects = dict(public_objects())
    assert len(objects) > 100
    missing = [
        name
        for name, thing in objects.items()
        if not inspect.getdoc(thing) and not name.endswith((".forward", ".extra_repr"))
    ]
    assert not missing
