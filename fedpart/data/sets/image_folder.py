"""Images sorted into a folder per class (torchvision's ImageFolder layout), in a folder or a zip file."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedpart.data.dataset import Dataset, Splits
from fedpart.data.image_dataset import Colour, ImageDataset
from fedpart.data.image_files import CLIENT_LAYOUT, LAYOUT, ImageSource, open_source
from fedpart.data.loading import DATASETS
from fedpart.data.preprocessing.pictures import Pictures
from fedpart.data.reading import IMAGE_BYTES, Limits
from fedpart.data.splitting.hold_out import ClientHoldOut, HoldOut, with_held_out


@DATASETS.register("image_folder")
def load_image_folder(
    data_dir: str | None = None, *, size: int | None = None, colour: Colour = "rgb", validation: float = 0.1,
    test: float = 0.2, hold_out: HoldOut | ClientHoldOut = "random", clients: bool = False,
    limits: Mapping[str, int] | None = None, data_seed: int = 0,
) -> Splits:  # fmt: skip
    """A user's own images: ``train/CLASS/...`` and ``test/CLASS/...``, or ``CLASS/...`` alone.

    Classes are the folders' names in alphabetical order; images may lie in folders below them. A folder
    ``validation`` is taken as the validation set. What has no folder is held out from the training images:
    the test set first, then the validation set. Inputs are [n, 3 or 1, h, w] float32 in [0, 1], decoded when
    they are needed.

    Args:
        data_dir: the folder or the zip file; folders above these that contain nothing else do not matter.
        size, colour: see :func:`.pixels`; with no size all images must have the same.
        clients: whether each client has a folder, ``CLIENT/CLASS/...``, below ``train`` and ``test`` if there
            are these; the data set then knows its clients, numbered in alphabetical order.
        validation, test, hold_out, limits, data_seed: see :data:`.Loader`.
    """
    if data_dir is None:
        needs = "The data set 'image_folder' needs data_dir"
        raise FileNotFoundError(f"{needs}: a folder or zip file with {CLIENT_LAYOUT if clients else LAYOUT}.")
    most = Limits.of(limits, IMAGE_BYTES)
    source = open_source(data_dir)
    parts = source.parts(clients)
    sizes = (source.size(path) for files in parts.values() for _, path in files)
    most.check("total", sum(sizes), str(source.root))
    names = sorted({source.client(name) for files in parts.values() for _, name in files}) if clients else []
    numbers = {name: number for number, name in enumerate(names)}
    classes = sorted({label for label, _ in parts["train"]})
    loaded = {}
    for part, files in parts.items():
        unknown = sorted({label for label, _ in files} - set(classes))
        if unknown:
            fault = f"{source.root} has {part} images of the class {unknown[0]!r}"
            raise ValueError(f"{fault}, but no training images of it; add some, or remove the class.")
        targets = torch.tensor([classes.index(label) for label, _ in files], dtype=torch.int64)
        owners = torch.tensor([numbers[source.client(name)] for _, name in files]) if clients else None
        images = [name for _, name in files]
        known: Any = {"targets": targets, "clients": owners, "size": size, "colour": colour}
        loaded[part] = _images(source, images, most, **known)
    loaded = with_held_out(loaded, {"test": test, "validation": validation}, hold_out, data_seed)
    made: Any = {**loaded, "preprocessing": Pictures.of(size, colour), "client_names": tuple(names)}
    return Splits(**made, num_classes=len(classes), classes=tuple(classes))


def _images(source: ImageSource, names: Sequence[str], limits: Limits, **known: Any) -> Dataset:
    def read(place: int) -> Any:
        return limits.image(source.read(names[place], limits))

    return ImageDataset(read, name=lambda place: source.place(names[place]), limits=limits, **known)
