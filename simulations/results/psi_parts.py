"""psi's keys, such as ``affine.angle_max [deg]``, taken apart and sorted for people."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from simulations.results.words import span, with_unit

Value = TypeVar("Value")


@dataclass(frozen=True)
class Quantity:
    """One number of psi: its parts of the name ``module.component_bound [unit]``.

    ``name`` is the key in metrics.jsonl; ``bound`` is ``min``, ``max`` or empty; ``unit`` may be empty.
    """

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


@dataclass(frozen=True)
class PsiParts:
    """psi's keys by what is said of them.

    Ranges ``(min, max)`` of rotation, other ranges, drop rates, probabilities to keep an input, others.
    """

    angles: list[tuple[str, str]]
    ranges: list[tuple[str, str]]
    rates: list[str]
    keeps: list[str]
    rest: list[str]

    @classmethod
    def of(cls, names: Iterable[str]) -> PsiParts:
        """Sort keys such as ``affine.angle_max [deg]``; they keep their order."""
        quantities = [Quantity.parse(name) for name in names]
        ends = {(q.module, q.component, q.unit): q.name for q in quantities if q.bound == "max"}
        angles: list[tuple[str, str]] = []
        ranges: list[tuple[str, str]] = []
        for q in quantities:
            high = ends.get((q.module, q.component, q.unit))
            if q.bound == "min" and high is not None:
                (angles if (q.component, q.unit) == ("angle", "deg") else ranges).append((q.name, high))
        rates = [q.name for q in quantities if (q.component, q.bound, q.unit) == ("rate", "", "%")]
        keeps = [q.name for q in quantities if (q.kind, q.unit) == ("keep", "%")]
        used = {name for pair in (*angles, *ranges) for name in pair} | {*rates, *keeps}
        return cls(angles, ranges, rates, keeps, [q.name for q in quantities if q.name not in used])

    @property
    def probabilities(self) -> list[str]:
        """Those of the rest by which drop rates may be chosen: of FedEx's arms that have one, or a number."""
        found = [name for name in self.rest if Quantity.parse(name).kind == "probability"]
        return [name for name in found if "%" in name.split(" [")[0] or re.search(r"\[\d+\] ", name)]


@dataclass(frozen=True, eq=False)
class Group:
    """Components of psi that share an axis, e.g. all dropout rates in percent.

    ``lines`` has them by label: the key in metrics.jsonl, or those of a range's ends, the lower one first.
    """

    kind: str
    module: str
    unit: str
    lines: dict[str, tuple[str, ...]]

    @property
    def names(self) -> list[str]:
        """The keys of all its components."""
        return [name for names in self.lines.values() for name in names]

    @property
    def title(self) -> str:
        """A heading that a person reads."""
        title = _TITLES.get(self.kind)
        numbers = len(self.names) == len(self.lines)  # such as LoRA's scale, which is no range
        if title is None or (numbers and title.endswith("range")):
            return f"{self.module}.{self.kind}".lstrip(".")
        return title

    @property
    def axis(self) -> str:
        """The axis label, with its unit."""
        plain = f"{self.kind} [{self.unit}]" if self.unit else self.kind
        return _AXES.get((self.kind, self.unit), plain)


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


def groups(names: Iterable[str]) -> list[Group]:
    """psi's keys, sorted into groups that share an axis, in the order of their first key."""
    found: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for q in map(Quantity.parse, names):
        shared = q.kind in ("rate", "norm")  # one number per layer: the layers share the picture
        key = (q.kind, "" if shared else q.module, q.unit)
        label = q.module if shared else q.component.removeprefix(q.kind).strip("_[]")
        ends = found.setdefault(key, {}).setdefault(label or q.component, [])
        ends.insert(0 if q.bound == "min" else len(ends), q.name)
    return [Group(*key, {label: tuple(ends) for label, ends in own.items()}) for key, own in found.items()]


