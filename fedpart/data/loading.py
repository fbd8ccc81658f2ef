"""The data sets that an experiment can name, and the way to a user's own."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fedpart.checks import require
from fedpart.data.dataset import Splits, has_labels
from fedpart.data.splitting.parts import of_classes
from fedpart.registry import Registry

Loader = Callable[..., Splits]
"""``load(data_dir, **options) -> Splits``; ``data_dir`` is the folder that holds the files, or None.

A loader that divides examples at random takes the keyword ``data_seed``; one whose targets may be classes or
real numbers takes ``real_targets``. These options are the same for all that have them:

- ``validation``, ``test``: what to hold out where a source has no such part: a number of examples, or a share
  below 1; of a data set that knows its clients a share.
- ``hold_out``: which ones, see :func:`.divide`; of a data set that knows its clients :func:`.divide_clients`.
- ``limits``: of what files may take, see :class:`.Limits`.
- ``download``: whether missing files may be fetched.
- ``data_seed``: of what ``hold_out`` draws.

A FileNotFoundError says that files are missing and cannot be fetched, an ImportError that a library is; a
ValueError names a damaged file, what does not fit, and which limit may be raised.
"""

FROM_HUB = "hf:"
"""Begins the name of a data set that :func:`.load_hugging_face` loads; the rest is what it loads."""
OWN_FILES = ("image_folder", "leaf", "table")
"""Data sets that are whatever lies in ``data_dir``: other files are other data."""


class _DataSets(Registry[Loader]):
    def resolve(self, name: str) -> Loader:
        if name.startswith(FROM_HUB):
            return partial(self["hf"], name.removeprefix(FROM_HUB))
        return super().resolve(name)


DATASETS: Registry[Loader] = _DataSets("data set", makes=(Splits,))


def knows_clients(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a data set of ours, with these options, says whose each example is."""
    ours = name in ("image_folder", "table") or name.startswith(FROM_HUB)
    return name == "leaf" or (ours and (options.get("client") is not None or options.get("clients") is True))


def load_splits(
    name: str, /, data_dir: str | None = None, *, data_seed: int = 0, classes: Sequence[int] | None = None,
    real_targets: bool = False, **options: Any,
) -> Splits:  # fmt: skip
    """Load the data set called ``name``.

    Args:
        name: one of ``DATASETS.names()``; ``"hf:NAME"``, see :func:`.load_hugging_face`; or
            ``"package.module:callable"`` for a user's own loader.
        data_dir: folder with the data files, for data sets that have any.
        data_seed: handed on to loaders that take it.
        classes: keep these alone, see :func:`.of_classes`; None: all. Handed on to loaders that take it.
        real_targets: whether targets are numbers to predict and no classes. Handed on likewise.
        options: further keyword arguments of the loader.

    Raises:
        ValueError, TypeError, FileNotFoundError: see :data:`Loader`; or the name is unknown or no loader's,
            or the data have one class alone.
    """
    loader = DATASETS.resolve(name)
    signature = inspect.signature(loader)
    taken = signature.parameters
    if "data_seed" in taken:
        options["data_seed"] = data_seed
    if "real_targets" in taken:
        options.setdefault("real_targets", real_targets)
    if "classes" in taken and classes is not None:
        options["classes"], classes = classes, None
    try:
        signature.bind(data_dir, **options)
    except TypeError as error:
        takes = f"its loader is called with data_dir, then options, and takes {signature}"
        raise ValueError(f"The data set {name!r} cannot be loaded ({error}); {takes}.") from error
    splits = loader(data_dir, **options)
    remedy = "its loader must return fedpart.data.Splits(train, validation, test, num_classes)"
    fault = f"The data set {name!r} returned {type(splits).__name__}"
    require(isinstance(splits, Splits), f"{fault}; {remedy}.", TypeError)
    if has_labels(splits.train) and splits.num_classes == 1:
        remedy = "add examples of another"
        raise ValueError(f"The data set {name!r} has one class, so there is nothing to learn; {remedy}.")
    return splits if classes is None else of_classes(splits, classes)
