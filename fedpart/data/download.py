"""Downloads by torchvision: a line before, one sentence where they fail, and nothing left behind."""

import contextlib
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TIMEOUT = 30.0  # seconds without an answer


def refuse_outside(folder: Path, absence: str) -> None:
    """Refuse to create a folder that lies outside of the current one; ``absence`` begins the sentence."""
    if not folder.exists() and not folder.resolve().is_relative_to(Path.cwd().resolve()):
        raise FileNotFoundError(
            f"{absence}, and there is no folder {folder} to download into: none is created outside of the "
            f"current folder; create it, or set data_dir to another."
        )


def download_files(
    fetch: Callable[[], Any], name: str, folders: Sequence[Path], absence: str, remedy: str
) -> Any:
    """What ``fetch`` returns; a line on the standard error says that it begins, which may be slow and silent.

    Args:
        fetch: downloads.
        name: of the data set.
        folders: that it may create, the innermost first, the last is the one it downloads into; new ones that
            stay empty are removed if it fails.
        absence: what is missing, the beginning of a sentence.
        remedy: what to do about it, its end.
    """
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
