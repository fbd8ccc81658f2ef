"""The page: what lies in a folder, put into one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpart.extras import need
from fedpart.training.files import parsed
from simulations.config.load import ConfigError, ExperimentConfig
from simulations.errors import as_written
from simulations.folders.run_directory import CONFIG, SUMMARY, saved_config
from simulations.pictures.colours import COLOURS, DARK, THEMES
from simulations.pictures.figures import PREFIX
from simulations.report.costs import COST_HEAD, DOWN, UP, cost_rows
from simulations.report.data import Data, read_data
from simulations.report.folder import Found, find
from simulations.report.images import clients_section, images_section
from simulations.report.others import searched, selected, trained
from simulations.report.parts import Part, sorted_out
from simulations.report.runs import about, runs_table, settings_text, versions
from simulations.report.sections import (
    caps_section,
    clock_section,
    curves_section,
    evaluation_section,
    lml_section,
    psi_section,
    sizes_section,
)
from simulations.report.tables import PageTable
from simulations.results.curves import Run
from simulations.results.headline import headline
from simulations.results.overview import Overview
from simulations.results.spending import SEARCH
from simulations.results.tables import COLUMNS, COSTS, without


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page about what a command has left in a folder; its path.

    ``fedpart compare``, ``run`` or ``train`` may still be writing there: what is missing, or cannot be read
    here, is a sentence on the page. ``select`` and ``search`` must have ended. Without ``out`` it is
    ``report.html`` in the folder.

    Raises:
        ConfigError: there is nothing in the folder that a page shows; one sentence.
        MissingExtra: jinja2 or matplotlib are not installed.
        OSError: the file cannot be written.
    """
    jinja2 = need("jinja2", "fedpart report", "pictures")
    need("matplotlib", "fedpart report", "pictures")
    folder = Path(folder)
    with as_written(folder):
        one = _other(folder)
        content = _comparisons(folder) if one is None else {"parts": [one]}
    files = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=files, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    themes = {
        name: {**colours, **{f"c{i}": colour for i, colour in enumerate(DARK if name == "dark" else COLOURS)}}
        for name, colours in THEMES.items()
    }
    page = environment.get_template("page.html").render(
        name=folder.resolve().name, prefix=PREFIX, themes=themes, **content
    )
    path = folder / "report.html" if out is None else Path(out)
    path.write_text(page, encoding="utf-8")
    return path


def _other(folder: Path) -> Part | None:
    """Of a folder that holds no federated run; None: it may hold some."""
    if (folder / SEARCH).is_file():
        return searched(folder)
    if (folder / CONFIG).is_file():
        config = saved_config(folder)
        if config.search is not None and not (folder / SUMMARY).is_file():
            raise ConfigError(
                f"The search in {folder} has not ended; end it with fedpart search --resume {folder}."
            )
        return None if isinstance(config, ExperimentConfig) else trained(Run.load(folder))
    try:
        chosen = "best_k" in parsed((folder / SUMMARY).read_bytes())
    except (OSError, ValueError, TypeError):
        return None
    return selected(folder) if chosen else None


def _comparisons(folder: Path) -> dict[str, Any]:
    """What the page says of federated runs."""
    comparisons = find(folder)
    several, parts, costs = len(comparisons) > 1, [], []
    for found in comparisons:
        data = read_data(found.config, [run.folder for run in found.runs])
        parts.append(_part(found, data))
        costs += [(found.name, row) for row in cost_rows(found, data)]
    overview = Overview({found.name: found.comparison for found in comparisons})
    scores = [
        _named(
            overview.caption,
            without(COSTS, head, head),
            [(n, without(COSTS, head, row)) for n, row in rows],
            several,
        )
        for head, rows in overview.tables()  # the table of costs has what is left out
    ]
    caption = "Means over the seeds that are finished, of a whole run and all its clients"
    return {
        "parts": parts,
        "scores": scores,
        "columns": COLUMNS,
        "cost": _named(caption, COST_HEAD, costs, several),
        "up": f"{UP / 2**20:g} MiB/s",
        "down": f"{DOWN / 2**20:g} MiB/s",
        "runs": PageTable.of("Every run, and the hash of what it computes", *runs_table(comparisons)),
        "versions": versions(comparisons),
    }


def _part(found: Found, data: Data | str) -> Part:
    shown, configs = found.shown, [run.config for run in found.runs]
    most = max(configs, key=lambda config: len(config.build_method().proportions(config.chunks)))
    sections, missing = sorted_out(
        [
            curves_section(shown),
            clock_section(shown),
            sizes_section(shown),
            caps_section(shown),
            evaluation_section(shown),
            lml_section(shown),
            psi_section(shown),
            images_section(found.runs, data),
            clients_section(most, data),  # the chunks of the method that has most of them
        ]
    )
    classes = None if isinstance(data, str) else data.splits.num_classes
    notes = [*found.comparison.remarks, *found.notes, *_unfinished(found), *missing]
    leads = headline(found.comparison, classes)
    return Part(found.name, about(found.config), leads, notes, sections, settings_text(found))


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


def _named(caption: str, head: list[str], rows: Sequence[tuple[str, list[str]]], named: bool) -> PageTable:
    """With the name of the comparison in front, if there are several."""
    if not named:
        return PageTable.of(caption, head, [row for _, row in rows])
    return PageTable.of(caption, ["experiment", *head], [[name, *row] for name, row in rows], names=2)
