"""Image files in a folder or a zip file: where they lie, how they are read, which class each belongs to."""

import hashlib
import itertools
import json
import os
import re
import sys
import threading
import warnings
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedpart.data.cells import plain
from fedpart.data.reading import FORMATS, Limits, is_hidden, real_place, refuse_twice, regular, walk

EXTENSIONS = tuple(FORMATS)
UNREAD = re.compile(  # what other programs call images
    r"\.(apng|arw|avifs?|blp|bw|cr[23]|cur|dcm|dds|dib|dng|emf|eps|exr|fits?|hdr|hei[cf]|hif|icns|ico|j2[ck]|jp2"
    r"|jp[fx]|jxl|mpo|nef|orf|pcx|pfm|psd|qoi|raf|ras|raw|rgb|rw2|sgi|svgz?|tga|wbmp|wmf|xbm|xcf|xpm)",
    re.IGNORECASE,
)
LAYOUT = "train/CLASS/image.jpg and test/CLASS/image.jpg, or CLASS/image.jpg alone"
CLIENT_LAYOUT = LAYOUT.replace("CLASS", "CLIENT/CLASS")
PARTS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid"),
    "test": ("test", "testing"),
}
_NAMED = {alias: part for part, aliases in PARTS.items() for alias in aliases}


def _part(path: str) -> str:
    """The part in whose folder a path lies; empty: in none."""
    return _NAMED.get(path.partition("/")[0].casefold(), "")


def unread(place: str) -> str:
    """What is said of an image in another format."""
    return f"{place} is in a format not read ({', '.join(EXTENSIONS)} are); save it as PNG, or remove it."


def check_aliases(root: str | Path, folders: Iterable[str]) -> None:
    """Refuse two folders for one part, such as val and validation, which would be one set."""
    for part, names in PARTS.items():
        both = sorted((f for f in folders if f.casefold() in names), key=lambda f: names.index(f.casefold()))
        if len(both) > 1:
            raise ValueError(f"{root} has {both[0]} and {both[1]} for one part, {part}; move one away.")


class ImageSource(ABC):
    """Images and folders by their path in a source, hidden ones left out; folders above them that contain
    nothing else are no part of a path."""

    def __init__(self, root: Path) -> None:
        self.root, self._above = root, ""
        files, folders = self._listed()
        files = sorted(name for name in files if not is_hidden(name))
        self.images = [name for name in files if name.lower().endswith(EXTENSIONS)]
        self._unread = [name for name in files if UNREAD.fullmatch(os.path.splitext(name)[1])]
        self.folders = {folder for folder in folders if not is_hidden(folder)}
        while all(name.count("/") > 1 for name in self.images):
            top = {folder.partition("/")[0] for folder in self.folders}
            if len(top) != 1:
                break
            above = f"{top.pop()}/"
            self._above += above
            self.images = [name.removeprefix(above) for name in self.images]
            self._unread = [name.removeprefix(above) for name in self._unread]
            self.folders = {folder.removeprefix(above) for folder in self.folders if folder + "/" != above}

    def place(self, path: str) -> str:
        """Where an image or a folder lies, for people."""
        return f"{self.root}/{self._above}{path}"

    @abstractmethod
    def read(self, path: str, limits: Limits) -> bytes:
        """The content of an image."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Bytes of an image, as they are when it is not compressed."""

    @property
    def level(self) -> int:
        """Of the classes' folders: 1, in ``train/`` and the like, or 0."""
        top = {folder for folder in self.folders if "/" not in folder}
        deep = {name.split("/")[0].casefold() for name in self.images if name.count("/") > 1}
        other = {_part(folder) for folder in deep}  # where no other part lies beside it, Train is a class
        alone = all(map(_part, top)) or len(other - {""}) > 1
        return int(any(n in top or (n in deep and alone) for n in PARTS["train"]))

    def parts(self, by_client: bool = False) -> dict[str, list[tuple[str, str]]]:
        """(class, path) of the images of the parts train, validation and test, sorted by both; with
        ``by_client`` each class's folder lies in a client's."""
        layout = CLIENT_LAYOUT if by_client else LAYOUT
        parts: dict[str, list[tuple[str, str]]] = {part: [] for part in PARTS}
        level = self.level
        if level:
            odd = sorted({name.partition("/")[0] for name in self.images if "/" in name and not _part(name)})
            if odd:
                beside = f"the folder {odd[0]!r} beside its training images"
                raise ValueError(f"{self.root} has {beside}; the layout is {layout}.")
            check_aliases(self.place("").rstrip("/"), sorted(self.folders))
        for name in self._unread:
            path = name.split("/")
            if len(path) > level + 1 + by_client and (not level or _part(name)):
                raise ValueError(unread(self.place(name)))
        left_out = list[str]()
        for name in self.images:
            path = name.split("/")
            if len(path) > level + 1 + by_client:
                parts[_part(name) if level else "train"].append((plain(path[level + by_client]), name))
            else:
                left_out.append(self.place(name))
        if self.images:
            self._check_folders(by_client)
        classes = len({label for label, _ in parts["train"]})
        if classes < 2:
            raise ValueError(
                f"{self.root} has training images of {classes or 'no'} class{'' if classes == 1 else 'es'}; "
                f"at least two are needed, a folder each: {layout} ({', '.join(EXTENSIONS)})."
            )
        if left_out:
            of = f"{len(left_out)} of {len(self.images)} images" if len(left_out) > 1 else "an image"
            told = f"{self.root}: {of} left out, for lack of a class's folder around it: {left_out[0]}."
            warnings.warn(told, stacklevel=1)  # of one place, so once
        return {part: sorted(files) for part, files in parts.items()}

    def client(self, path: str) -> str:
        """Whose an image is, where clients have a folder each."""
        return plain(path.split("/")[self.level])

    def _check_folders(self, by_client: bool) -> None:
        """Refuse a part and a class, or a client, that would be missing without a word."""
        level = self.level
        above = level + by_client
        full = {folder for name in self.images for folder in _above(name) if name.count("/") > above}
        for folder in sorted(self.folders - full):
            ours = not level or _part(folder)
            if ours and folder.count("/") <= level:
                fault = f"There are no readable images in {self.place(folder)}"
                raise ValueError(f"{fault} ({', '.join(EXTENSIONS)}); add some, or remove the folder.")

    @abstractmethod
    def _listed(self) -> tuple[Iterable[str], Iterable[str]]:
        """Paths of all files and of all folders, from the root."""


