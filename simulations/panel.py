"""The panel at the end of a run: what came out, in words for somebody who has never seen the method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from simulations.progress import compact

_WHAT = {
    "partitioned": "One federated run learned the network and its hyperparameters, without validation data.",
    "fedavg": "Federated averaging: augmentation is off, and the hyperparameters stayed fixed.",
    "augerino": "Federated averaging with Augerino: augmentation widths were pushed up by a regulariser.",
}


def panel(summary: Mapping[str, Any], out: Path, config_file: str | None = None) -> RenderableType:
    """The summary of a run.

    Args:
        summary: as in ``summary.json``.
        out: the run's folder.
        config_file: what the user ran, for the suggestions.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in _rows(summary):
        table.add_row(name, text)
    table.add_row("files", f"{out}/: config.yaml, metrics.jsonl, summary.json, state.safetensors, *.png")
    lines: list[RenderableType] = [
        Text(_WHAT.get(summary["method"], f"Method {summary['method']}.")),
        Text(""),
        table,
    ]
    tips = _tips(summary, out, config_file)
    if tips:
        lines += [
            Text(""),
            Text("Try next", style="bold"),
            *[Text(f"  {tip}", overflow="fold") for tip in tips],
        ]
    return Panel(
        Group(*lines), title=f"{summary['method']}, {summary['rounds']} rounds", border_style="green"
    )


def _rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if summary["method"] != "fedavg":
        rows += [("learned", text) for text in _learned(summary["psi"])[:1]]
        rows += [("", text) for text in _learned(summary["psi"])[1:]]
    accuracy = []
    if summary["test_accuracy"] is not None:
        accuracy.append(f"{summary['test_accuracy']:.1%} on test data that no client has seen")
    if summary["val_accuracy"] is not None:
        many = summary["val_evaluations_averaged"]
        average = (
            f" (mean of the last {many} evaluations {summary['val_accuracy_last10']:.1%})" if many > 1 else ""
        )
        accuracy.append(f"{summary['val_accuracy']:.1%} on validation data{average}")
    rows += [(("accuracy", "")[i > 0], text) for i, text in enumerate(accuracy)]
    ratio, expected = summary["upload_ratio"], summary["upload_ratio_expected"]
    rows.append(
        (
            "upload",
            f"{ratio:.1%} of what FedAvg's clients send (expected {expected:.1%}); "
            f"{_size(summary['upload_bytes'])} in all",
        )
    )
    minutes, seconds = divmod(round(summary["seconds"]), 60)
    rows.append(
        ("time", f"{minutes} min {seconds} s of training and evaluation on the {summary['engine']} engine")
    )
    if summary["skipped_clients"]:
        rows.append(
            ("skipped", f"{summary['skipped_clients']} client answers; see `skipped` in metrics.jsonl")
        )
    return rows


def _learned(psi: Mapping[str, float]) -> list[str]:
    """psi in sentences: the rotation range first, other ranges, dropout, then what is the user's own."""
    found: list[str] = []
    ranges = [
        (key, key.replace("_min", "_max"))
        for key in psi
        if "_min" in key and key.replace("_min", "_max") in psi
    ]
    rates = [key for key in psi if key.endswith(".rate [%]")]
    for low, high in ranges:
        if "angle" in low:
            ends = sorted((psi[low], psi[high]))  # they may have crossed
            found.append(f"images may be turned by {ends[0]:+.0f} to {ends[1]:+.0f} degrees")
    others = []
    for low, high in ranges:
        if "angle" not in low:
            ends = sorted((psi[low], psi[high]))
            others.append(f"{_name(low)} {ends[0]:.2f}..{ends[1]:.2f}{_unit(low)}")
    if others:
        found.append(", ".join(others))
    if rates:
        found.append("dropout rates " + ", ".join(f"{psi[key]:.1f}%" for key in rates))
    rest = {
        key: value
        for key, value in psi.items()
        if key not in rates and key not in {k for r in ranges for k in r}
    }
    if rest:
        found.append(compact(rest, limit=8))
    return found


def _name(key: str) -> str:
    return key.partition(" [")[0].removeprefix("affine.").removesuffix("_min").replace("_", " ")


def _unit(key: str) -> str:
    return "%" if key.endswith("[%]") else ""


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def _tips(summary: Mapping[str, Any], out: Path, config_file: str | None) -> list[str]:
    tips = []
    if config_file is not None:
        if summary["method"] == "partitioned":
            tips.append(
                f"fedpart run {config_file} --set method=fedavg   (the same without learned augmentation)"
            )
        tips.append(f"fedpart compare {config_file}   (all methods side by side, with plots)")
    tips.append(f"fedpart run --resume {out} --set rounds={2 * summary['rounds']}   (train on)")
    return tips
