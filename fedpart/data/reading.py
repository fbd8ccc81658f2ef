"""Files from elsewhere, read so that none takes the machine down: regular ones, each once, within limits."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import socket
import stat
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedpart.checks import require
from fedpart.registry import nearest

_PACKED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
FORMATS = {f".{kind.lower()}": kind for kind in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")}
FORMATS |= dict.fromkeys((".jfif", ".jpe", ".jpg"), "JPEG") | dict.fromkeys((".pbm", ".pgm", ".pnm"), "PPM")
FORMATS = dict(sorted({**FORMATS, ".tif": "TIFF"}.items()))
"""What Pillow may read, by the extension of files that hold it; none of them starts another program."""


class LimitError(ValueError):
    """Data take more than a limit; the message says which may be raised."""


@dataclass(frozen=True)
class Limits:
    """What data may take, raised by ``data_options: {limits: {pixels: 200000000}}``.

    Attributes:
        file: bytes of a file, as it is when it is not compressed.
        total: bytes of all files, and of a part's examples in memory.
        pixels: of an image before it is scaled.
    """

    file: int = 2**30
    total: int = 2**35
    pixels: int = 50_000_000

    @classmethod
    def of(cls, raised: Mapping[str, int] | None, file: int = 2**30) -> "Limits":
        """The usual ones but for those that are ``raised``, and for ``file``, which is of images less."""
        known = [each.name for each in fields(cls)]
        fault = f"data_options.limits is a mapping such as {{pixels: 200000000}}, got {raised!r}"
        require(raised is None or isinstance(raised, Mapping), f"{fault}; correct it.")
        for name, most in (raised or {}).items():
            if name not in known:
                raise ValueError(f"data_options.limits has no {name!r}: {nearest(str(name), known)}")
            fault = f"data_options.limits.{name} is a whole number, 1 or more, got {most!r}"
            whole = isinstance(most, int) and not isinstance(most, bool)
            require(whole and most >= 1, f"{fault}; correct it.")
        return cls(**{"file": file, **(raised or {})})

    def check(self, name: str, amount: int, what: str) -> None:
        """Refuse an ``amount`` of ``what`` beyond a limit: a :class:`LimitError` says which may be raised."""
        if amount > getattr(self, name):
            unit = "pixels" if name == "pixels" else "bytes"
            remedy = f"if you trust it, raise data_options.limits.{name}, else remove it"
            raise LimitError(f"{what} has more than {getattr(self, name):,} {unit}; {remedy}.")

    def file_size(self, path: str | Path) -> int:
        """Bytes of a regular file; a ValueError for what is none, and for too many."""
        size = regular(path)
        self.check("file", size, str(path))
        return size

    def read(self, path: str | Path) -> bytes:
        """The content of a regular file; raises what :meth:`file_size` does, also if it grows meanwhile."""
        self.file_size(path)
        with open(path, "rb") as file:
            return self.content(file, str(path))

    def content(self, file: Any, name: str) -> bytes:
        """What an open file holds, of which no more than a byte beyond the limit is read or unpacked."""
        held: bytes = file.read(self.file + 1)
        self.check("file", len(held), name)
        return held

    def image(self, source: bytes | str, name: str = "it") -> Any:
        """The PIL image in a file, or its bytes, in one of :data:`FORMATS`; ``name`` is for messages."""
        from PIL import Image, UnidentifiedImageError

        formats = sorted({*FORMATS.values()})
        if Image.MAX_IMAGE_PIXELS is not None:  # Pillow's own, which cannot be said for one image
            Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, self.pixels)
        try:
            file = source if isinstance(source, str) else io.BytesIO(source)
            image = Image.open(file, formats=formats)
        except UnidentifiedImageError as error:
            raise ValueError(f"{name} is not an image in {', '.join(formats)}; remove it.") from error
        except Image.DecompressionBombError:
            self.check("pixels", self.pixels + 1, name)
            raise
        self.check("pixels", image.width * image.height, name)
        if image.format != "MPO":  # a camera's JPEG, whose first picture is the one, with previews behind it
            with suppress(EOFError):
                image.seek(1)
                fault = f"{name} holds several pictures, of which the first alone would be used"
                raise ValueError(f"{fault}; save each in a file, or remove it.")
        return image


USUAL, IMAGE_BYTES = Limits(), 2**28


def walk(root: str | Path, once: bool = True) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Every folder below one, through links, without what is hidden: its path, where that really is, the
    names of its folders, and of its files. A folder that two paths lead to is refused, or without ``once``
    left out."""
    seen = {str(folder): str(folder) for folder in Path(root).resolve().parents}
    for above, below, names in os.walk(root, followlinks=True):
        below[:] = [name for name in below if not is_hidden(name)]
        real = os.path.realpath(above)
        if once or seen.get(real, above) == above:
            refuse_twice(above, real, seen)
            yield above, real, below, [name for name in names if not is_hidden(name)]
        else:
            below.clear()


