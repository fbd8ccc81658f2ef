"""A setting: default, range and meaning, said once for Python and YAML; and those that every run has."""

import dataclasses
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from types import UnionType
from typing import Any, ClassVar, Literal, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints

import torch

from fedpart.checks import check_texts
from fedpart.checks import require as require
from fedpart.partition.nodes import SCHEMES
from fedpart.partition.partition import Defaults
from fedpart.partition.proportions import check_proportions
from fedpart.registry import initials, nearest

Kind = TypeVar("Kind", bound=type)
Decides = Literal["numbers", "course", "nothing"]
_BOUNDS = {
    "gt": (operator.gt, "above"),
    "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "below"),
    "le": (operator.le, "at most"),
}
_NUMBERS: Mapping[Any, tuple[type, str]] = {int: (Integral, "a whole number"), float: (Real, "a number")}
_OTHERS: Mapping[Any, str] = {str: "a text", bool: "True or False", Mapping: "a mapping of options"}


def setting(
    default: Any = dataclasses.MISSING, description: str = "", *, decides: Decides = "numbers",
    **bounds: float,
) -> Any:  # fmt: skip
    """A field of a frozen dataclass of settings; ``description`` is the one text about it, with its unit.

    It decides ``numbers`` of the result; the ``course`` of a run: its seconds, last digits, and what becomes
    of clients that fail; or ``nothing`` of either. What does not decide numbers may differ between server and
    clients, and when a run is resumed. Bounds are ``gt``, ``ge``, ``lt`` and ``le``, which pydantic reads
    from the metadata as well."""
    metadata = {"description": description, "decides": decides, **bounds}
    if isinstance(default, Mapping):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)  # type: ignore[attr-defined]
    return dataclasses.field(default=default, metadata=metadata)


def documented(kind: Kind) -> Kind:
    """Class decorator: the docstring of a dataclass of settings lists its fields, and what it raises."""
    fields = [f"    {field.name}: {field.metadata['description']}." for field in dataclasses.fields(kind)]
    text = inspect.cleandoc(kind.__doc__ or "")
    if "Raises:" not in text:
        fields += ["", "Raises:", "    ValueError: a value out of range; one sentence that names it."]
    kind.__doc__ = "\n".join([text, "", "Attributes:", *fields])
    return kind


def check_names(
    given: Iterable[str], kind: "type[Settings]", of: str = "", without: str = "", beside: Iterable[str] = ()
) -> None:
    """Refuse names that are no settings."""
    known = {field.name for field in dataclasses.fields(kind)} - {without}
    for name in given:
        if name not in known:
            place = f" in {of}" if of else ""
            inner = [f"{group}={{{setting!r}: ...}}" for group, setting in _in_groups(kind, name)]
            hint = f"did you mean {' or '.join(inner)}?" if inner else nearest(name, known | {*beside})
            raise ValueError(f"There is no setting {name!r}{place}: {hint}")


def _in_groups(kind: "type[Settings]", name: str) -> Iterator[tuple[str, str]]:
    """The groups in which a setting has that name, or its initials, and the setting."""
    for group, hint in _hints(kind).items():
        kinds = get_args(hint) or (hint,)
        groups = [part for part in kinds if isinstance(part, type) and issubclass(part, Settings)]
        names = {field.name: None for part in groups for field in dataclasses.fields(part)}
        yield from ((group, known) for known in names if name in (known, initials(known)))


