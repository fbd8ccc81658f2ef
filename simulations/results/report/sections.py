"""Sections of the page: what they consist of, and those of a comparison; None: nothing is to be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simulations.results.curves import Run, metric, seconds_to_accuracy, with_curve
from simulations.results.pictures import comparison_figures as pictures
from simulations.results.pictures import figures as fig
from simulations.results.pictures.comparison_figures import AVERAGED, AXES, OF_ROUNDS, SIZES, by_size, spread
from simulations.results.pictures.figures import MANY, Chart, svg
from simulations.results.scores import BYTES, DASH, TIME, score_of, words_of

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
    sections = [one for one in found if isinstance(one, PageSection)]
    return sections, list(dict.fromkeys(one for one in found if isinstance(one, str)))


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
    asked, score, lines = with_curve(runs, key), score_of(key), []
    for run in (run for group in asked.values() for run in group):
        line = [one for one in run.metrics if one.get(key) is not None][-1]
        told = "; ".join(
            f"by {kind} " + ", ".join("none" if x is None else score.text(x) for x in found)
            for kind in ("chunk", "cap")
            if (found := line.get(f"{key}_{kind}s"))
        )
        lines.append(f"{run.name}, round {line['round']}: {told}.")
    if not lines:
        return None
    note = f"{AVERAGED.capitalize()}. {spread(runs).capitalize()}."
    title = f"{score.word.capitalize()} on the clients over rounds"
    drawn = chart(title, pictures.clients_figure(asked, page=True), note)
    return PageSection("Evaluation on the clients", [drawn], lines=lines)


def sizes_section(runs: Runs) -> PageSection | None:
    """Accuracy and bytes of each size of the network; None: no finished run has several."""
    sizes = by_size([run for group in runs.values() for run in group])
    if not sizes:
        return None
    parameters = "; ".join(f"{name}: {group[0]['parameters']:,} parameters" for name, group in sizes.items())
    shown = [
        key for key in SIZES if any(row.get(key) is not None for group in sizes.values() for row in group)
    ]
    note = f"{spread(runs).capitalize()}."
    charts = [
        chart(SIZES[key].heading, pictures.sizes_figure(runs, key, page=True), note)
        for key in shown
        if key != "nll" or "accuracy" not in shown
    ]
    return PageSection("Sizes of the network", charts, text=f"{parameters}.")


def caps_section(runs: Runs) -> PageSection | None:
    """What clients of each cap sent and received; None: no finished run has caps."""
    lines = []
    for run in (run for group in runs.values() for run in group):
        told = []
        for row in run.summary.get("by_cap", ()):
            each = (BYTES.text(row[key] / row["clients"]) for key in ("upload_bytes", "download_bytes"))
            told.append(
                f"cap {row['cap']}: {row['clients']} clients, each sent {' and received '.join(each)}"
            )
        lines += [f"{run.name}: {'; '.join(told)}."] if told else []
    return PageSection("Caps of the devices", lines=lines) if lines else None


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