class Folder(ImageSource):
    """Images below a folder."""

    def _listed(self) -> tuple[Iterable[str], Iterable[str]]:
        files, folders, seen = list[str](), list[str](), dict[str, str]()
        for above, real, below, names in walk(self.root):
            for name in names:
                path = os.path.join(above, name)
                if name.lower().endswith(EXTENSIONS) and os.path.exists(path):
                    place = None if os.path.islink(path) else os.path.join(real, name)
                    refuse_twice(path, real_place(path, place), seen)
            here = Path(above).relative_to(self.root)
            files += [(here / name).as_posix() for name in names]
            folders += [(here / name).as_posix() for name in below]
        return files, folders

    def read(self, path: str, limits: Limits) -> bytes:
        return limits.read(self.place(path))

    def size(self, path: str) -> int:
        return regular(self.place(path))


class Zip(ImageSource):
    """Images in a zip file."""

    def __init__(self, root: Path) -> None:
        self._lock = threading.Lock()
        self._opened: tuple[int, zipfile.ZipFile] | None = None
        super().__init__(root)

    def _listed(self) -> tuple[Iterable[str], Iterable[str]]:
        names = self._file().namelist()
        files = {name for name in names if not name.endswith("/")}
        folders = {name.rstrip("/") for name in names if name.endswith("/")}
        return files, folders.union(*map(_above, files | folders))

    def read(self, path: str, limits: Limits) -> bytes:
        try:
            limits.check("file", self.size(path), "it")
            with self._file().open(self._above + path) as file:
                return limits.content(file, "it")
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"damaged in the zip file: {error}") from error
        except RuntimeError as error:  # encrypted, or compressed in a way that Python does not know
            raise ValueError(f"unpack the zip file: {error}") from error

    def size(self, path: str) -> int:
        return self._file().getinfo(self._above + path).file_size

    def _file(self) -> zipfile.ZipFile:
        """Open in this process: a forked one must not share the place in the file."""
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = os.getpid(), zipfile.ZipFile(self.root)
            return self._opened[1]


def open_source(data_dir: str | Path) -> ImageSource:
    """The images in a folder or a zip file."""
    root = Path(data_dir).expanduser()
    if root.is_dir():
        return Folder(root)
    if not root.exists():
        remedy = f"set data_dir to a folder or zip file with {LAYOUT}"
        raise FileNotFoundError(f"There are no images: {root} does not exist; {remedy}.")
    Limits(file=sys.maxsize).file_size(root)
    try:
        return Zip(root)
    except zipfile.BadZipFile:
        what = "neither a folder nor a complete zip file"
        raise ValueError(f"{root} is {what}; set data_dir to one of them.") from None


def image_listing(data_dir: str | Path) -> dict[str, dict[str, int]]:
    """Bytes of the images in a folder or zip file, by the class's folder and the name below it, the same for
    both: ``{"train/owl": {"3.png": 612}}``. Nothing is decoded."""
    source = open_source(data_dir)
    listing: dict[str, dict[str, int]] = {}
    for _, path in itertools.chain.from_iterable(source.parts().values()):
        names = path.split("/")
        folder, name = ("/".join(part) for part in (names[: source.level + 1], names[source.level + 1 :]))
        listing.setdefault(folder, {})[name] = source.size(path)
    return listing


def listing_digest(files: Mapping[str, int]) -> str:
    """Short hash of names and sizes, in whatever order: 16 hex digits."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()[:16]


def _above(path: str) -> set[str]:
    """All folders that a path leads through."""
    return {path[:end] for end, letter in enumerate(path) if letter == "/"}
