"""The page: what lies in a folder, put into one HTML file that needs no network."""

from pathlib import Path
from shlex import quote
from typing import Any

from fedpart.checks import require
from fedpart.extras import need
from fedpart.training.files import parsed
from simulations.config.load import Config, ConfigError, ExperimentConfig
from simulations.config.yaml_files import as_yaml
from simulations.errors import as_written
from simulations.folders.run_directory import CONFIG, SUMMARY, saved_config
from simulations.results import scores
from simulations.results.comparison import COLUMNS, COSTS, headline
from simulations.results.curves import Run
from simulations.results.pictures.figures import COLOURS, DARK, PREFIX, THEMES
from simulations.results.pictures.run_figures import run_figures
from simulations.results.pictures.sweep_figures import selection_figure, spent_figure
from simulations.results.report import sections as of_runs
from simulations.results.report.data import Data, clients_section, images_section, read_data
from simulations.results.report.folder import Found, about, find, points_of, runs_table, versions
from simulations.results.report.sections import PageSection, PageTable, Part, chart, sorted_out
from simulations.results.scores import DASH, EVIDENCES, FIRST, PARTS, SCORES, counted, first_of, score_of
from simulations.results.search import SEARCH
from simulations.results.search import Found as Search
from simulations.results.selection import Selection
from simulations.results.tables import without

_TITLES = {
    "learning_curve": "Learning curve",
    "psi": "Hyperparameters over iterations",
    "mask": "Learned mask",
}
_EXAMPLES = {"val": "validation_examples", "test": "test_examples"}
COST_HEAD = ["method", "held out\n[%]", "measured time", "upload", "of it\npsi", "download", "examples"]