def whole(names: Iterable[str], physical: Mapping[str, Value]) -> dict[str, Value]:
    """These of psi, with the other end of a range, and with the other inputs of a mask."""
    parts, found = PsiParts.of(physical), {*names}
    for together in (*parts.angles, *parts.ranges, parts.keeps):
        if not found.isdisjoint(together):
            found.update(together)
    return {name: value for name, value in physical.items() if name in found}


def between(physical: Mapping[str, float], ends: Sequence[str]) -> str:
    """A range of psi with its unit, ``-12.4..+14.1 deg``; its ends may have crossed."""
    low, high = ends
    return span(physical[low], physical[high], Quantity.parse(low).unit)


def kept(physical: Mapping[str, float]) -> list[int]:
    """Numbers (from 0) of the inputs that a learned mask keeps with more than 50%."""
    return [i for i, name in enumerate(PsiParts.of(physical).keeps) if physical[name] > 50]


def spans(physical: Mapping[str, float], ranges: Iterable[Sequence[str]]) -> list[str]:
    """Ranges other than rotations, ``scale x +0.94..+1.07`` each."""
    found = []
    for names in ranges:
        key = names[0].partition(" [")[0]
        name = key.removeprefix("affine.").removesuffix("_min").replace("_", " ")
        found.append(f"{name} {between(physical, names)}")
    return found


def several(physical: Mapping[str, float], limit: int = 8) -> str:
    """As :func:`compact`, and how many entries there are beyond ``limit``."""
    found = entries(physical)
    more = [f"and {len(found) - limit} more in summary.json"] if len(found) > limit else []
    return ", ".join([*found[:limit], *more])


def compact(physical: Mapping[str, float], limit: int = 3) -> str:
    """psi in few words, up to ``limit`` entries; see :func:`entries`."""
    return ", ".join(entries(physical)[:limit])


def entries(physical: Mapping[str, float]) -> list[str]:
    """psi in few words: ``rotation -12.4..+14.1 deg``, ``dropout 9.8%``, then others that are no ranges.

    Where there are drop rates, a distribution that they are chosen by is left out. Norms of more than three
    tensors of weights are one: that of all their numbers.
    """
    names = PsiParts.of(physical)
    parts = []
    parts += [f"rotation {between(physical, ends)}" for ends in names.angles]
    if names.rates:
        parts.append(f"dropout {statistics.fmean(physical[name] for name in names.rates):.1f}%")
    if names.keeps:
        parts.append(f"mask keeps {len(kept(physical))} of {len(names.keeps)}")
    chances = names.probabilities if names.rates else []
    norms = [name for name in names.rest if Quantity.parse(name).kind == "norm"]
    if len(norms) > 3:
        total = math.hypot(*(physical[name] for name in norms))
        parts.append(f"{len(norms)} tensors of weights, norm {total:.3g}")
        chances = [*chances, *norms]
    parts += [f"{name} {physical[name]:.3g}" for name in names.rest if name not in chances]
    return parts


def all_words(physical: Mapping[str, float], modules: Iterable[str]) -> list[str]:
    """Everything that modules do, an entry each: ``affine: angle -12.4..+14.1 deg, scale_x +0.90..+1.10``.

    A range is told by its ends, the smaller first; a module without numbers by its name alone.
    """
    found: dict[str, list[str]] = {module: [] for module in modules}
    quantities = {name: Quantity.parse(name) for name in physical}
    highs = {(q.module, q.component, q.unit): name for name, q in quantities.items() if q.bound == "max"}
    paired = set()
    for name, q in quantities.items():
        high = highs.get((q.module, q.component, q.unit))
        if name in paired:
            continue
        if q.bound == "min" and high is not None:
            text = between(physical, (name, high))
            paired.add(high)
        else:
            text = with_unit(f"{physical[name]:.3g}", q.unit)
        found.setdefault(q.module, []).append(f"{q.component} {text}")
    return [f"{module}: {', '.join(texts)}" if texts else module for module, texts in found.items()]
