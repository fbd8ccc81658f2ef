"""Images in files: decoded when they are first asked for, in several threads, to one size."""

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpart.data.dataset import Dataset, Indices, places_of
from fedpart.data.reading import USUAL, Limits

Colour = Literal["rgb", "grey"]
_MODES = {"rgb": "RGB", "grey": "L"}
_DEEP = re.compile(r";1[0-6][BLNRS]")  # of PIL's raw modes, as RGB;16B; BMP's BGR;16 are bits of a pixel
_TASK = 256  # images that a thread decodes at a time


class ImageDataset(Dataset):
    """A data set whose ``inputs`` are decoded when they are first asked for; a subset of it is one too, so
    what an experiment does not use is never decoded. ``read`` gives the PIL image with a number, from several
    threads, and ``name`` what messages call it."""

    _places: Tensor  # numbers of the images
    _read: Callable[[int], Any]
    _size: int | None
    _colour: Colour
    _name: Callable[[int], str]
    _limits: Limits

    def __init__(
        self, read: Callable[[int], Any], targets: Tensor, *, size: int | None = None, colour: Colour = "rgb",
        name: Callable[[int], str] = "image {}".format, clients: Tensor | None = None, limits: Limits = USUAL,
    ) -> None:  # fmt: skip
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"The size of images is a number of pixels, 1 or more, or null, got {size!r}.")
        if colour not in _MODES:
            raise ValueError(f"The colour of images is {' or '.join(_MODES)}, got {colour!r}.")
        of_all = {"_read": read, "_size": size, "_colour": colour, "_name": name, "_limits": limits}
        vars(self).update(of_all, groups=None)
        self._set(torch.arange(len(targets)), targets, clients)

    def __reduce__(self) -> Any:
        return Dataset, (self.inputs, self.targets, None, None, self.clients)

    def subset(self, indices: Indices) -> Dataset:
        """The examples at ``indices``, in that order; decoded only if these are."""
        if "inputs" in vars(self):
            return super().subset(indices)
        index = places_of(indices, len(self))
        clients = None if self.clients is None else self.clients[index]
        return self._at(self._places[index], self.targets[index], clients)

    def relabelled(self, targets: Tensor) -> Dataset:
        """The same images with other ``targets``; decoded only if these are."""
        if "inputs" in vars(self):
            return super().relabelled(targets)
        return self._at(self._places, targets, self.clients)

    def _at(self, places: Tensor, targets: Tensor, clients: Tensor | None) -> "ImageDataset":
        other = object.__new__(ImageDataset)
        vars(other).update(vars(self))
        other._set(places, targets, clients)
        return other

    def _set(self, places: Tensor, targets: Tensor, clients: Tensor | None) -> None:
        vars(self).update(_places=places, targets=targets, clients=clients)
        self._check_labels()

    @cached_property
    def inputs(self) -> Tensor:
        """All images, [n, c, h, w] float32 in [0, 1]."""
        places = self._places.tolist()
        if not places:
            return torch.empty(0, 3 if self._colour == "rgb" else 1, self._size or 0, self._size or 0)
        first = self._array(places[0])
        whole = f"The data set of {self._name(places[0])} in memory"
        self._limits.check("total", 4 * first.size * len(places), whole)
        images = torch.empty(len(places), *first.shape)

        def fill(rows: range) -> None:
            for row in rows:
                image = self._array(places[row])
                if image.shape != first.shape:
                    sizes = [f"{shape[2]}x{shape[1]}" for shape in (first.shape, image.shape)]
                    first_name, name = self._name(places[0]), self._name(places[row])
                    raise ValueError(
                        f"Images differ in size: {first_name} is {sizes[0]}, {name} is "
                        f"{sizes[1]}; give one size for all, for instance data_options: {{size: 32}}."
                    )
                images[row] = torch.from_numpy(image)

        rows = range(len(places))
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            list(pool.map(fill, (rows[start : start + _TASK] for start in rows[::_TASK])))  # or their error
        return images.div_(255)

    def _array(self, place: int) -> NDArray[np.uint8]:
        from PIL import Image

        damaged = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # PIL raises all of them
        try:
            image = self._read(place)
            self._limits.check("pixels", image.width * image.height, "it")
            return pixels(image, self._size, self._colour)
        except damaged as error:
            reason = " ".join(str(error).split()).rstrip(".")
            fault = f"{self._name(place)} cannot be read as an image ({reason})"
            raise ValueError(f"{fault}; repair or remove it.") from error


def pixels(image: Any, size: int | None, colour: Colour) -> NDArray[np.uint8]:
    """A PIL image as the network gets it, [c, h, w] uint8, but for the division by 255.

    It is turned upright as its camera says (EXIF), brought to ``colour``, and with a ``size`` scaled until
    its shorter side has that many pixels (bilinearly, averaging where it shrinks) and cropped in the middle.

    Args:
        image: of any size and mode with 8 bits per channel, more are refused; transparency is dropped.
        size: of both sides; None: as the image is.
        colour: ``rgb`` (3 channels) or ``grey`` (1: 0.299 R + 0.587 G + 0.114 B).
    """
    from PIL import Image, ImageOps

    if image.mode[0] in "IF" or _is_cut(image):
        fault = f"its mode {image.mode} has more than 8 bits per channel, which would be cut off"
        raise ValueError(f"{fault}: convert it")
    image = ImageOps.exif_transpose(image).convert(_MODES[colour])
    if size is not None and image.size != (size, size):
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    array = np.array(image, dtype=np.uint8)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def _is_cut(image: Any) -> bool:
    """Whether a file that is not yet decoded has more bits per channel than PIL's mode keeps."""
    for *_, options in getattr(image, "tile", ()):
        raw, *_, most = (options if isinstance(options, tuple) else (options,)) * 2  # PPM: the largest value
        if _DEEP.search(str(raw)) or (image.format == "PPM" and isinstance(most, int) and most > 255):
            return True
    return False