def cost_rows(entry: Found) -> list[list[str]]:
    """Methods in the table of costs, as COST_HEAD names the texts."""
    rows = []
    for row in entry.comparison.rows:
        runs = entry.finished[row.method]
        texts = (
            scores.SHARE.shown(row["held_out"]),
            scores.TIME.shown(row["seconds"]) + row.star,
            scores.BYTES.shown(row["upload_bytes"]),
            scores.BYTES.shown(scores.Estimate.of(run.summary.get("upload_bytes_psi") for run in runs)),
            scores.BYTES.shown(row["download_bytes"]),
            scores.COUNT.shown(scores.Estimate.of(run.summary.get("examples") for run in runs)),
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
        content = _comparison(folder) if part is None else {"part": part}
    files = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=files, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    themes = {
        name: {**colours, **{f"c{i}": colour for i, colour in enumerate(DARK if name == "dark" else COLOURS)}}
        for name, colours in THEMES.items()
    }
    content |= {"name": folder.resolve().name, "prefix": PREFIX, "themes": themes}
    page = environment.get_template("page.html").render(content)
    path = folder / "report.html" if out is None else Path(out)
    held = path.read_bytes() if path.is_file() else b""
    ours = out is None or not (held or path.is_dir()) or b"<title>fedpart" in held[:9999]
    require(ours, f"--out {path} would overwrite what is no report; name another file.", ConfigError)
    path.write_text(page, encoding="utf-8")
    return path


def _other(folder: Path) -> Part | None:
    """Of a folder that holds no federated run; None: it may hold some."""
    if (folder / SEARCH).is_file():
        return searched(folder)
    if (folder / CONFIG).is_file():
        config = saved_config(folder)
        if config.search is not None and not (folder / SUMMARY).is_file():
            remedy = f"end it with fedpart search --resume {quote(str(folder))}"
            raise ConfigError(f"The search in {folder} has not ended; {remedy}.")
        return None if isinstance(config, ExperimentConfig) else trained(Run.load(folder))
    try:
        chosen = "best_k" in parsed((folder / SUMMARY).read_bytes())
    except (OSError, ValueError, TypeError):
        return None
    return selected(folder) if chosen else None


def _comparison(folder: Path) -> dict[str, Any]:
    entry = find(folder)
    comparison = entry.comparison
    caption = "Means over the seeds that are finished, of a whole run and all its clients"
    return {
        "part": _part(entry, read_data(entry.config, [run.folder for run in entry.runs])),
        # the table of costs has what is left out
        "scores": PageTable.of(comparison.caption, *without(COSTS, *comparison.cells())),
        "columns": COLUMNS,
        "cost": PageTable.of(caption, COST_HEAD, cost_rows(entry)),
        "runs": PageTable.of("Every run, and the hash of what it computes", *runs_table(entry.runs)),
        "versions": versions(entry.runs),
    }


def _part(entry: Found, data: Data | str) -> Part:
    shown, configs = entry.shown, [run.config for run in entry.runs]
    most = max(configs, key=lambda config: len(config.build_method().proportions(config.chunks)))
    sections, missing = sorted_out(
        [
            of_runs.curves_section(shown),
            of_runs.clock_section(shown),
            of_runs.kinds_section(shown),
            of_runs.evaluation_section(shown),
            of_runs.lml_section(shown),
            of_runs.psi_section(shown),
            images_section(entry.runs, data),
            clients_section(most, data),  # the chunks of the method that has most of them
        ]
    )
    leads = headline(entry.comparison, None if isinstance(data, str) else data.splits.num_classes)
    notes = [*entry.comparison.remarks, *entry.notes, *entry.unfinished, *missing]
    shared = {key: value for key, value in entry.config.resolved().items() if key not in ("method", "seed")}
    return Part(entry.name, about(entry.config), leads, notes, sections, as_yaml(shared, 90, None))


def trained(run: Run) -> Part:
    """A run of ``fedpart train``, finished or not."""
    config, summary, charts, table = run.config, run.summary, [], None
    headline = f"{run.name}: {counted(len(run.metrics), 'report')} so far, not finished."
    if run.finished:
        rows = []
        for part in ("train", "val", "test"):
            rows.append([f"{PARTS[part]} data", *(_score(summary, f"{part}_{key}") for key in FIRST)])
        head = ["scores on", *(SCORES[key].heading for key in FIRST)]
        table = PageSection("Scores", tables=[PageTable.of(f"Scores of {run.name}", head, rows)])
        lml, evidence = summary.get("lml"), EVIDENCES[summary.get("evidence", "lml")]
        judged = lml is not None and f"{evidence.text(lml)} at iteration {summary['lml_iteration']:,}"
        headline = f"{run.name}: {_tested(summary)}{f', {evidence.word} {judged}' if judged else ''}."
    if run.metrics:
        charts = [chart(_TITLES[name], figure) for name, figure in run_figures(run, page=True).items()]
    drawn = images_section([run], read_data(config, [run.folder])) if run.finished else None
    sections, notes = sorted_out([table, PageSection("Curves", charts) if charts else None, drawn])
    return _alone(run.folder, "", config, headline, sections, notes)


def selected(folder: Path) -> Part:
    """The outcome of ``fedpart select`` in a folder."""
    selection = Selection.load(folder)
    sentences, tables, charts = [], [], []
    note = "Means over seeds; the shade is the standard error, the dotted line the best value."
    for column in selection.columns:
        sentence = "; ".join(selection.sentences(column)).removeprefix("* ")
        sentences.append(f"{column.name}: {sentence}.")
        what = f"the evidence is {EVIDENCES[column.evidence].word}; a star marks the best value"
        tables.append(PageTable.of(f"{column.name}: {what}", *selection.cells(column)))
        if selection.known:
            alone = Selection(selection.key, [column], [], selection.config)
            charts.append(chart(column.name, selection_figure(alone, page=True), note))
    sections = [PageSection("Values", tables=tables)]
    sections += [PageSection(f"Scores over {selection.key}", charts)] if charts else []
    notes = [f"Failed: {name}: {error}" for name, error in selection.failures]
    about = f"Values of {selection.key}. "
    return _alone(folder, about, selection.config, " ".join(sentences), sections, notes)


def searched(folder: Path) -> Part:
    """The outcome of ``fedpart search`` in a folder."""
    search = Search.load(folder)
    objective, best = search.section.objective, search.best
    cost = "bytes" if search.federated else "iterations"
    head = ["trial", "state", *search.section.space, objective, f"test {SCORES['accuracy'].heading}", cost]
    rows = []
    for row in search.ranked():
        tried, cost = search.texts(row)
        reached = DASH if row.objective is None else f"{row.objective:.4g}"
        tested = _score(row.summary, "test_accuracy", 1)
        rows.append([str(row.number), row.state, *tried, reached, tested, cost])
    headline = "No trial has a result."
    if best is not None:
        values = ", ".join(f"{key} {value}" for key, value in best.values.items())
        headline = f"Trial {best.number} is best, with {objective} {best.objective:.4g}: {values}."
        headline += f" {_tested(best.summary).capitalize()}."
    headline += f" All {counted(len(search.rows), 'trial')} took {search.cost()}."
    caption = f"Trials, the best by {objective} first"
    sections = [PageSection("Trials", tables=[PageTable.of(caption, head, rows, names=2)])]
    if (figure := spent_figure(search, page=True)) is not None:
        best_run = "the run that was best by the objective"
        note = f"Test accuracy of {best_run}, over what all trials had cost by then."
        sections.append(PageSection("What would be deployed", [chart("Test accuracy", figure, note)]))
    return _alone(folder, f"A search by {search.section.sampler}. ", search.config, headline, sections)


def _alone(
    folder: Path, about: str, config: Config, headline: str, sections: list[PageSection], notes: Any = ()
) -> Part:
    method = f"method {config.method}, {counted(config.length, config.clock.name)}"
    about += f"Data {config.data}, {points_of(config)}; model {config.model}; {method}."
    return Part(folder.resolve().name, about, headline, notes, sections, as_yaml(config.resolved(), 90, None))


def _score(summary: dict[str, Any], key: str, digits: int | None = None) -> str:
    """A score in a table, with the digits that the examples hold, or a dash."""
    if (value := summary.get(key)) is None:
        return DASH
    score, held = score_of(key), summary.get(_EXAMPLES.get(key.partition("_")[0], ""))
    return score.number(value, score.places(held) if digits is None else digits)


def _tested(summary: dict[str, Any]) -> str:
    if (key := first_of(summary, "test_")) is None:
        return "no score on test data"
    score = score_of(key)
    return f"test {score.word} {score.text(summary[key], score.places(summary.get('test_examples')))}"
