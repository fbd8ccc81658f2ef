"""The panel at the end of a run: what came out, in words for somebody who has never seen the method."""

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from simulations.config.yaml_files import key_of, shipped
from simulations.folders.run_directory import BESIDE, read_summary
from simulations.results.terminal.rows import rows

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
    """Print the panel of the run in ``out``, and below it commands to try next, a line each, to be copied.

    ``config_file`` and ``overrides`` are what was run, if it is known; ``command``: by which a run goes on.
    """
    console.print(panel(summary, out))
    console.print(Text("Try next", style="bold"))
    for what, words in _tips(command, summary, out, _command_of(config_file), overrides):
        console.print(Text(f"  {what}:"), soft_wrap=True)
        console.print(Text(f"    {_called()}{shlex.join(['fedpart', *words])}"), soft_wrap=True)


def panel(summary: Mapping[str, Any], out: Path) -> RenderableType:
    """The summary of the run in a folder."""
    method, centralised = summary["method"], "iterations" in summary
    what, clock = (_CENTRALISED, "iterations") if centralised else (_FEDERATED, "rounds")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in rows(summary, out):
        table.add_row(name, Text(text))
    table.add_row(
        "files", Text(f"{out}/: config.yaml, metrics.jsonl, summary.json, state.safetensors, *.png")
    )
    said = Group(Text(what.get(method, f"Method {method}.")), Text(""), table)
    return Panel(said, title=Text(f"{method}, {summary[clock]:,} {clock}"), border_style="green")


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


def _tips(
    command: str, summary: Mapping[str, Any], out: Path, config: str | None, overrides: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """What a command does, and its words."""
    learns, plain = summary["method"] == "partitioned", "the same without learned hyperparameters"
    if "iterations" in summary:
        if config is not None and learns and summary["psi"]:
            yield plain, ["train", config, *_with(overrides, "method=none", "keep_best=false")]
        if summary.get("psi_learned"):
            yield "a plain network with the hyperparameters found", ["retrain", str(out)]
    else:
        if config is not None and "caps" not in summary:  # other methods have none
            if learns and (read_summary(out / BESIDE) or {}).get("method") != "fedavg":
                yield plain, ["run", config, *_with(overrides, "method=fedavg")]
            several = ["compare", config, *_with(overrides, "method=")]
            yield "all methods side by side, with plots", several
        # A run on Flower goes on by the command that knows its federation, or here.
        engine = ["--engine", "local"] if summary["engine"] == "flower" and command == "run" else []
        longer = ["--set", f"rounds={2 * summary['rounds']}"]
        yield "go on for more rounds", [command, "--resume", str(out), *engine, *longer]
    yield "a page with its curves and pictures", ["report", str(out)]
    yield "the network in a file", ["export", str(out)]