@dataclasses.dataclass(frozen=True)
class Settings:
    """A group of settings, whose fields are made by :func:`setting`.

    A field that is a group itself may be given as a mapping of what differs from its default; ``name`` is
    then its kind, where there are several: ``{"name": "sgd", "learning_rate": 1.0}``.

    Raises:
        ValueError: a value of another type or out of range, or an unknown choice; one sentence that names it.
    """

    short: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # words that may stand for settings of the group
    _others: "ClassVar[tuple[Settings, ...]]" = ()  # where groups of another kind than the default start

    def __post_init__(self) -> None:
        hints = _hints(type(self))
        for field in dataclasses.fields(self):
            hint = hints[field.name]
            several = get_origin(hint) in (Union, UnionType)
            kinds = [form for form in (get_args(hint) if several else (hint,)) if form is not type(None)]
            groups = tuple(form for form in kinds if isinstance(form, type) and issubclass(form, Settings))
            value = getattr(self, field.name)
            if groups and not (str in kinds and isinstance(value, str)):
                value = self._group(field, groups)
                object.__setattr__(self, field.name, value)
            numbers = [kind for kind in kinds if kind in _NUMBERS and isinstance(value, _NUMBERS[kind][0])]
            if numbers and type(value) not in (bool, *_NUMBERS):
                value = numbers[0](value)  # NumPy's
                object.__setattr__(self, field.name, value)
            optional = several and type(None) in get_args(hint)
            wanted = [] if value is None and optional else _wanted(value, kinds, field.metadata, optional)
            if wanted:
                raise ValueError(f"{field.name} is {' and '.join(wanted)}, got {value!r}.")

    def _group(self, field: dataclasses.Field[Any], kinds: "tuple[type[Settings], ...]") -> Any:
        """The group of a field; made of its default, and what differs, where a mapping is given."""
        value = getattr(self, field.name)
        value = next(
            (kind.short[value] for kind in kinds if isinstance(value, str) and value in kind.short), value
        )
        if isinstance(value, kinds) or (value is None and field.default is None):
            return value
        if not isinstance(value, Mapping):
            names = ", ".join(f"{kind.__name__}(...)" for kind in kinds)
            raise ValueError(f"{field.name} is one of {names}, or a mapping of its settings, got {value!r}.")
        options = dict(value)
        defaults = (group for group in (field.default, *self._others) if isinstance(group, kinds))
        starts = {_name(type(group)): group for group in defaults}
        name = options.pop("name", next(iter(starts), None))
        if starts and name not in starts:
            raise ValueError(f"{field.name} is one of {', '.join(starts)}, got the name {name!r}.")
        kind = type(starts[name]) if starts else kinds[0]
        check_names(options, kind, field.name)
        try:
            return dataclasses.replace(starts[name], **options) if starts else kind(**options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{field.name} does not fit: {str(error).rstrip('.')}.") from error

    def deciding(self) -> dict[str, Any]:
        """Those that decide the numbers of a run, as plain data by name."""
        decides = {field.name: field.metadata["decides"] for field in dataclasses.fields(self)}
        return {key: value for key, value in dataclasses.asdict(self).items() if decides[key] == "numbers"}


def _wanted(value: Any, kinds: Sequence[Any], bounds: Mapping[str, Any], optional: bool) -> list[str]:
    """What a value of one of the kinds is, in words; nothing, if this one is."""
    limits = [(*_BOUNDS[key], bounds[key]) for key in _BOUNDS if key in bounds]
    within = [f"{word} {bound}" for _, word, bound in limits]
    plain = tuple(get_origin(kind) or kind for kind in kinds)
    if plain == (Literal,):
        words = [*get_args(kinds[0]), *(["null"] if optional else [])]
        known = isinstance(value, str) and value in get_args(kinds[0])
        return [] if known else [f"one of {', '.join(words[:-1])} or {words[-1]}"]
    if {*plain} <= _OTHERS.keys():
        return [] if isinstance(value, plain) else [" or ".join(_OTHERS[kind] for kind in plain)]
    if len(plain) == 1 and plain[0] in _NUMBERS:
        number, name = _NUMBERS[plain[0]]
        if not isinstance(value, number) or isinstance(value, bool):
            return [name, *within]
    if isinstance(value, (int, float)) and not math.isfinite(value):
        return ["finite", *within]
    fits = not isinstance(value, (int, float)) or all(holds(value, bound) for holds, _, bound in limits)
    return [] if fits else within


_hints: Callable[[type], dict[str, Any]] = functools.cache(get_type_hints)


def _name(kind: type[Settings]) -> str:
    """``sgd`` of ``SGDSettings``."""
    return kind.__name__.removesuffix("Settings").lower()


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """What federated and centralised runs both have."""

    method: str = setting("partitioned", "how it is learned: a registered name, or package.module:Class")
    method_options: Mapping[str, Any] = setting({}, "keyword arguments of the method")
    chunks: tuple[float, ...] = setting(description="proportions u_1..u_C of the chunks, sum 1")
    parameters: tuple[float, ...] | None = setting(
        None, "proportions u_1..u_C of the parameters, one per chunk; null: as chunks"
    )
    seed: int = setting(
        0, "decides everything but the data: weights, partition, chunks, cohorts, noise", ge=0
    )
    scheme: str = setting(
        "random",
        "how parameters are partitioned: random (single weights), node (units of layers), or "
        "package.module:callable",
    )
    defaults: Defaults = setting("initial", "values of what a subnetwork does not contain")
    chain: tuple[str, ...] | None = setting(
        None, "for scheme node: Linear and Conv layers in order; null: an nn.Sequential's own"
    )
    device: str = setting("cpu", "where models are computed: cpu, cuda, cuda:1, mps, ...", decides="course")

    def __post_init__(self) -> None:
        device: Any = self.device
        if isinstance(device, torch.device):
            object.__setattr__(self, "device", str(device))
        super().__post_init__()
        if self.chain is not None:
            check_texts("chain", self.chain, "names of layers", "[conv1, fc1]")
        SCHEMES.resolve(self.scheme)  # refuses
        object.__setattr__(self, "chunks", check_proportions(self.chunks))
        if self.parameters is not None:
            parameters = check_proportions(self.parameters, "parameter proportions")
            object.__setattr__(self, "parameters", parameters)
            counts = f"{len(self.chunks)} chunk proportions but {len(parameters)} parameter proportions"
            alike = len(parameters) == len(self.chunks)
            require(alike, f"There are {counts}; give one of each per chunk.")


def check_device(device: str) -> None:
    """Refuse a device that torch cannot use, with a ValueError of one sentence."""
    try:
        torch.zeros(1, device=device)
    except Exception as error:  # torch raises RuntimeError, AssertionError, NotImplementedError, ...
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise ValueError(f"The device {device!r} cannot be used ({reason}); set device: cpu.") from None


class RunOptions(TypedDict, total=False):
    """Types of :class:`RunSettings` as keyword arguments, for editors; a test holds the two together."""

    method: str
    method_options: Mapping[str, Any]
    chunks: Sequence[float]
    parameters: Sequence[float] | None
    seed: int
    scheme: str
    defaults: Defaults
    chain: Sequence[str] | None
    device: str
