"""The page: what lies in a folder, put into one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from simulations.folders.run_directory import saved_config
from simulations.report.charts import PREFIX
from simulations.report.costs import DOWN, UP, Cost, count_steps
from simulations.report.data import Data, DataMissing
from simulations.report.folder import Found, find
from simulations.report.sections import (
    Section,
    clients_section,
    curves_section,
    images_section,
    psi_section,
)
from simulations.report.settings import Table, about, runs_table, settings_text, versions
from simulations.results.comparison import DASH
from simulations.results.curves import Run, byte_text
from simulations.results.estimate import Estimate
from simulations.results.overview import Overview
from simulations.results.tables import COLUMNS, COSTS, HELD_OUT, without

FILE = "report.html"


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page about the comparison or the run in a folder; its path.

    What is not there yet, or cannot be read here, is a sentence on the page.

    Args:
        folder: that ``fedpart compare`` or ``fedpart run`` has written, or is still writing.
        out: the file; ``report.html`` in the folder if not given.

    Raises:
        ConfigError: there are no federated runs in the folder; one sentence.
        OSError: the file cannot be written.
    """
    folder = Path(folder)
    page = make_page(folder.resolve().name, find(folder))
    path = folder / FILE if out is None else Path(out)
    path.write_text(page, encoding="utf-8")
    return path


def make_page(name: str, comparisons: Sequence[Found]) -> str:
    """The page about comparisons, as HTML.

    Args:
        name: of the folder that they lie in.
        comparisons: at least one.
    """
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    experiments, costs = [], []
    for found in comparisons:
        runs, data = found.shown, _data(found)
        experiments.append(
            {
                "name": found.name,
                "about": about(found.config),
                "notes": [*found.comparison.remarks, *found.notes, *_unfinished(found)],
                "sections": _sections(found, runs, data),
                "settings": settings_text(found),
            }
        )
        costs.append((found.name, _costs(found, data)))
    overview = Overview({found.name: found.comparison for found in comparisons})
    rate = 2**20
    return environment.get_template("page.html").render(
        name=name,
        prefix=PREFIX,
        experiments=experiments,
        tables=[_results(head, rows, len(comparisons) > 1) for head, rows in overview.tables()],
        caption=overview.caption,
        columns=COLUMNS,
        cost=_cost_table(costs, len(comparisons) > 1),
        up=f"{UP / rate:g} MiB/s",
        down=f"{DOWN / rate:g} MiB/s",
        runs=runs_table(comparisons),
        versions=versions(comparisons),
    )


def _sections(found: Found, runs: dict[str, list[Run]], data: Data | str) -> list[Section]:
    # the chunks of the method that has most of them
    most = max(found.cells, key=lambda cell: len(cell.config.build_method().proportions(cell.config.chunks)))
    return [
        curves_section(runs),
        psi_section(runs),
        images_section(found.cells, data),
        clients_section(most.config, data),
    ]


def _data(found: Found) -> Data | str:
    try:
        return Data.read(found.config, [cell.folder for cell in found.cells])
    except DataMissing as error:
        return str(error)


def _unfinished(found: Found) -> list[str]:
    notes = []
    for method in found.methods:
        own = [cell for cell in found.cells if cell.config.method == method]
        seeds = [str(cell.config.seed) for cell in own if not cell.finished()]
        if seeds:
            drawn = "left out of the curves" if len(seeds) < len(own) else "drawn as far as it is"
            plural = "s" if len(seeds) > 1 else ""
            notes.append(f"{method}, seed{plural} {', '.join(seeds)}: not finished; {drawn}.")
    return notes


def _costs(found: Found, data: Data | str) -> dict[str, Cost]:
    return {method: Cost.of(own, _steps(own, data)) for method, own in found.finished.items()}


def _steps(runs: Sequence[Run], data: Data | str) -> list[tuple[int, int]] | None:
    """Of each run; None if data or model cannot be had here."""
    if isinstance(data, str):
        return None
    classes = data.splits.num_classes
    try:
        return [count_steps(saved_config(run.folder), run.metrics, data.shards, classes) for run in runs]
    except (ValueError, TypeError, OSError, ImportError):
        return None


def _cost_table(costs: Sequence[tuple[str, dict[str, Cost]]], named: bool) -> Table:
    head = ["method", HELD_OUT, "measured time", "upload", "of it\npsi", "download", "local steps"]
    head += ["psi batches", "c [s]", "estimated time"]
    rows = []
    for name, own in costs:
        for method, cost in own.items():
            rows.append(
                (
                    name,
                    [
                        method,
                        _text(cost.held_out, lambda share: f"{100 * share:.1f}"),
                        _text(cost.seconds, duration),
                        _text(cost.upload, byte_text),
                        _text(cost.upload_psi, byte_text),
                        _text(cost.download, byte_text),
                        _text(cost.steps, lambda number: f"{number:,.0f}"),
                        _text(cost.psi_batches, lambda number: f"{number:,.0f}"),
                        _text(cost.client_seconds, lambda number: f"{number:.3g}"),
                        _text(cost.estimate, duration),
                    ],
                )
            )
    return _named(head, rows, named)


def _results(head: list[str], rows: Sequence[tuple[str, list[str]]], named: bool) -> Table:
    """Without what the table of costs has."""
    kept = [(name, without(COSTS, head, row)) for name, row in rows]
    return _named(without(COSTS, head, head), kept, named)


def _named(head: list[str], rows: Sequence[tuple[str, list[str]]], named: bool) -> Table:
    """With the name of the comparison in front, if there are several."""
    if not named:
        return head, [row for _, row in rows]
    return ["experiment", *head], [[name, *row] for name, row in rows]


def _text(score: Estimate | None, show: Callable[[float], str]) -> str:
    return DASH if score is None else show(score.mean)


def duration(seconds: float) -> str:
    """``3 h 20 min``, ``12 min 5 s`` or ``8.3 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min"
