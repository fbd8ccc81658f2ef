"""Images as a network takes them: pixels between 0 and 1, normalised where the run says so."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.data.image_dataset import Colour, ImageDataset
from fedpart.data.image_files import EXTENSIONS, UNREAD, unread
from fedpart.data.preprocessing.base import Preprocessing
from fedpart.data.reading import IMAGE_BYTES, Limits, regular_files


class Pictures(Preprocessing, kind="images"):
    """Pixels ``[n, c, h, w]``, uint8 from 0 to 255, become inputs ``[n, c, h, w]`` float32: divided by 255,
    less a mean and over a deviation of each channel. Before that, :meth:`inputs` reads files as
    :func:`.pixels` does.

    Args:
        state: ``size`` and ``colour``, see :func:`.pixels`; ``mean`` and ``std`` of each channel, or None;
            ``shape`` of one image where it is known.
    """

    @classmethod
    def of(cls, size: int | None, colour: Colour) -> "Pictures":
        """That of a loader of images in files."""
        return cls({"kind": "images", "size": size, "colour": colour, "mean": None, "std": None})

    def completed(self, shape: Sequence[int], normalise: Any = None) -> "Pictures":
        """The same for images of a ``shape``, (c, h, w), and followed by :func:`.normalised`, where there is
        a ``mean`` and ``std`` of each channel."""
        moments = {} if normalise is None else {"mean": [*normalise.mean], "std": [*normalise.std]}
        return type(self)({**self.state, **moments, "shape": [*shape]})

    def forward(self, pixels: Tensor) -> Tensor:
        """Inputs of uint8 pixels; of floating-point ones, which are in [0, 1] already, too."""
        images = pixels if pixels.is_floating_point() else pixels.float() / 255
        if self.state["mean"] is None:
            return images
        shift, scale = (torch.tensor(self.state[name]).view(-1, 1, 1) for name in ("mean", "std"))
        return (images - shift) / scale

    def inputs(self, given: Any) -> Tensor:
        """Inputs of an image's file, or of all images in a folder and below, by their paths in order; or of
        pixels ``[n, c, h, w]`` or ``[c, h, w]``, uint8, or in [0, 1] where the run does not normalise.

        Raises:
            ValueError: it is none of these, or has another size than in training.
        """
        if isinstance(given, (str, Path)):
            what, images = f"The images in {given}", self._read(files_of(given))
        else:
            what, images = "The pixels", _pixels(given)
            unsaid = "Real numbers may be pixels in [0, 1], or normalised ones"
            told = not images.is_floating_point() or self.state["mean"] is None
            require(told, f"{unsaid}; give uint8 pixels or a file, or inputs as a Dataset.")
        shape = self.state.get("shape") or list(images.shape[1:])
        if list(images.shape[1:]) != shape:
            raise ValueError(
                f"{what} are {list(images.shape[1:])}, but the network was trained on {shape}; bring them to "
                f"that size, or train with data_options: {{size: {shape[-1]}}}."
            )
        result: Tensor = self(images)
        return result

    def _read(self, files: Sequence[Path]) -> Tensor:
        limits = Limits(file=IMAGE_BYTES)
        read = ImageDataset(
            lambda place: limits.image(limits.read(files[place])),
            torch.zeros(len(files), dtype=torch.int64),
            size=self.state["size"],
            colour=self.state["colour"],
            name=lambda place: str(files[place]),
            limits=limits,
        )
        images: Tensor = read.inputs
        return images

    def example(self, rows: int) -> Tensor:
        """Random pixels."""
        drawn = torch.Generator().manual_seed(0)
        return torch.randint(0, 256, (rows, *self.state["shape"]), generator=drawn, dtype=torch.uint8)


def _pixels(given: Any) -> Tensor:
    """Images ``[n, c, h, w]`` that are given as pixels, uint8 or in [0, 1]."""
    kind = f"the {type(given).__name__}"
    wanted = "a file, a folder, or pixels [n, c, h, w], uint8 or between 0 and 1"
    try:
        images = given if isinstance(given, Tensor) else torch.from_numpy(np.array(given))
    except (TypeError, ValueError) as error:
        raise ValueError(f"Images are {wanted}, got {kind}; give one of them.") from error
    reals = images.is_floating_point() and len(images) and images.min() >= 0 and images.max() <= 1
    fitting = images.ndim in (3, 4) and (images.dtype == torch.uint8 or reals)
    got = f"{kind} {[*images.shape]} of {str(images.dtype).removeprefix('torch.')}"
    require(bool(fitting), f"Images are {wanted}, got {got}; bring it to that form.")
    images = images.float() if reals else images
    return images[None] if images.ndim == 3 else images


def files_of(given: Any) -> list[Path]:
    """An image's file, or those in a folder and below it, sorted. A ValueError: there are none, or one is in
    a format that is not read."""
    root, kinds = Path(given), ", ".join(EXTENSIONS)
    require(root.exists(), f"There is no file or folder {root}; name one of images.")
    if root.is_file():
        packed = f"{root} is no image by its name ({kinds}); name one, or a folder (unpack an archive first)."
        require(root.name.lower().endswith(EXTENSIONS), packed)
        return [root]
    files = sorted(Path(name) for name in regular_files(root))
    for file in files:
        require(UNREAD.fullmatch(file.suffix) is None, unread(str(file)))
    files = [file for file in files if file.name.lower().endswith(EXTENSIONS)]
    require(files, f"There are no images in {root} ({kinds}); name another folder.")
    return files