def regular(path: str | Path) -> int:
    """Bytes of a regular file; raises what :meth:`Limits.file_size` does, but for what is too large."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is no regular file but a folder, pipe, device or socket; remove it.")
    return status.st_size


def regular_files(root: Path, once: bool = True) -> list[str]:
    """All files that a package finds which reads a whole folder, see :func:`walk`."""
    paths = [os.path.join(above, name) for above, _, _, names in walk(root, once) for name in names]
    paths = [path for path in paths if os.path.exists(path)]  # links to nothing are nobody's
    for path in paths:
        regular(path)
    return paths


def check_files(paths: Iterable[str | Path], limits: Limits, what: str) -> None:
    """Refuse files, together called ``what``, that would overwhelm a package; looks into what is packed."""
    total = 0
    for path in paths:
        total += limits.file_size(path)
        for name, size in _unpacked(path, limits.file):
            limits.check("file", size, name)
            total += size
        limits.check("total", total, what)


def _unpacked(path: str | Path, most: int) -> Iterator[tuple[str, int]]:
    """What is packed in a file and how many bytes it has; where only reading tells, up to ``most``."""
    with open(path, "rb") as file:
        head = file.read(6)
    if zipfile.is_zipfile(path):
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as packed:
            yield from ((f"{path}/{entry.filename}", entry.file_size) for entry in packed.infolist())
    for magic, unpack in _PACKED.items():
        if head.startswith(magic):
            size = 0
            with suppress(OSError, EOFError, lzma.LZMAError, zlib.error), unpack(path) as stream:
                while size <= most and (part := stream.read(2**20)):
                    size += len(part)
            yield str(path), size


def is_hidden(path: str) -> bool:
    """Whether a path leads through what is hidden, or what macOS adds to zip files."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))


def real_place(path: str | Path, real: str | None = None) -> str:
    """Where a file lies without links, symbolic or hard, which ``real`` says unless it has hard ones."""
    status = os.stat(path)
    if status.st_nlink > 1:
        return f"{status.st_dev}:{status.st_ino}"
    return os.path.realpath(path) if real is None else real


def refuse_twice(path: str | Path, real: str, seen: dict[str, str]) -> None:
    """Note in ``seen`` where a path really leads, and refuse another that leads there: examples would count
    twice."""
    if (other := seen.setdefault(real, str(path))) != str(path):
        raise ValueError(f"{path} and {other} are one by a link; remove the link, or examples count twice.")


TIMEOUT = 30.0  # seconds without an answer


def refuse_outside(folder: Path, absence: str) -> None:
    """Refuse to create a folder that lies outside of the current one; ``absence`` begins the sentence."""
    if not folder.exists() and not folder.resolve().is_relative_to(Path.cwd().resolve()):
        remedy = "none is created outside of the current folder; create it, or set data_dir to another"
        raise FileNotFoundError(f"{absence}, and there is no folder {folder} to download into: {remedy}.")


def download_files(
    fetch: Callable[[], Any], name: str, folders: Sequence[Path], absence: str, remedy: str
) -> Any:
    """What ``fetch`` returns, which may create ``folders``, the innermost first, and downloads into the last.
    If it fails, new ones that stay empty are removed, and the sentence from ``absence`` to ``remedy`` says
    so."""
    refuse_outside(folders[-1], absence)
    print(f"Downloading {name} into {folders[-1]}.", file=sys.stderr, flush=True)
    new = [folder for folder in folders if not folder.exists()]
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        return fetch()
    except (OSError, RuntimeError) as error:  # torchvision raises RuntimeError when every mirror has failed
        for folder in new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        cause = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise FileNotFoundError(f"{absence}, and the download failed ({cause}); {remedy}") from error
    finally:
        socket.setdefaulttimeout(before)
