"""What the page shows of a centralised run, a selection and a search."""

from pathlib import Path
from typing import Any

from simulations.config.load import Config
from simulations.config.yaml_files import as_yaml
from simulations.results.curves import Run
from simulations.results.pictures.run_figures import run_figures
from simulations.results.pictures.sweep_figures import selection_figure, spent_figure
from simulations.results.report.data import images_section, read_data
from simulations.results.report.folder import points_of
from simulations.results.report.sections import PageSection, PageTable, Part, chart, sorted_out
from simulations.results.scores import DASH, EVIDENCES, FIRST, PARTS, SCORES, counted, first_of, score_of
from simulations.results.search import Found
from simulations.results.selection import Selection

_TITLES = {
    "learning_curve": "Learning curve",
    "psi": "Hyperparameters over iterations",
    "mask": "Learned mask",
}
_EXAMPLES = {"val": "validation_examples", "test": "test_examples"}


def trained(run: Run) -> Part:
    """A run of ``fedpart train``, finished or not."""
    config, summary, charts, scores = run.config, run.summary, [], None
    headline = f"{run.name}: {counted(len(run.metrics), 'report')} so far, not finished."
    if run.finished:
        rows = []
        for part in ("train", "val", "test"):
            rows.append([f"{PARTS[part]} data", *(_score(summary, f"{part}_{key}") for key in FIRST)])
        head = ["scores on", *(SCORES[key].heading for key in FIRST)]
        scores = PageSection("Scores", tables=[PageTable.of(f"Scores of {run.name}", head, rows)])
        lml, evidence = summary.get("lml"), EVIDENCES[summary.get("evidence", "lml")]
        judged = lml is not None and f"{evidence.text(lml)} at iteration {summary['lml_iteration']:,}"
        headline = f"{run.name}: {_tested(summary)}{f', {evidence.word} {judged}' if judged else ''}."
    if run.metrics:
        charts = [chart(_TITLES[name], figure) for name, figure in run_figures(run, page=True).items()]
    drawn = images_section([run], read_data(config, [run.folder])) if run.finished else None
    sections, notes = sorted_out([scores, PageSection("Curves", charts) if charts else None, drawn])
    return _part(run.folder, "", config, headline, sections, notes)


def selected(folder: Path) -> Part:
    """The outcome of ``fedpart select`` in a folder."""
    selection = Selection.load(folder)
    sentences, tables, charts = [], [], []
    note = "Means over seeds; the shade is the standard error, the dotted line the best value."
    for column in selection.columns:
        found = "; ".join(selection.sentences(column)).removeprefix("* ")
        sentences.append(f"{column.name}: {found}.")
        what = f"the evidence is {EVIDENCES[column.evidence].word}; a star marks the best value"
        tables.append(PageTable.of(f"{column.name}: {what}", *selection.cells(column)))
        if selection.known:
            alone = Selection(selection.key, [column], [], selection.config)
            charts.append(chart(column.name, selection_figure(alone, page=True), note))
    sections = [PageSection("Values", tables=tables)]
    sections += [PageSection(f"Scores over {selection.key}", charts)] if charts else []
    notes = [f"Failed: {name}: {error}" for name, error in selection.failures]
    about = f"Values of {selection.key}. "
    return _part(folder, about, selection.config, " ".join(sentences), sections, notes)


def searched(folder: Path) -> Part:
    """The outcome of ``fedpart search`` in a folder."""
    found = Found.load(folder)
    objective, best = found.section.objective, found.best
    cost = "bytes" if found.federated else "iterations"
    head = ["trial", "state", *found.section.space, objective, f"test {SCORES['accuracy'].heading}", cost]
    rows = []
    for row in found.ranked():
        tried, cost = found.texts(row)
        reached = DASH if row.objective is None else f"{row.objective:.4g}"
        rows.append(
            [str(row.number), row.state, *tried, reached, _score(row.summary, "test_accuracy", 1), cost]
        )
    headline = "No trial has a result."
    if best is not None:
        values = ", ".join(f"{key} {value}" for key, value in best.values.items())
        headline = f"Trial {best.number} is best, with {objective} {best.objective:.4g}: {values}."
        headline += f" {_tested(best.summary).capitalize()}."
    headline += f" All {counted(len(found.rows), 'trial')} took {found.cost()}."
    caption = f"Trials, the best by {objective} first"
    sections = [PageSection("Trials", tables=[PageTable.of(caption, head, rows, names=2)])]
    if (figure := spent_figure(found, page=True)) is not None:
        note = (
            "Test accuracy of the run that was best by the objective, over what all trials had cost by then."
        )
        sections.append(PageSection("What would be deployed", [chart("Test accuracy", figure, note)]))
    return _part(folder, f"A search by {found.section.sampler}. ", found.config, headline, sections)


def _part(
    folder: Path, about: str, config: Config, headline: str, sections: list[PageSection], notes: Any = ()
) -> Part:
    length = counted(config.length, config.clock.name)
    about += (
        f"Data {config.data}, {points_of(config)}; model {config.model}; method {config.method}, {length}."
    )
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
