"""What a source of images holds, from its listing alone: cheap enough to ask whether it has changed."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path

from fedpart.data.images.files import open_source


def image_listing(data_dir: str | Path) -> dict[str, dict[str, int]]:
    """Bytes of the images in a folder or zip file, by folder and name: ``{"train/owl": {"3.png": 612}}``.

    The folder is the class's, the name is what lies below it. Nothing is decoded. A folder and a zip file of
    it have the same listing, wherever they lie.

    Args:
        data_dir: as :func:`.load_image_folder` takes it.

    Raises:
        FileNotFoundError, ValueError: as ``load_image_folder``.
    """
    source = open_source(data_dir)
    found: dict[str, dict[str, int]] = {}
    for _, path in itertools.chain.from_iterable(source.parts().values()):
        names = path.split("/")
        folder, name = ("/".join(part) for part in (names[: source.level + 1], names[source.level + 1 :]))
        found.setdefault(folder, {})[name] = source.size(path)
    return found


def listing_digest(files: Mapping[str, int]) -> str:
    """Short hash of names and sizes, in whatever order: 16 hex digits."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()[:16]
