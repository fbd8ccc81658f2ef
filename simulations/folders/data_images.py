"""Which images a run is made of: written down when it starts, compared when it goes on or counts as done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedpart.data import image_listing, listing_digest
from simulations.config.load import Config, ConfigError

IMAGES = "images.json"

Images = dict[str, dict[str, Any]]
"""``{"images": number, "digest": of names and sizes}`` by class."""


def listed_images(config: Config) -> Images | None:
    """The images that a configuration names, now; None: its data have a name that says what they are.

    Raises:
        FileNotFoundError, ValueError: they cannot be listed.
    """
    if config.data != "image_folder" or config.data_dir is None:
        return None
    return {
        label: {"images": len(files), "digest": listing_digest(files)}
        for label, files in image_listing(config.data_dir).items()
    }


class KnownImages(dict[tuple[str, str | None], Images | None]):
    """What several configurations are made of, each folder listed once; None where it cannot be listed."""

    def of(self, config: Config) -> Images | None:
        """As :func:`listed_images`, for runs that are done and need their data no more."""
        key = config.data, config.data_dir
        if key not in self:
            self[key] = None
            with suppress(OSError, ValueError):
                self[key] = listed_images(config)
        return self[key]


def changed_images(folder: Path, now: Images | None) -> list[str]:
    """How the images differ from those that a run started with: ``owl: 15 images there, 5 here``.

    Empty if they do not, or if it is not known: a run of an earlier version has not written it.

    Raises:
        ConfigError: ``images.json`` is damaged.
    """
    file = folder / IMAGES
    if now is None or not file.is_file():
        return []
    try:
        before, after = (
            {label: (entry["images"], entry["digest"]) for label, entry in images.items()}
            for images in (json.loads(file.read_text(encoding="utf-8")), now)
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read; delete {folder} and run it anew.") from error
    found = []
    for label in sorted(before.keys() | after.keys()):
        (there, old), (here, new) = (images.get(label, (0, "")) for images in (before, after))
        if there != here:
            found.append(f"{label}: {there or 'no'} images there, {here or 'none'} here")
        elif old != new:
            found.append(f"{label}: images of other names or sizes")
    return found


def refuse_changed_images(folder: str | Path, now: Images | None) -> None:
    """Refuse to continue a run on other images than it started with: a ConfigError that names the classes."""
    if found := changed_images(Path(folder), now):
        raise ConfigError(
            f"The images are not those that the run in {folder} started with ({in_short(found)}); bring them "
            f"back, or start a new run with --out."
        )


def in_short(differing: Sequence[str]) -> str:
    """The first three of some differences, and how many more there are."""
    more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
    return f"{', '.join(differing[:3])}{more}"
