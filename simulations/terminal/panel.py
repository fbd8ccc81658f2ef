"""The panel at the end of a run: what came out, in words for somebody who has never seen the method."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from simulations.config.shipped import shipped
from simulations.config.yaml_files import key_of
from simulations.folders.run_directory import BESIDE, read_summary
from simulations.terminal.rows import beside_rows, federated_rows, rows, training_rows

_CENTRALISED = {
    "partitioned": "One training run learned the network and its hyperparameters, without validation data.",
    "none": "Plain training: the hyperparameters stayed fixed.",
    "augerino": "Training with Augerino: augmentation widths were pushed up by a regulariser.",
    "validation": "Validation-set optimisation: hyperparameters were trained on data set aside.",
    "laplace": "One network on all data: psi followed an estimate of the marginal likelihood.",
    "separate": "Separate networks, one per chunk, learned the hyperparameters: the upper bound.",
}
_FEDERATED = {
    "partitioned": "One federated run learned the network and its hyperparameters, without validation data.",
    "fedavg": "Federated averaging: augmentation is off, and the hyperparameters stayed fixed.",
    "fjord": "FjORD: clients trained parts of their networks, of sizes drawn anew for every local step.",
    "heterofl": "HeteroFL: small networks were the first units of the large one's, averaged unit by unit.",
    "fedrolex": "FedRolex: small networks were a window of the large one's units, which moved every round.",
    "augerino": "Federated averaging with Augerino: augmentation widths were pushed up by a regulariser.",
    "fedex": "FedEx: clients tried settings, and scored them on examples that they held out of training.",
}


def show_end(
    console: Console,
    summary: Mapping[str, Any],
    out: Path,
    config_file: str | None = None,
    overrides: Sequence[str] = (),
    command: str = "run",
) -> None:
    """Print the panel, and below it commands to try next, each on a line of its own, to be copied.

    Args:
        console: to print on.
        summary: of the run in the folder ``out``.
        out: the folder.
        config_file, overrides: what was run, if it is known.
        command: by which a federated run goes on.
    """
    console.print(panel(summary, out))
    tips = _training_tips if "iterations" in summary else partial(_federated_tips, command)
    if found := tips(summary, out, _command_of(config_file), overrides):
        console.print(Text("Try next", style="bold"))
    for what, words in found:
        console.print(Text(f"  {what}:"), soft_wrap=True)
        console.print(Text(f"    {_called()}{shlex.join(['fedpart', *words])}"), soft_wrap=True)


def panel(summary: Mapping[str, Any], out: Path) -> RenderableType:
    """The summary of the run in a folder."""
    what, clock, own_rows = (
        (_CENTRALISED, "iterations", training_rows)
        if "iterations" in summary
        else (_FEDERATED, "rounds", federated_rows)
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in rows(summary, [*own_rows(summary), *beside_rows(summary, out)]):
        table.add_row(name, Text(text))
    files = f"{out}/: config.yaml, metrics.jsonl, summary.json, state.safetensors, *.png"
    table.add_row("files", Text(files))
    said = Text(what.get(summary["method"], f"Method {summary['method']}."))
    lines: list[RenderableType] = [said, Text(""), table]
    title = Text(f"{summary['method']}, {summary[clock]:,} {clock}")
    return Panel(Group(*lines), title=title, border_style="green")


def _command_of(config_file: str | None) -> str | None:
    """As what a configuration is typed: a shipped one by its name."""
    return next((name for name, file in shipped().items() if str(file) == config_file), config_file)


def _called() -> str:
    """What stands before ``fedpart`` on a command line: ``uv run`` of that uv which runs this, or nothing."""
    if "UV_RUN_RECURSION_DEPTH" not in os.environ or (uv := os.environ.get("UV")) is None:
        return ""
    found = shutil.which("uv")
    near = "uv" if found and Path(found).samefile(uv) else os.path.relpath(uv)
    return shlex.join([near, "run"]) + " "


def _with(overrides: Sequence[str], *changes: str) -> list[str]:
    """Arguments that change keys: the run's own, and others in place of those of the same keys."""
    keys = set(map(key_of, changes))
    own = [override for override in overrides if key_of(override) not in keys]
    given = [*own, *(change for change in changes if not change.endswith("="))]
    return ["--set", *given] if given else []


_Tips = list[tuple[str, list[str]]]  # what a command does, and its words


def _federated_tips(
    command: str, summary: Mapping[str, Any], out: Path, config: str | None, overrides: Sequence[str]
) -> _Tips:
    tips: _Tips = []
    if config is not None and "caps" not in summary:  # other methods have none
        beside = read_summary(out / BESIDE) or {}
        if summary["method"] == "partitioned" and beside.get("method") != "fedavg":
            plain = ["run", config, *_with(overrides, "method=fedavg")]
            tips.append(("the same without learned hyperparameters", plain))
        several = ["compare", config, *_with(overrides, "method=")]
        tips.append(("all methods side by side, with plots", several))
    # A run on Flower goes on by the command that knows its federation, or here.
    engine = ["--engine", "local"] if summary["engine"] == "flower" and command == "run" else []
    longer = ["--set", f"rounds={2 * summary['rounds']}"]
    tips.append(("go on for more rounds", [command, "--resume", str(out), *engine, *longer]))
    return tips + _finished_tips(out)


def _training_tips(
    summary: Mapping[str, Any], out: Path, config: str | None, overrides: Sequence[str]
) -> _Tips:
    tips: _Tips = []
    if config is not None and summary["method"] == "partitioned" and summary["psi"]:
        plain = ["train", config, *_with(overrides, "method=none", "keep_best=false")]
        tips.append(("the same without learned hyperparameters", plain))
    if summary.get("psi_learned"):
        tips.append(("a plain network with the hyperparameters found", ["retrain", str(out)]))
    return tips + _finished_tips(out)


def _finished_tips(out: Path) -> _Tips:
    return [
        ("a page with its curves and pictures", ["report", str(out)]),
        ("the network in a file", ["export", str(out)]),
    ]
