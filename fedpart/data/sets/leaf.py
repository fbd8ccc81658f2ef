"""The JSON files of LEAF (Caldas et al. 2018, arXiv:1812.01097), whose users are the clients."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpart.checks import check_list, check_whole, require
from fedpart.data.cells import OTHER_UNIT, Floats, check_positions
from fedpart.data.columns import Part, Roles, splits_of
from fedpart.data.dataset import Dataset, Splits
from fedpart.data.image_files import PARTS, check_aliases
from fedpart.data.loading import DATASETS
from fedpart.data.reading import Limits, check_files, real_place, refuse_twice, regular
from fedpart.data.splitting.hold_out import ClientHoldOut

_LAYOUT = "train/*.json and, if there are any, test/*.json, as LEAF's preprocess.sh writes them into data/"


@DATASETS.register("leaf")
def load_leaf(
    data_dir: str | None = None, *, shape: Sequence[int] | None = None, validation: float = 0.1,
    test: float = 0.2, hold_out: ClientHoldOut = "random", real_targets: bool = False,
    limits: Mapping[str, int] | None = None, data_seed: int = 0,
) -> Splits:  # fmt: skip
    """LEAF's files: ``{"users": [...], "user_data": {user: {"x": [...], "y": [...]}}}``, of numbers.

    The data set knows its clients: the users, numbered in ascending order. Users of the test files who have
    no training examples count in the test alone. What has no folder is held out from the training files.

    Args:
        data_dir: the folder with ``train/`` and ``test/``, and perhaps ``validation/``.
        shape: of one example, e.g. [1, 28, 28] for FEMNIST, which has 784 numbers; None: as it is.
        real_targets: whether ``y`` are numbers to predict, float32, and no classes, int64.
        validation, test, hold_out, limits, data_seed: see :data:`.Loader`.
    """
    files, most = leaf_files(data_dir), Limits.of(limits)
    check_files(itertools.chain.from_iterable(files.values()), most, f"What is in {data_dir}")
    parts = {part: _part(part_files, shape, most) for part, part_files in files.items()}
    shares = {"test": test, "validation": validation}
    return splits_of(parts, Roles("y", "user"), real_targets, shares, hold_out, data_seed)


def leaf_files(data_dir: str | Path | None) -> dict[str, list[Path]]:
    """The files of the parts train, validation and test, as far as there are any; see :func:`load_leaf`."""
    root = None if data_dir is None else Path(data_dir).expanduser()
    if root is not None:
        check_aliases(root, [file.name for file in root.glob("*") if any(file.glob("*.json"))])
    files = {
        part: [file for name in names for file in sorted((root / name).glob("*.json"))]
        for part, names in PARTS.items()
        if root is not None
    }
    if not files.get("train"):
        remedy = f"set data_dir to a folder with {_LAYOUT}"
        where = "" if data_dir is None else f" at {data_dir}"
        raise FileNotFoundError(f"There are no files of LEAF{where}; {remedy}.")
    seen: dict[str, str] = {}
    for file in itertools.chain.from_iterable(files.values()):
        regular(file)
        refuse_twice(file, real_place(file), seen)
    return {part: listed for part, listed in files.items() if listed}


def _part(files: Sequence[Path], shape: Sequence[int] | None, limits: Limits) -> Part:
    inputs: list[Floats] = []
    targets: list[Any] = []
    users: list[str] = []
    for file in files:
        for user, x, y in _users(file, limits):
            inputs.append(_array(x, shape, f"{file}, user {user!r}"))
            targets += y
            users += [user] * len(y)
    if len({of_user.shape[1:] for of_user in inputs}) > 1:
        raise ValueError(f"The examples in {files[0].parent} differ in shape; make them one shape.")

    where = f"{files[0].parent}/"

    def dataset(wanted: Tensor, clients: Tensor | None) -> Dataset:
        numbers = np.concatenate(inputs)
        check_positions(numbers, f"x of {where}", OTHER_UNIT)
        return Dataset(torch.from_numpy(numbers).float(), wanted, clients=clients)

    return Part(where, targets, users, dataset)


def _users(file: Path, limits: Limits) -> list[tuple[str, list[Any], list[Any]]]:
    text = limits.read(file)
    try:
        content = json.loads(text)
        names, data = content["users"], content["user_data"]
        users = [(str(user), list(data[user]["x"]), list(data[user]["y"])) for user in names]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else error
        raise ValueError(
            f'{file} is none of LEAF\'s files ({reason}); they hold {{"users": [..], "user_data": {{user: '
            f'{{"x": [..], "y": [..]}}}}}}.'
        ) from error
    for user, x, y in users:
        require(y, f"{file}: the user {user!r} has no examples; remove the user.")
        require(len(x) == len(y), f"{file}: the user {user!r} has {len(x)} x and {len(y)} y; give as many.")
    return users


def _array(x: list[Any], shape: Sequence[int] | None, where: str) -> Floats:
    try:
        numbers = np.asarray(x, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        remedy = "load text and names of images by a loader of your own"
        raise ValueError(f"{where}: x are no numbers in one shape; {remedy}.") from error
    if shape is None:
        return numbers
    check_list("data_options.shape", shape, "lengths", "[1, 28, 28]")
    for length in shape:
        check_whole("A length in data_options.shape", length, 1)
    if math.prod(shape) * len(numbers) != numbers.size:
        fault = f"{where}: an example has {numbers.size // len(numbers)} numbers"
        raise ValueError(f"{fault}, which do not fill the shape {list(shape)}; correct data_options.shape.")
    return numbers.reshape(len(numbers), *shape)
