"""psi's keys, such as ``affine.angle_max [deg]``, taken apart, sorted and put into words."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from simulations.results.scores import span

Value = TypeVar("Value")
_TITLES = {
    "angle": "Rotation range",
    **{kind: f"{kind.capitalize()} range" for kind in ("scale", "shear", "shift", "stretch")},
    "rate": "Dropout rate",
    "norm": "Norm of learned weights",
    "probability": "Probabilities",
}
_AXES = {
    ("angle", "deg"): "rotation [degrees]",
    ("shift", "%"): "shift [% of the image]",
    ("rate", "%"): "drop rate [%]",
    ("scale", ""): "scale [factor]",
    ("shear", ""): "shear [factor]",
    ("stretch", ""): "stretch [log factor]",
}


@dataclass(frozen=True)
class Quantity:
    """One number of psi: parts of ``module.component_bound [unit]``, of which the last two may be empty."""

    name: str
    module: str
    component: str
    bound: str
    unit: str

    @classmethod
    def parse(cls, name: str) -> Quantity:
        """Take a key such as ``affine.angle_max [deg]`` apart."""
        path, _, unit = name.partition(" [")
        path, bracket, index = path.partition("[")  # an index may have a point in it
        module, _, component = path.rpartition(".")
        component += bracket + index
        match = re.fullmatch(r"(.+)_(min|max)", component)
        component, bound = match.groups() if match else (component, "")
        return cls(name, module, component, bound, unit.removesuffix("]"))

    @property
    def kind(self) -> str:
        """What it shares a picture with: ``angle``, ``scale``, ``shift``, ``rate``, ``norm``, ..."""
        return re.sub(r"(_[xy]|\[[^\]]+\])$", "", self.component)


def _paired(names: Iterable[str]) -> list[tuple[Quantity, str]]:
    """Quantities in their order, each with the key of its range's upper end, which has no turn of its own."""
    quantities = [Quantity.parse(name) for name in names]
    ends = {(q.module, q.component, q.unit, q.bound): q.name for q in quantities}
    pairs = []
    for q in quantities:
        low, high = (ends.get((q.module, q.component, q.unit, bound), "") for bound in ("min", "max"))
        if not (q.bound == "max" and low):
            pairs.append((q, high if q.bound == "min" else ""))
    return pairs


@dataclass(frozen=True)
class PsiParts:
    """psi's keys by what is said of them."""

    angles: list[tuple[str, str]]
    ranges: list[tuple[str, str]]
    rates: list[str]
    keeps: list[str]
    rest: list[str]

    @classmethod
    def of(cls, names: Iterable[str]) -> PsiParts:
        """Sort keys such as ``affine.angle_max [deg]``; they keep their order."""
        parts = cls([], [], [], [], [])
        for q, high in _paired(names):
            if high:
                kind = parts.angles if (q.component, q.unit) == ("angle", "deg") else parts.ranges
                kind.append((q.name, high))
            elif (q.component, q.bound, q.unit) == ("rate", "", "%"):
                parts.rates.append(q.name)
            else:
                (parts.keeps if (q.kind, q.unit) == ("keep", "%") else parts.rest).append(q.name)
        return parts

    @property
    def probabilities(self) -> list[str]:
        """Those of the rest by which drop rates may be chosen: of FedEx's arms that have one, or a number."""
        likely = [name for name in self.rest if Quantity.parse(name).kind == "probability"]
        return [name for name in likely if "%" in name.split(" [")[0] or re.search(r"\[\d+\] ", name)]


@dataclass(frozen=True, eq=False)
class Group:
    """Components of psi that share an axis, e.g. all dropout rates in percent."""

    kind: str
    module: str
    unit: str
    lines: dict[str, tuple[str, ...]]

    @property
    def names(self) -> list[str]:
        return [name for names in self.lines.values() for name in names]

    @property
    def title(self) -> str:
        title = _TITLES.get(self.kind)
        numbers = len(self.names) == len(self.lines)  # such as LoRA's scale, which is no range
        if title is None or (numbers and title.endswith("range")):
            return f"{self.module}.{self.kind}".lstrip(".")
        return title

    @property
    def axis(self) -> str:
        plain = f"{self.kind} [{self.unit}]" if self.unit else self.kind
        return _AXES.get((self.kind, self.unit), plain)


def groups(names: Iterable[str]) -> list[Group]:
    """psi's keys, sorted into groups that share an axis, in the order of their first key."""
    kinds: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for q in map(Quantity.parse, names):
        shared = q.kind in ("rate", "norm")  # one number per layer: the layers share the picture
        key = (q.kind, "" if shared else q.module, q.unit)
        label = q.module if shared else q.component.removeprefix(q.kind).strip("_[]")
        ends = kinds.setdefault(key, {}).setdefault(label or q.component, [])
        ends.insert(0 if q.bound == "min" else len(ends), q.name)
    return [Group(*key, {label: tuple(ends) for label, ends in own.items()}) for key, own in kinds.items()]


def whole(names: Iterable[str], physical: Mapping[str, Value]) -> dict[str, Value]:
    """These of psi, with the other end of a range, and with the other inputs of a mask."""
    parts, wanted = PsiParts.of(physical), {*names}
    for together in (*parts.angles, *parts.ranges, parts.keeps):
        if not wanted.isdisjoint(together):
            wanted.update(together)
    return {name: value for name, value in physical.items() if name in wanted}


def between(physical: Mapping[str, float], ends: Sequence[str]) -> str:
    """A range of psi with its unit, ``-12.4..+14.1 deg``; its ends may have crossed."""
    return span(*(physical[end] for end in ends), Quantity.parse(ends[0]).unit)


