"""The page: what lies in a folder, put into one HTML file that needs no network."""

from pathlib import Path
from typing import Any

from fedpart.extras import need
from fedpart.training.files import parsed
from simulations.config.load import ConfigError, ExperimentConfig
from simulations.config.yaml_files import as_yaml
from simulations.errors import as_written
from simulations.folders.run_directory import CONFIG, SUMMARY, saved_config
from simulations.results.comparison import COLUMNS, COSTS
from simulations.results.curves import Run
from simulations.results.overview import Overview, headline
from simulations.results.pictures.figures import COLOURS, DARK, PREFIX, THEMES
from simulations.results.report import sections as of_runs
from simulations.results.report.data import Data, clients_section, images_section, read_data
from simulations.results.report.folder import Found, about, find, runs_table, versions
from simulations.results.report.others import searched, selected, trained
from simulations.results.report.sections import PageTable, Part, sorted_out
from simulations.results.scores import BYTES, COUNT, SHARE, TIME, Estimate
from simulations.results.search import SEARCH
from simulations.results.tables import without

COST_HEAD = ["method", "held out\n[%]", "measured time", "upload", "of it\npsi", "download", "examples"]


def cost_rows(entry: Found) -> list[list[str]]:
    """Methods in the table of costs, as COST_HEAD names the texts."""
    rows = []
    for row in entry.comparison.rows:
        runs = entry.finished[row.method]
        texts = (
            SHARE.shown(row["held_out"]),
            TIME.shown(row["seconds"]) + row.star,
            BYTES.shown(row["upload_bytes"]),
            BYTES.shown(Estimate.of(run.summary.get("upload_bytes_psi") for run in runs)),
            BYTES.shown(row["download_bytes"]),
            COUNT.shown(Estimate.of(run.summary.get("examples") for run in runs)),
        )
        rows.append([row.method, *texts])
    return rows


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page about what a command has left in a folder, ``report.html`` there; its path."""
    jinja2 = need("jinja2", "fedpart report", "pictures")
    need("matplotlib", "fedpart report", "pictures")
    folder = Path(folder)
    with as_written(folder):
        part = _other(folder)
        content = _comparisons(folder) if part is None else {"parts": [part]}
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
    comparisons = find(folder)
    alone, parts, costs = len(comparisons) == 1, [], []
    for entry in comparisons:
        data = read_data(entry.config, [run.folder for run in entry.runs])
        parts.append(_part(entry, data))
        costs += [[entry.name, *row] for row in cost_rows(entry)]

    def table(caption: str, head: list[str], rows: list[list[str]]) -> PageTable:
        """With the name of the comparison in front, if there are several."""
        if alone:
            return PageTable.of(caption, head[1:], [row[1:] for row in rows])
        return PageTable.of(caption, head, rows, names=2)

    overview = Overview({entry.name: entry.comparison for entry in comparisons})
    caption = "Means over the seeds that are finished, of a whole run and all its clients"
    return {
        "parts": parts,
        # the table of costs has what is left out
        "scores": [table(overview.caption, *without(COSTS, *part)) for part in overview.tables()],
        "columns": COLUMNS,
        "cost": table(caption, ["experiment", *COST_HEAD], costs),
        "runs": PageTable.of("Every run, and the hash of what it computes", *runs_table(comparisons)),
        "versions": versions(comparisons),
    }


def _part(entry: Found, data: Data | str) -> Part:
    shown, configs = entry.shown, [run.config for run in entry.runs]
    most = max(configs, key=lambda config: len(config.build_method().proportions(config.chunks)))
    sections, missing = sorted_out(
        [
            of_runs.curves_section(shown),
            of_runs.clock_section(shown),
            of_runs.sizes_section(shown),
            of_runs.caps_section(shown),
            of_runs.evaluation_section(shown),
            of_runs.lml_section(shown),
            of_runs.psi_section(shown),
            images_section(entry.runs, data),
            clients_section(most, data),  # the chunks of the method that has most of them
        ]
    )
    leads = headline(entry.comparison, None if isinstance(data, str) else data.splits.num_classes)
    notes = [*entry.comparison.remarks, *entry.notes, *entry.unfinished, *missing]
    shared = {key: own for key, own in entry.config.resolved().items() if key not in ("method", "seed")}
    return Part(entry.name, about(entry.config), leads, notes, sections, as_yaml(shared, 90, None))
