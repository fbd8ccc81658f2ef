"""What the C library is told about memory."""

import ctypes

import pytest

from fedpart.kernels.memory import keep_freed_memory


class Library:
    def __init__(self):
        self.told = []

    def mallopt(self, option, value):
        self.told.append((option, value))


def test_large_pieces_and_free_memory_stay_on_the_heap(monkeypatch):
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    keep_freed_memory.__wrapped__()
    assert sorted(library.told) == [(-3, 2**25), (-1, 2**30)]  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


@pytest.mark.parametrize("error", [OSError, TypeError, AttributeError])
def test_another_c_library_is_left_alone(error, monkeypatch):
    def missing(name):
        raise error

    monkeypatch.setattr(ctypes, "CDLL", missing)
    keep_freed_memory.__wrapped__()


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_environment_says_stands(name, monkeypatch):
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setenv(name, "0")
    keep_freed_memory.__wrapped__()
    assert not library.told
