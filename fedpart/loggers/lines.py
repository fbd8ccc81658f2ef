"""The lines of metrics.jsonl, and the numbers that are shown of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

Report = TypeVar("Report")

_CLOCKS, _EACH = ("round", "iteration"), ("client_accuracy_each", "client_nll_each")

# beginnings of keys that a line has only where they have a value
_OPTIONAL = (
    *("epsilon", "examples", "client_seconds", "client_accuracy_caps", "client_nll_caps"),
    *_EACH,
    *(f"{name}_architectures" for name in ("val_accuracy", "val_nll", "client_accuracy", "client_nll")),
    *("simulated_seconds", "staleness", "clipped", "psi_alarms", "factors", "candidates"),
)


def metrics_line(report: Any) -> dict[str, Any]:
    """A report as a line of ``metrics.jsonl``; the same run gives the same line, seconds apart.

    A line has the attributes of a :class:`.RoundReport` or a :class:`.TrainingReport`, under their names and
    in their units; ``psi`` is ``{raw: {name: [..]}, physical: {name: value}}``. Scores stand where there was
    an evaluation, and what an option brings, such as ``epsilon`` or ``staleness``, with
    that option alone. What is not finite is null."""
    line = asdict(report)
    line["seconds"] = round(report.seconds, 4)
    line["psi"] = {"raw": line.pop("psi"), "physical": line.pop("physical")}
    line.pop("stage", None)  # its end has scores of its own, which the runner adds
    if report.val_nll is None:
        del line["val_accuracy"], line["val_nll"]
    if line.get("client_seconds") is not None:
        line["client_seconds"] = round(line["client_seconds"], 4)
    evaluated = line.get("evaluation_bytes") is not None
    optional = _OPTIONAL if evaluated else (*_OPTIONAL, "client_", "evaluation_")
    shown = {key: value for key, value in line.items() if value is not None or not key.startswith(optional)}
    return {key: finite(value) for key, value in shown.items()}


def reports_of(kind: type[Report], lines: Sequence[Mapping[str, Any]]) -> list[Report]:
    """The reports whose :func:`metrics_line` these are; what a line leaves out is as in a new report."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    whole = ({**line, "psi": line["psi"]["raw"], "physical": line["psi"]["physical"]} for line in lines)
    return [kind(**{name: value for name, value in line.items() if name in known}) for line in whole]


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null in their place."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


def step_of(line: Mapping[str, Any]) -> int:
    """The round, or the iteration, of a line."""
    return next(int(line[clock]) for clock in _CLOCKS if clock in line)


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line, or of a summary, by name, in the line's units.

    Of psi these are the physical ones, ``psi/affine.angle_max [deg]``; numbers in a list or a mapping are
    ``client_accuracy_chunks/1`` (from 1) and ``refused/malformed``. Left out are the round, the numbers of
    clients and each client's scores, the shapes of inputs, and what is null."""
    psi, hidden = line.get("psi", {}), (*_CLOCKS, "cohort", "clipped", "inputs", *_EACH)
    shown = {**line, "psi": psi.get("physical", psi)}
    return dict(_numbers("", {name: value for name, value in shown.items() if name not in hidden}))


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, bool | int | float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(f"{name}/{key}" if name else key, part)
    elif isinstance(value, list) and not any(isinstance(part, Mapping) for part in value):
        for place, part in enumerate(value, start=1):
            yield from _numbers(f"{name}/{place}", part)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Settings by name, those of a section as ``server.learning_rate``; what is no number is text."""
    values = dict[str, bool | int | float | str]()
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            values |= flat(value, f"{prefix}{name}.")
        else:
            values[f"{prefix}{name}"] = value if isinstance(value, bool | int | float) else str(value)
    return values


def in_words(line: Mapping[str, Any]) -> str:
    """The scores, the losses and the first hyperparameters of a line, for people."""
    parts = []
    for whose, words in (("val", "val."), ("client", "clients'")):
        if line.get(f"{whose}_accuracy") is not None:
            parts.append(f"{words} accuracy {line[f'{whose}_accuracy']:.1%}")
        elif line.get(f"{whose}_nll") is not None:
            parts.append(f"{words} loss {line[f'{whose}_nll']:.3f}")
    parts += [f"one of {several} candidates' rounds"] if (several := line.get("candidates", 1)) > 1 else []
    if line["train_loss"] is not None:
        parts.append(f"loss {line['train_loss']:.3f}")
    if line["lml"] is not None:
        lml = line["lml"]
        parts.append(f"L_ML {lml:.3f} per example" if "round" in line else f"L_ML {lml:,.1f}")
    parts += [f"{name} {value:.3g}" for name, value in list(line["psi"]["physical"].items())[:3]]
    return ", ".join(parts)
