"""Sections of the page: what they consist of, and those of a comparison; None: nothing is to be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simulations.results import scores
from simulations.results.curves import Run, metric, seconds_to_accuracy, with_curve
from simulations.results.pictures import comparison_figures as pictures
from simulations.results.pictures import figures as fig
from simulations.results.pictures.comparison_figures import AVERAGED, AXES, OF_ROUNDS, spread
from simulations.results.pictures.figures import MANY, Chart, svg
from simulations.results.scores import BYTES, COUNT, DASH, FIRST, TIME, Estimate, score_of, words_of

KINDS = {"by_architecture": "size", "by_cap": "cap"}  # of clients, by the key in a summary
OF_KIND = {  # columns
    "clients": replace(COUNT, word="clients"),
    "parameters": replace(COUNT, word="parameters"),
    "upload_bytes": replace(BYTES, word="sent"),
    "download_bytes": replace(BYTES, word="received"),
    **{key: replace(score_of(key), word=f"test {score_of(key).word}") for key in FIRST},
}
SCORES = ("validation", "test", "clients ", "at equal")  # columns with these beginnings are always shown


@dataclass(frozen=True)
class PageTable:
    """A table of texts."""

    caption: str  # what it is, above it
    head: list[str]
    rows: list[list[str]]  # a text for each heading; the first one names the row
    alike: str = ""  # a sentence on columns that were left out

    @classmethod
    def of(
        cls, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1
    ) -> PageTable:
        """Without what nobody knows and, of two rows or more, without what is the same in all of them."""
        shown, same = list(range(min(names, len(head)))), []
        for i in range(names, len(head)):
            texts = {row[i] for row in rows}
            if len(rows) > 1 and len(texts) == 1 and texts != {DASH} and not head[i].startswith(SCORES):
                same.append(f"{' '.join(head[i].split())}: {' '.join(texts.pop().split())}")
            elif texts != {DASH}:
                shown.append(i)
        alike = f"In every row: {'; '.join(same)}." if same else ""
        return cls(caption, [head[i] for i in shown], [[row[i] for i in shown] for row in rows], alike)


@dataclass(frozen=True)
class Sheet:
    """Images in rows and columns, as a data URL."""

    title: str  # above them: what was done to them
    image: str
    columns: int


@dataclass(frozen=True)
class PageSection:
    """A part of the page under a heading of its own."""

    heading: str
    charts: Sequence[fig.Chart] = ()  # drawn side by side where there is room
    sheets: Mapping[str, Sequence[Sheet]] = field(default_factory=dict)  # in groups with a heading each
    tables: Sequence[PageTable] = ()
    text: str = ""  # above all that, below what the page says of every section of this heading
    lines: Sequence[str] = ()  # a list below the text


@dataclass(frozen=True)
class Part:
    """What a page shows of one experiment."""

    name: str
    about: str  # what it is, in a line
    headline: str  # what came out, in a few sentences
    notes: Sequence[str]  # sentences on what is missing, or less comparable than it looks
    sections: Sequence[PageSection]  # those that there are data for
    settings: str  # the configuration, as YAML


def chart(title: str, figure: fig.Figure, note: str = "") -> fig.Chart:
    """A figure that is the only one of its thing."""
    return fig.Chart(title, {"": fig.svg(figure)}, note)


def sorted_out(found: Sequence[PageSection | str | None]) -> tuple[list[PageSection], list[str]]:
    """Sections, and the sentences on those that are missing."""
    sections = [section for section in found if isinstance(section, PageSection)]
    return sections, list(dict.fromkeys(section for section in found if isinstance(section, str)))


Runs = Mapping[str, Sequence[Run]]  # by method


def curves_section(runs: Runs) -> PageSection | str:
    """Learning curves, against rounds, bytes and times; or why there are none."""
    key = metric(runs)
    shown = with_curve(runs, key)
    if not any(shown.values()):
        return "No run has been evaluated yet."
    views = {}
    for against, name in AXES.items():
        drawn = clocked(shown) if against == "time" else shown
        if any(drawn.values()):
            figure = pictures.metric_figure(drawn, against, page=True)
            views["rounds" if against == "rounds" else name] = svg(figure)
    note = f"{AVERAGED.capitalize()}. {spread(runs).capitalize()}."
    if any(run.summary.get("runs_at_a_time", 1) > 1 for group in runs.values() for run in group):
        note += " Time was measured while several runs shared the machine."
    return PageSection("Learning curves", [Chart(words_of(key).capitalize(), views, note)])


def clocked(runs: Runs) -> dict[str, list[Run]]:
    """Those that have a simulated clock."""
    return {
        method: [run for run in group if run.metrics and "simulated_seconds" in run.metrics[-1]]
        for method, group in runs.items()
    }


def clock_section(runs: Runs) -> PageSection | None:
    """The simulated time to levels of accuracy; None: no run has a clock."""
    lines = []
    for run in (run for group in clocked(with_curve(runs, metric(runs))).values() for run in group):
        reached = seconds_to_accuracy(run.metrics).items()
        told = ", ".join(f"{float(level):.0%} after {TIME.text(seconds)}" for level, seconds in reached)
        shares = "; ".join(f"{share:.0%}" for share in run.summary.get("answers_chunks", ()))
        chunks = f" Answers by chunk: {shares}." if shares else ""
        whole = TIME.text(run.metrics[-1]["simulated_seconds"])
        lines.append(f"{run.name}: {told or 'less than 50%'}, of {whole}.{chunks}")
    return PageSection("Simulated time", lines=lines) if lines else None


def evaluation_section(runs: Runs) -> PageSection | None:
    """What the clients found on examples that they hold out; None: they were not asked."""
    key = metric(runs, "client")
    asked, score, lines = with_curve(runs, key), score_of(key), list[str]()
    each: dict[str, list[list[float | None]]] = {}
    for run in (run for group in asked.values() for run in group):
        line = [report for report in run.metrics if report.get(key) is not None][-1]
        told = "; ".join(
            f"by {kind} " + ", ".join("none" if x is None else score.text(x) for x in several)
            for kind in ("chunk", "cap")
            if (several := line.get(f"{key}_{kind}s"))
        )
        lines.append(f"{run.name}, round {line['round']}: {told}.")
        each.setdefault(run.config.method, []).append(line.get(f"{key}_each", []))
    if not lines:
        return None
    note = f"{AVERAGED.capitalize()}. {spread(runs).capitalize()}."
    title = f"{score.word.capitalize()} on the clients over rounds"
    drawn = chart(title, pictures.clients_figure(asked, page=True), note)
    clients = range(max(len(row) for seeds in each.values() for row in seeds))
    known = {m: seeds for m, seeds in each.items() if all(len(row) == len(clients) for row in seeds)}
    texts = ([score.cell(Estimate.of(x)) for x in zip(*seeds, strict=True)] for seeds in known.values())
    every = (run.summary.get("client_names", ()) for group in asked.values() for run in group)
    names = next((told for told in every if len(told) == len(clients)), ())
    rows = [[scores.client_text(client, names), *row] for client, row in enumerate(zip(*texts, strict=True))]
    head = ["client", *(f"{method} [{score.unit}]" for method in known)]
    table = PageTable.of(f"{score.word.capitalize()} of each client after the last round", head, rows)
    return PageSection("Evaluation on the clients", [drawn], tables=[table] if rows else [], lines=lines)


def kinds_section(runs: Runs) -> PageSection | None:
    """What clients of each size and cap reach, send and receive; None: no finished run has several kinds."""
    tables = []
    for key, kind in KINDS.items():
        kinds: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for method, row in ((m, row) for m in runs for run in runs[m] for row in run.summary.get(key, ())):
            name = scores.size_name(row) if "model_options" in row else str(row["cap"])
            each = {way: row[way] / max(1, row["clients"]) for way in ("upload_bytes", "download_bytes")}
            kinds.setdefault((name, method), []).append(row | each)
        rows = [
            [
                *names,
                *(score.shown(Estimate.of(row.get(of) for row in known)) for of, score in OF_KIND.items()),
            ]
            for names, known in kinds.items()
        ]
        head = [kind, "method", *(score.heading for score in OF_KIND.values())]
        caption = f"By {kind}: means over seeds, bytes of a client in a whole run"
        tables += [PageTable.of(caption, head, rows, names=2)] if rows else []
    return PageSection("Kinds of clients", tables=tables) if tables else None


def lml_section(runs: Runs) -> PageSection | None:
    """What is known without held-out data: L_ML per example; None: no run has it."""
    if not any(with_curve(runs, "lml").values()):
        return None
    note = f"{OF_ROUNDS.capitalize()}. {spread(runs).capitalize()}."
    drawn = chart("L_ML per example over rounds", pictures.lml_figure(runs, page=True), note)
    return PageSection("Without held-out data", [drawn])


def psi_section(runs: Runs) -> PageSection | None:
    """Hyperparameters over rounds, a chart per kind; None: no run has learned any."""
    charts = []
    for group in pictures.psi_groups(runs):
        pairs = len(next(iter(group.lines.values()))) > 1
        note = "Two lines of a kind are the ends of a range. " if pairs else ""
        if len(group.lines) > MANY:
            note = f"Median of {len(group.lines)}, and where the middle 80% lie. "
        figure = pictures.psi_figure(runs, [group], page=True)
        charts.append(chart(group.title, figure, f"{note}{spread(runs).capitalize()}."))
    return PageSection("Hyperparameters over rounds", charts) if charts else None
