"""The page: what lies in a folder, put into one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulations.pictures.figures import PREFIX
from simulations.report.costs import COST_HEAD, DOWN, UP, cost_rows
from simulations.report.data import read_data
from simulations.report.folder import Found, find
from simulations.report.runs import Table, about, runs_table, settings_text, versions
from simulations.report.sections import (
    clients_section,
    clock_section,
    curves_section,
    evaluation_section,
    images_section,
    lml_section,
    psi_section,
    sizes_section,
)
from simulations.results.overview import Overview
from simulations.results.tables import COLUMNS, COSTS, without


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page about the comparison or the run in a folder; its path.

    ``fedpart compare`` or ``run`` may still be writing there: what is missing, or cannot be read here, is a
    sentence on the page. Without ``out`` it is ``report.html`` in the folder.

    Raises:
        ConfigError: there are no federated runs in the folder; one sentence.
        OSError: the file cannot be written.
    """
    from jinja2 import Environment, FileSystemLoader

    folder = Path(folder)
    comparisons = find(folder)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    several, experiments, costs = len(comparisons) > 1, [], []
    for found in comparisons:
        data = read_data(found.config, [run.folder for run in found.runs])
        configs = [run.config for run in found.runs]  # the chunks of the method that has most of them
        more = (
            clock_section,
            sizes_section,
            evaluation_section,
            lml_section,
        )  # where there is anything to show
        most = max(configs, key=lambda config: len(config.build_method().proportions(config.chunks)))
        experiments.append(
            {
                "name": found.name,
                "about": about(found.config),
                "notes": [*found.comparison.remarks, *found.notes, *_unfinished(found)],
                "sections": [
                    curves_section(found.shown),
                    *(section for make in more if (section := make(found.shown)) is not None),
                    psi_section(found.shown),
                    images_section(found.runs, data),
                    clients_section(most, data),
                ],
                "settings": settings_text(found),
            }
        )
        costs += [(found.name, row) for row in cost_rows(found, data)]
    overview = Overview({found.name: found.comparison for found in comparisons})
    tables = [
        (without(COSTS, head, head), [(name, without(COSTS, head, row)) for name, row in rows])
        for head, rows in overview.tables()  # the table of costs has what is left out
    ]
    page = environment.get_template("page.html").render(
        name=folder.resolve().name,
        prefix=PREFIX,
        experiments=experiments,
        tables=[_named(head, rows, several) for head, rows in tables],
        caption=overview.caption,
        columns=COLUMNS,
        cost=_named(COST_HEAD, costs, several),
        up=f"{UP / 2**20:g} MiB/s",
        down=f"{DOWN / 2**20:g} MiB/s",
        runs=runs_table(comparisons),
        versions=versions(comparisons),
    )
    path = folder / "report.html" if out is None else Path(out)
    path.write_text(page, encoding="utf-8")
    return path


def _unfinished(found: Found) -> list[str]:
    notes = []
    for method in found.methods:
        own = [run for run in found.runs if run.config.method == method]
        seeds = [str(run.config.seed) for run in own if not run.finished]
        if seeds:
            drawn = "left out of the curves" if len(seeds) < len(own) else "drawn as far as it is"
            plural = "s" if len(seeds) > 1 else ""
            notes.append(f"{method}, seed{plural} {', '.join(seeds)}: not finished; {drawn}.")
    return notes


def _named(head: list[str], rows: Sequence[tuple[str, list[str]]], named: bool) -> Table:
    """With the name of the comparison in front, if there are several."""
    if not named:
        return head, [row for _, row in rows]
    return ["experiment", *head], [[name, *row] for name, row in rows]
