"""The door of the kernels: what it gives, where it gives nothing, and when machine code is made anew."""

import ctypes
import os
import platform
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numba
import pytest
import torch

import fedpart
from fedpart.kernels import (
    compiling,
    door,
    keep_freed_memory,
    look_up_kernel,
    pooled_convolution_kernel,
    pooling_kernel,
    random_bits_kernel,
)

FOLDER = Path(fedpart.__file__).parent
IMAGES = torch.zeros(16, 4, 4, 2).permute(0, 3, 1, 2)
ASKED = {
    "random bits": random_bits_kernel.__wrapped__,
    "look up": look_up_kernel.__wrapped__,
    "pooling": lambda: pooling_kernel(IMAGES),
    "pooled convolution": lambda: pooled_convolution_kernel(
        torch.float32, IMAGES, torch.zeros(3, 2, 3, 3), torch.zeros(3)
    ),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("installed", [True, False])
def test_there_is_none_where_numba_is_not_or_may_not_compile(asked, installed, monkeypatch):
    """NUMBA_DISABLE_JIT says that nothing is compiled."""
    monkeypatch.setattr(door, "compiles", compiling.compiles.__wrapped__)
    assert asked() is not None or asked is ASKED["pooled convolution"]  # not on every processor
    if installed:
        monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    else:
        monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    assert asked() is None


def test_there_is_none_for_other_types_and_devices():
    assert pooling_kernel(IMAGES.double()) is None
    assert pooling_kernel(IMAGES.to("meta")) is None


@pytest.mark.slow
def test_numba_is_imported_when_a_kernel_is_asked_for():
    says = "print('numba' in sys.modules)"
    asks = f"import sys, fedpart, fedpart.nn.layers; {says}; fedpart.kernels.random_bits_kernel(); {says}"
    told = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "True"]


def test_nobody_enters_but_by_the_door():
    """And kernels import nothing of the library but each other."""
    inside = FOLDER / "kernels"
    inner = r"from fedpart\.kernels import .*\b(door|compiling|convolution)\b"
    entering = re.compile(rf"fedpart\.kernels\.\w|{inner}")
    for file in FOLDER.rglob("*.py"):
        if file.is_relative_to(inside):
            imported = re.findall(r"^\s*(?:from|import) (fedpart\S*)", file.read_text(), re.MULTILINE)
            assert all(name.startswith("fedpart.kernels") for name in imported), file
        else:
            assert not entering.search(file.read_text()), file


def test_machine_code_is_made_anew_when_another_kernel_changes(tmp_path, monkeypatch):
    names = []
    monkeypatch.setattr(compiling, "_ROOM", tmp_path)
    (tmp_path / "own_kernels.py").write_text("def kernel(out):\n    out[0] = 1\n")
    for text in ("1", "2", "1"):
        (tmp_path / "other_kernels.py").write_text(text)
        compiling._version.cache_clear()
        own = runpy.run_path(str(tmp_path / "own_kernels.py"))
        names.append(compiling.jit(own["kernel"]).py_func.__qualname__)
    compiling._version.cache_clear()
    assert names[0] == names[2] != names[1]


VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")

STEPS = """
import ctypes, resource, runpy, sys

if sys.argv[2] == "kept":
    runpy.run_path(sys.argv[1])["keep_freed_memory"]()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes, library.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]

def step():
    pieces = [library.malloc(2**24) for _ in range(8)]
    for piece in pieces:
        ctypes.memset(ctypes.c_void_p(piece), 1, 2**24)
    for piece in pieces:
        library.free(piece)

step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how, **variables):
    """Pages that the system has to find for the third of three equal steps in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | variables
    command = [sys.executable, "-c", STEPS, compiling.__file__, how]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def test_the_next_step_finds_freed_memory_where_it_was():
    ordinary, kept = faults("ordinary"), faults("kept")
    assert kept < ordinary / 10 if platform.libc_ver()[0] == "glibc" else kept <= ordinary


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "name, value",
    list(zip(VARIABLES, ("131072", "131072", "glibc.malloc.trim_threshold=131072"), strict=True)),
)
def test_what_the_environment_says_stands(name, value):
    assert faults("kept", **{name: value}) >= faults("ordinary", **{name: value}) / 2


@pytest.mark.parametrize("error", [OSError, TypeError, AttributeError])
def test_another_c_library_is_left_alone(error, monkeypatch):
    def missing(name):
        raise error

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    keep_freed_memory.__wrapped__()