def kept(physical: Mapping[str, float]) -> list[int]:
    """Numbers (from 0) of the inputs that a learned mask keeps with more than 50%."""
    return [i for i, name in enumerate(PsiParts.of(physical).keeps) if physical[name] > 50]


def compact(physical: Mapping[str, float], limit: int = 3) -> str:
    """psi in few words, up to ``limit`` entries; see :func:`entries`."""
    return ", ".join(entries(physical)[:limit])


def entries(physical: Mapping[str, float], around: Callable[[str], str] = lambda name: "") -> list[str]:
    """psi in few words: ``rotation -12.4..+14.1 deg``, ``dropout 9.8%``, then others; many norms are one.
    ``around``: what follows each of the others."""
    names = PsiParts.of(physical)
    parts = [f"rotation {between(physical, ends)}" for ends in names.angles]
    if names.rates:
        parts.append(f"dropout {statistics.fmean(physical[name] for name in names.rates):.1f}%")
    if names.keeps:
        parts.append(f"mask keeps {len(kept(physical))} of {len(names.keeps)}")
    hidden = names.probabilities if names.rates else []
    norms = [name for name in names.rest if Quantity.parse(name).kind == "norm"]
    if len(norms) > 3:
        total = math.hypot(*(physical[name] for name in norms))
        parts.append(f"{len(norms)} tensors of weights, norm {total:.3g}")
        hidden = [*hidden, *norms]
    return parts + [f"{name} {physical[name]:.3g}{around(name)}" for name in names.rest if name not in hidden]


def in_words(
    psi: Mapping[str, float], before: Mapping[str, float] | None = None,
    chosen: Mapping[str, Sequence[float]] | None = None, limit: int = 8,
    reach: Mapping[str, tuple[float, float]] | None = None,
) -> list[str]:  # fmt: skip
    """All that has moved, a line of each kind, and where it began; ``chosen``: drop rates from a grid;
    ``reach``: between which values each number was, of a range its outermost ends. Drop rates are in
    the order of their layers, and have their names where ``before`` has more of them."""
    parts, before, reach, lines = PsiParts.of(psi), before or {}, reach or {}, []

    def around(low: str, high: str = "", form: str = ".3g") -> str:
        if low not in reach:
            return ""
        start, end = reach[low][0], reach[high or low][1]
        if high:
            text = span(start, end, Quantity.parse(low).unit)
            return "" if text == between(psi, (low, high)) else f" (within {text})"
        alike = len({format(value, form) for value in (start, psi[low], end)}) == 1
        percent = "%" if Quantity.parse(low).unit == "%" else ""
        return "" if alike else f" ({start:{form}}..{end:{form}}{percent})"

    for names in parts.angles:
        began = f", {between(before, names)} at the start" if before.keys() >= {*names} else ""
        lines.append(f"rotation {between(psi, names)}{around(*names)}{began}")
    ranges = {names: names[0].partition(" [")[0].removeprefix("affine.") for names in parts.ranges}
    words = {names: key.removesuffix("_min").replace("_", " ") for names, key in ranges.items()}
    lines.append(", ".join(f"{name} {between(psi, names)}{around(*names)}" for names, name in words.items()))
    if parts.rates:
        starts = [before.get(name, math.nan) for name in parts.rates]
        rates = [psi[name] for name in parts.rates]
        near = any(f"{start:.1f}" == f"{rate:.1f}" for start, rate in zip(starts, rates, strict=True))
        form = ".2f" if near or min(rates) < 1 else ".1f"  # what has moved may read as at the start with one
        first = dict.fromkeys(f"{start:{form}}%" for start in starts if not math.isnan(start))
        began = f" ({', '.join(first)} at the start)" if first else ""
        some = len(rates) < len(PsiParts.of(before).rates)
        layers = [f"of {Quantity.parse(name).module} " if some else "" for name in parts.rates]
        told = zip(layers, parts.rates, strict=True)
        texts = [f"{layer}{psi[name]:{form}}%{around(name, form=form)}" for layer, name in told]
        lines.append(f"dropout {', '.join(texts)}{began}")
    grid = {f"dropout of {Quantity.parse(name).module}": single(own) for name, own in (chosen or {}).items()}
    if len({tuple(values) for values in grid.values()}) == 1:
        grid = {"dropout": next(iter(grid.values()))}
    for name, values in grid.items():
        lines.append(f"{name} {'%, '.join(values)}% (chosen{', by seed' if len(values) > 1 else ''})")
    if parts.keeps:
        keeps = f"{len(kept(psi))} of {len(parts.keeps)} inputs with more than 50%"
        lines.append(f"mask keeps {keeps}: {_runs(kept(psi))}")
    hidden = parts.probabilities if parts.rates or grid else []  # what rates are chosen by
    rest = entries({name: psi[name] for name in parts.rest if name not in hidden}, around)
    more = [f"and {len(rest) - limit} more in summary.json"] if len(rest) > limit else []
    return [line for line in (*lines, ", ".join([*rest[:limit], *more])) if line]


def single(values: Sequence[float]) -> list[str]:
    """A text per seed, or one if the seeds agree."""
    texts = [f"{value:.4g}" for value in values]
    return texts if len(set(texts)) > 1 else texts[:1]


def _runs(numbers: list[int]) -> str:
    """``0-14, 17``: runs of numbers in short."""
    places = groupby(enumerate(numbers), lambda place: place[1] - place[0])
    parts = [[number for _, number in run] for _, run in places]
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts) or "none"
