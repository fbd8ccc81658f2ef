"""The panel at the end of a run: what came out, in words for somebody who has never seen the method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from simulations.curves import PsiParts, byte_text
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
        table.add_row(name, Text(text))
    files = f"{out}/: config.yaml, metrics.jsonl, summary.json, state.safetensors, *.png"
    table.add_row("files", Text(files))
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
        Group(*lines), title=Text(f"{summary['method']}, {summary['rounds']} rounds"), border_style="green"
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
            f"{byte_text(summary['upload_bytes'])} in all",
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
    parts = PsiParts.of(psi)
    found = []
    for names in parts.angles:
        low, high = sorted(psi[name] for name in names)  # they may have crossed
        found.append(f"images may be turned by {low:+.0f} to {high:+.0f} degrees")
    others = []
    for names in parts.ranges:
        low, high = sorted(psi[name] for name in names)
        others.append(f"{_name(names[0])} {low:.2f}..{high:.2f}{_unit(names[0])}")
    if others:
        found.append(", ".join(others))
    if parts.rates:
        found.append("dropout rates " + ", ".join(f"{psi[name]:.1f}%" for name in parts.rates))
    if parts.rest:
        found.append(compact({name: psi[name] for name in parts.rest}, limit=8))
    return found


def _name(key: str) -> str:
    return key.partition(" [")[0].removeprefix("affine.").removesuffix("_min").replace("_", " ")


def _unit(key: str) -> str:
    return "%" if key.endswith("[%]") else ""


def _tips(summary: Mapping[str, Any], out: Path, config_file: str | None) -> list[str]:
    tips = []
    if config_file is not None:
        if summary["method"] == "partitioned":
            tips.append(
                f"fedpart run {config_file} --set method=fedavg   (the same without learned augmentation)"
            )
        tips.append(f"fedpart compare {config_file}   (all methods side by side, with plots)")
    engine = " --engine local" if summary["engine"] == "flower" else ""  # that one is flwr's own
    tips.append(f"fedpart run --resume {out}{engine} --set rounds={2 * summary['rounds']}   (train on)")
    return tips
