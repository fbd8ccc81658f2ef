"""Files that are replaced as a whole, and what is there when the writer dies."""

import os

import pytest

from fedpart.training.files import kept, previous_of, replace


class Death(BaseException):
    pass


def without_links(*_):
    raise OSError("Operation not supported")


def save(path, content):
    replace(path, lambda file: file.write(content), previous_of(path))


@pytest.mark.parametrize("last", ["unlink", "link", "replace"])
def test_the_file_is_there_whenever_the_writer_dies(tmp_path, monkeypatch, last):
    path = tmp_path / "run.pt"
    for content in (b"one", b"two"):
        save(path, content)

    def die(*_, **__):
        raise Death

    monkeypatch.setattr(os, last, die)
    with pytest.raises(Death):
        save(path, b"three")
    monkeypatch.undo()
    assert path.read_bytes() == b"two"
    save(path, b"four")
    assert [file.read_bytes() for file in kept(path)] == [b"four", b"two"]


def test_a_file_system_without_links_keeps_the_previous_one_too(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", without_links)
    path = tmp_path / "run.pt"
    for content in (b"one", b"two", b"three"):
        save(path, content)
    assert [file.read_bytes() for file in kept(path)] == [b"three", b"two"]
