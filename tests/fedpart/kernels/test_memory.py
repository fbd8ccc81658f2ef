"""Memory that was freed is there for the next step, without the system's help."""

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from fedpart.kernels import keep_freed_memory, memory

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
    command = [sys.executable, "-c", STEPS, memory.__file__, how]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def test_the_next_step_finds_freed_memory_where_it_was():
    ordinary, kept = faults("ordinary"), faults("kept")
    assert kept < ordinary / 10 if platform.libc_ver()[0] == "glibc" else kept <= ordinary


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
