"""What the page shows of a centralised run, a selection and a search."""

from __future__ import annotations

from pathlib import Path

from simulations.config.load import EVIDENCE_NAMES, Config, ExperimentConfig
from simulations.config.search import OBJECTIVES
from simulations.config.yaml_files import as_yaml
from simulations.pictures.figures import Chart, svg
from simulations.pictures.run_figures import mask_figure, run_figure, run_psi_figure
from simulations.pictures.search_figures import spent_figure
from simulations.pictures.selection_figures import selection_figure
from simulations.report.data import read_data
from simulations.report.images import images_section
from simulations.report.parts import PageSection, Part, sorted_out
from simulations.report.tables import PageTable
from simulations.results.curves import Run
from simulations.results.psi_parts import PsiParts
from simulations.results.search import Found
from simulations.results.selection import Selection
from simulations.results.words import DASH, byte_text, counted, digits, duration


def trained(run: Run) -> Part:
    """A run of ``fedpart train``, finished or not."""
    config, summary = run.config, run.summary
    charts, tables = [], []
    headline = f"{run.name}: {counted(len(run.metrics), 'report')} so far, not finished."
    if run.finished:
        head, row = ["scores on"], [["training data"], ["validation data"], ["test data"]]
        for key, heading, factor, points in (
            ("accuracy", "accuracy [%]", 100.0, 0),
            ("nll", "loss [nats]", 1.0, 2),
        ):
            head.append(heading)
            for texts, part in zip(row, ("train", "val", "test"), strict=True):
                value = summary.get(f"{part}_{key}")
                held = digits(
                    summary.get({"val": "validation_examples", "test": "test_examples"}.get(part, ""))
                )
                texts.append(DASH if value is None else f"{factor * value:.{points + held}f}")
        tables = [PageTable.of(f"Scores of {run.name}", head, row)]
        headline = f"{run.name}: {_tested(summary)}{_evidence(summary)}."
    if run.metrics:
        charts.append(Chart("Learning curve", {"": svg(run_figure(run, page=True))}))
        masks = PsiParts.of(run.courses()).keeps
        if len(masks) < len(run.courses()):
            charts.append(Chart("Hyperparameters over iterations", {"": svg(run_psi_figure(run, page=True))}))
        if masks:
            charts.append(Chart("Learned mask", {"": svg(mask_figure(run, page=True))}))
    data = read_data(config, [run.folder])
    drawn = images_section([run], data) if run.finished else None
    sections, notes = sorted_out([PageSection("Curves", charts) if charts else None, drawn])
    if tables:
        sections.insert(0, PageSection("Scores", tables=tables))
    return Part(run.folder.resolve().name, _about(config), headline, notes, sections, _settings(config))


def selected(folder: Path) -> Part:
    """The outcome of ``fedpart select`` in a folder."""
    selection = Selection.load(folder)
    sentences, tables = [], []
    for column in selection.columns:
        found = "; ".join(selection.sentences(column)).removeprefix("* ")
        sentences.append(f"{column.name}: {found}.")
        caption = (
            f"{column.name}: the evidence is {EVIDENCE_NAMES[column.evidence]}; a star marks the best value"
        )
        tables.append(PageTable.of(caption, *selection.cells(column)))
    sections = [PageSection("Values", tables=tables)]
    if any(row.lml is not None for column in selection.columns for row in column.rows):
        charts = []
        for column in selection.columns:
            one = Selection(selection.key, [column], [], selection.config)
            note = "Means over seeds; the shade is the standard error, the dotted line the best value."
            charts.append(Chart(column.name, {"": svg(selection_figure(one, page=True))}, note))
        sections.append(PageSection(f"Scores over {selection.key}", charts))
    notes = [f"Failed: {name}: {error}" for name, error in selection.failures]
    about = f"Values of {selection.key}. {_about(selection.config)}"
    name = folder.resolve().name
    return Part(name, about, " ".join(sentences), notes, sections, _settings(selection.config))


def searched(folder: Path) -> Part:
    """The outcome of ``fedpart search`` in a folder."""
    found = Found.load(folder)
    objective, keys = found.section.objective, list(found.section.space)
    federated = isinstance(found.config, ExperimentConfig)
    larger = OBJECTIVES[objective]
    ranked = sorted(
        found.rows,
        key=lambda row: (
            row.objective is None,
            0 if row.objective is None else row.objective * (1 - 2 * larger),
        ),
    )
    head = ["trial", "state", *keys, objective, "test accuracy [%]", "bytes" if federated else "iterations"]
    rows = []
    for row in ranked:
        tested = row.summary.get("test_accuracy")
        cost = byte_text(row.cost.bytes) if federated else f"{row.cost.rounds:,}"
        own = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values.values()]
        scores = [DASH if row.objective is None else f"{row.objective:.4g}"]
        scores.append(DASH if tested is None else f"{100 * tested:.1f}")
        rows.append([str(row.number), row.state, *own, *scores, cost])
    best, spent = found.best, found.spent
    sent = f"{byte_text(spent.bytes)}, " if federated else ""
    cost = f"All {counted(len(found.rows), 'trial')} took {spent.rounds:,} {found.config.clock.total}, {sent}"
    headline = f"No trial has a result. {cost}{duration(spent.seconds)}."
    if best is not None:
        values = ", ".join(f"{key} {value}" for key, value in best.values.items())
        headline = f"Trial {best.number} is best, with {objective} {best.objective:.4g}: {values}."
        headline += f" {_tested(best.summary).capitalize()}. {cost}{duration(spent.seconds)}."
    caption = f"Trials, the best by {objective} first"
    sections = [PageSection("Trials", tables=[PageTable.of(caption, head, rows, names=2)])]
    if (figure := spent_figure(found, page=True)) is not None:
        note = (
            "Test accuracy of the run that was best by the objective, over what all trials had cost by then."
        )
        sections.append(
            PageSection("What would be deployed", [Chart("Test accuracy", {"": svg(figure)}, note)])
        )
    about = f"A search by {found.section.sampler}. {_about(found.config)}"
    return Part(folder.resolve().name, about, headline, [], sections, _settings(found.config))


def _about(config: Config) -> str:
    points = (
        counted(config.training_points, "training point") if config.training_points else "all training points"
    )
    length = counted(config.length, config.clock.name)
    return f"Data {config.data}, {points}; model {config.model}; method {config.method}, {length}."


def _tested(summary: dict[str, float]) -> str:
    accuracy, loss = summary.get("test_accuracy"), summary.get("test_nll")
    if accuracy is not None:
        return f"test accuracy {100 * accuracy:.{digits(int(summary.get('test_examples', 0)))}f}%"
    return "no score on test data" if loss is None else f"test loss {loss:.4g} nats"


def _evidence(summary: dict[str, float]) -> str:
    lml = summary.get("lml")
    name = EVIDENCE_NAMES[str(summary.get("evidence", "lml"))]
    return "" if lml is None else f", {name} {lml:,.1f} nats at iteration {summary['lml_iteration']:,}"


def _settings(config: Config) -> str:
    return as_yaml(config.resolved(), 90, None)
