"""Data sets of the Hugging Face hub, and files in the formats that the package ``datasets`` reads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedpart.data.cells import plain
from fedpart.data.columns import Part, Roles, column_names, splits_of
from fedpart.data.dataset import Dataset, Splits
from fedpart.data.image_dataset import Colour, ImageDataset
from fedpart.data.image_files import PARTS
from fedpart.data.loading import DATASETS
from fedpart.data.preprocessing.fitting import Categorical, Missing, numbers_of_rows, prepared
from fedpart.data.preprocessing.pictures import Pictures
from fedpart.data.reading import LimitError, Limits, check_files, refuse_outside, regular_files
from fedpart.data.splitting.hold_out import ClientHoldOut, HoldOut
from fedpart.extras import need


@DATASETS.register("hf")
def load_hugging_face(
    name: str | None, data_dir: str | None = None, *, target: str = "label", client: str | None = None,
    image: str | None = None, ignore: Sequence[Any] = (), subset: str | None = None,
    revision: str | None = None, examples: int | None = None, size: int | None = None, colour: Colour = "rgb",
    standardise: bool = False, standardise_target: bool = True, categorical: Categorical = None,
    missing: Missing = "refuse", validation: float = 0.1, test: float = 0.2,
    hold_out: HoldOut | ClientHoldOut = "random", real_targets: bool = False, download: bool = True,
    limits: Mapping[str, int] | None = None, data_seed: int = 0,
) -> Splits:  # fmt: skip
    """``data: hf:OWNER/NAME`` of the hub, or ``data: hf:FORMAT`` of files in ``data_dir``.

    A format is one that ``datasets.load_dataset`` knows, such as ``imagefolder``, ``parquet`` or ``json``.
    The inputs are the one column of images, [n, 3 or 1, h, w] float32 in [0, 1]; without one, all columns of
    numbers but the target, the client's and those to ignore, [n, columns] float32. Splits called train,
    validation and test (or as folders of images may be called) are taken as they are; what is missing is held
    out from the training examples.

    Args:
        name: of the data set on the hub, with a slash, or of the format.
        data_dir: where the hub's files are kept, None: the package's own place; or the files in the format.
        target, client, ignore, standardise, standardise_target, categorical, missing, real_targets: see
            :func:`.load_table`.
        image: the column of images, where there are several.
        subset, revision: of a data set on the hub, ``name`` and ``revision`` of ``load_dataset``.
        examples: how many there must be in all; None: any number.
        size, colour: of images, see :func:`.pixels`.
        validation, test, hold_out, download, limits, data_seed: see :data:`.Loader`.
    """
    if not name:
        raise ValueError("The data set 'hf' needs a name: data: hf:OWNER/NAME, or hf:parquet and the like.")
    source = f"hf:{name}"
    most = Limits.of(limits)
    loaded = _loaded(name, data_dir, subset, revision, download, most)
    tables = {part: loaded[key] for part, names in PARTS.items() for key in loaded if key.casefold() in names}
    if "train" not in tables:
        remedy = "use a loader of your own"
        raise ValueError(f"{source} has the splits {', '.join(loaded)}, and none to train on; {remedy}.")
    if examples is not None and (count := sum(map(len, tables.values()))) != examples:
        remedy = "set data_options.examples"
        raise ValueError(f"{source} has {count} examples, but {examples} are expected; {remedy}.")
    tables = {part: _named(table, f"{source}, {part}") for part, table in tables.items()}
    roles = Roles(target, client, ignore)
    first = tables["train"].features
    inputs = roles.inputs(first, source)
    images = _only_image(first, inputs, source) if image is None else plain(str(image))

    def part(table: Any, split: str) -> Part:
        where = f"{source}, {split}"

        def dataset(targets: Tensor, clients: Tensor | None) -> Dataset:
            if images is None:
                most.check("total", 8 * len(table) * len(inputs), where)
                return numbers_of_rows(columns)(targets, clients)
            import datasets

            encoded = datasets.Image(decode=False)  # a file's bytes say more of an image than a decoded one
            pictures = table.select_columns([images]).cast_column(images, encoded)
            named = f"row {{}} of {where}".format
            return ImageDataset(
                lambda place: _opened(pictures[place][images], most), targets, size=size, colour=colour,
                name=lambda place: named(place + 1), clients=clients, limits=most,
            )  # fmt: skip

        columns = {name: table[name] for name in table.column_names}
        if images not in (None, *columns):
            raise ValueError(f"{where} has no column {images!r}; correct data_options.image.")
        return roles.part(columns, where, dataset)

    names = getattr(first[roles.target], "names", None)  # of a ClassLabel, whose values are places in them
    for split, table in tables.items():
        if names is not None and -1 in (places := table[roles.target][:]):
            fault = f"Row {places.index(-1) + 1} of {source}, {split} has the {roles.target!r} -1, which"
            raise ValueError(f"{fault} stands for no label; remove such rows with a loader of your own.")
    parts = {name: part(table, name) for name, table in tables.items()}
    shares = {"test": test, "validation": validation}
    splits = splits_of(parts, roles, real_targets, shares, hold_out, data_seed)
    if names is not None and not real_targets:
        numbers = map(int, splits.classes or range(splits.num_classes))
        splits = replace(splits, classes=tuple(names[number] for number in numbers))
    if images is not None:
        return replace(splits, preprocessing=Pictures.of(size, colour))
    columns = {
        part: ({name: table[name][:] for name in inputs if name in table.features}, f"{source}, {part}")
        for part, table in tables.items()
    }
    options: dict[str, Any] = {"standardise": standardise, "categorical": categorical, "missing": missing}
    return prepared(splits, columns, inputs, {}, standardise_target, **options)


def _loaded(
    name: str, data_dir: str | None, subset: str | None, revision: str | None, download: bool, limits: Limits
) -> Any:
    """The splits by name, as ``load_dataset`` returns them."""
    datasets = need("datasets", f"The data set hf:{name}", "hf")
    absence = f"hf:{name} is not here"
    if "/" in name:
        if not download:
            raise FileNotFoundError(f"hf:{name} is on the hub, and nothing is downloaded here.")
        place: dict[str, Any] = {"cache_dir": data_dir}
        if data_dir is not None:
            refuse_outside(Path(data_dir).expanduser(), absence)
    elif data_dir is None:
        remedy = "set data_dir to the folder of the files, or write hf:OWNER/NAME for a data set of the hub"
        raise FileNotFoundError(f"hf:{name} is a format without files; {remedy}.")
    else:
        root = Path(data_dir).expanduser()
        check_files(regular_files(root), limits, str(root))
        place = {"data_dir": data_dir}
    try:
        if "/" in name:  # what the hub says that there is, before it is fetched
            told = datasets.load_dataset_builder(name, subset, revision=revision, **place).info
            sizes = [told.download_size, told.dataset_size]
            limits.check("total", max(size or 0 for size in sizes), f"hf:{name}")
        loaded = datasets.load_dataset(name, subset, revision=revision, **place)
        limits.check("total", sum(table.data.nbytes for table in loaded.values()), f"hf:{name}")
        return loaded
    except LimitError:
        raise
    except Exception as error:  # its own, of the hub, of the network, of every format's reader
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        remedy = "check the name, data_dir, and that there is a network"
        raise FileNotFoundError(f"hf:{name} cannot be loaded ({reason}); {remedy}.") from error


def _named(table: Any, where: str) -> Any:
    """Its columns by the names that :class:`Roles` compares with."""
    names = column_names(table.column_names, where)
    changed = dict(zip(table.column_names, names, strict=True))
    return table if names == table.column_names else table.rename_columns(changed)


def _only_image(features: Any, inputs: Sequence[str], source: str) -> str | None:
    import datasets

    images = [name for name in inputs if isinstance(features[name], datasets.Image)]
    if len(images) > 1:
        remedy = "name one: data_options.image"
        raise ValueError(f"{source} has several columns of images, {', '.join(images)}; {remedy}.")
    return images[0] if images else None


def _opened(cell: Any, limits: Limits) -> Any:
    from datasets.utils.file_utils import xopen  # which knows paths in archives

    if cell is None:
        raise ValueError("the cell is empty")
    if cell["bytes"] is not None:
        return limits.image(cell["bytes"])
    if "://" not in cell["path"]:
        return limits.image(limits.read(cell["path"]))
    with xopen(cell["path"], "rb") as file:
        return limits.image(limits.content(file, "it"))
