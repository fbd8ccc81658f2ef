"""The network of a finished run in one's own code, as a type checker sees it."""

from pathlib import Path

from torch import Tensor

import fedpart


def classes(run: Path, images: Tensor) -> Tensor:
    """The classes ``[n]`` of ``images [n, ...]``, by the network that a run has left in its folder."""
    loaded = fedpart.load(run)
    print(loaded.psi, loaded.config["method"])
    return loaded.predict(images).argmax(1)
