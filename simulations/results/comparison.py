"""Comparison: what was found out about several methods, as a table for terminal, Markdown, CSV and JSON."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedpart.data.trained_on import counted
from simulations.config.federated import Published
from simulations.config.load import ExperimentConfig
from simulations.folders.contents import COMPARISON
from simulations.results import tables
from simulations.results.curves import Run, metric
from simulations.results.method_scores import MethodScores, least_upload
from simulations.results.psi_parts import in_words, single
from simulations.results.scores import BYTES, DASH, SCORES, SHARE, Estimate, Score, score_of, with_unit
from simulations.results.tables import CAPTION, LF, without

DIFFERENCE = "difference\n[std. err.]"
COSTS = {"upload", "download", "seconds"}
COLUMNS = (
    "At equal upload: the validation score when a run had sent no more than the method that sends least at "
    "the same seed. Held out: clients' examples that are never trained on, because they are scored. Clients: "
    "mean of a run's last ten evaluations by its clients, and of the tenth that fare worst. L_ML: per "
    "example, mean of the last ten rounds that have it"
)
LAST_TEN = "validation: mean of a run's last ten evaluations, at most half of them"
AGAINST = (
    "difference: ours minus the paper's (Mlodozeniec, Reisser and Louizos, ICLR 2023, Table 4; four seeds), "
    "in standard errors of the difference"
)


def terminal_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """What fits a terminal: not what was learned, nor costs beside the paper, nor L_ML beside tests."""
    firsts = {name.partition(LF)[0] for name in head}
    hidden = {"learned", "held out", "at equal", *(["L_ML"] if "test" in firsts else [])}
    by_clients = "test" in firsts and any(name.startswith("clients") for name in firsts)
    return without(hidden | (COSTS if DIFFERENCE in head or by_clients else set()), head, rows)


@dataclass(frozen=True)
class Failure:
    """A cell that ended with an error: the sentence for people, the traceback for developers."""

    method: str
    seed: int
    error: str
    traceback: str = ""


@dataclass(frozen=True)
class Comparison:
    """What ``fedpart compare`` found."""

    rows: list[MethodScores]  # one per method, in the order asked for
    failures: list[Failure]  # cells without a result
    notes: list[str]  # sentences about what makes the rows less comparable than they look
    metric: str  # ``val_accuracy``, or ``val_nll`` where there is no accuracy
    rounds: int  # of every method, as asked for, like the seeds
    seeds: list[int]
    config: dict[str, Any]  # that all cells share
    published: Published | None = None  # the paper's numbers for the same cell, if the configuration names it

    @property
    def score(self) -> Score:
        return score_of(self.metric)

    @property
    def remarks(self) -> list[str]:
        """Sentences: the notes, which times to doubt, and how the paper's runs were of another length."""
        lines = list(self.notes)
        if (shared := max((row.runs_at_a_time for row in self.rows), default=1)) > 1:
            remedy = "for times to compare, run with --jobs 1"
            lines.append(f"Times with a star were measured while {shared} runs shared the machine; {remedy}.")
        if self.published is not None and self.published.rounds != self.rounds:
            theirs = f"{self.published.rounds:,}"
            lines.append(f"The paper trains for {theirs} rounds, these runs for {self.rounds:,}.")
        return lines

    def title(self) -> str:
        counts = f"{counted(len(self.seeds), 'seed')}, {counted(self.rounds, 'round')}"
        return f"{counts}; the same {'data and clients' if self.notes else 'data, clients and cohorts'}"

    @property
    def caption(self) -> str:
        """What the numbers of the table are."""
        return "; ".join((CAPTION, *([AGAINST] if self.published is not None else []), LAST_TEN))

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The table for people: headings, and a row of texts per method; without columns that no row has."""
        rows = [self._texts(row) for row in self.rows]
        clients, lml = (any(row[key] for row in self.rows) for key in ("clients", "lml"))
        central = any(row["validation"] or row["test"] for row in self.rows) or not (clients or lml)
        hidden = [] if clients else [f"clients [{self.score.unit}]"]
        hidden += ([] if lml else ["L_ML"]) + ([] if central else ["validation", "test", "at equal"])
        return without(hidden, list(rows[0]), [list(row.values()) for row in rows])

    def _texts(self, row: MethodScores) -> dict[str, str]:
        score, missing = self.score, len(row.seeds) < len(self.seeds)
        validated, tested = score.places(row.validation_examples), score.places(row.test_examples)
        worst, difference = row["clients_worst"], self.difference(row)
        means = {name: estimate.mean for name, estimate in row.psi.items()}
        texts = {
            "method": f"{row.method}\n({len(row.seeds)}/{len(self.seeds)} seeds)" if missing else row.method,
            f"validation\n{score.heading}": score.cell(row["validation"], validated),
        }
        if self.published is not None:
            texts[f"paper\n{score.heading}"] = score.cell(self.theirs(row.method), 1)
            texts[DIFFERENCE] = DASH if difference is None else f"{difference:+.1f}"
        return texts | {
            f"at equal\nupload [{score.unit}]": score.cell(row["equal_upload"], validated),
            f"test\n{score.heading}": score.cell(row["test"], tested),
            f"clients [{score.unit}]\n(worst tenth)": score.cell(row["clients"], score.places(None))
            + ("" if worst is None else f"\n({score.number(worst.mean, score.places(None))})"),
            "L_ML\n[nats]": SCORES["lml"].cell(row["lml"]),
            "held out\n[%]": SHARE.shown(row["held_out"]),
            "upload [%\nof FedAvg]": SHARE.shown(row["upload_ratio"]),
            "upload": BYTES.shown(row["upload_bytes"]),
            "download": BYTES.shown(row["download_bytes"]),
            "seconds": Score("seconds").shown(row["seconds"]) + row.star,
            "learned": LF.join(in_words(means, chosen=row.chosen)) or DASH,
        }

    def theirs(self, method: str) -> Estimate | None:
        """What the paper reports for a method, a fraction."""
        known = {} if self.published is None or self.metric != "val_accuracy" else self.published.accuracy
        return Estimate(**known[method]) if method in known else None

    def difference(self, row: MethodScores) -> float | None:
        """A row's distance from the paper, see :meth:`.Estimate.difference`."""
        ours, theirs = row["validation"], self.theirs(row.method)
        return None if ours is None or theirs is None else ours.difference(theirs)

    def table(self) -> RenderableType:
        """For the terminal, 80 columns wide: the numbers, and below them what was learned."""
        head, rows = self.cells()
        shown, texts = terminal_columns(head, rows)
        psi = [(row[0].replace(LF, " "), row[-1].replace(LF, "; ")) for row in rows if row[-1] != DASH]
        learned = [f"{method} learned: {values}" for method, values in psi]
        held_out = [
            f"{row.method} held out {SHARE.text(row['held_out'].mean)} of the clients' examples."
            for row in self.rows
            if row["held_out"] is not None and row["held_out"].mean > 0
        ]
        table = tables.terminal_table(shown, self.title(), self.caption, rows=texts)
        return Group(table, *map(Text, [*learned, *held_out]))

    def markdown(self, pictures: Sequence[Path] = ()) -> str:
        """A page with the table, what failed, and the pictures (in the page's folder)."""
        lines = ["# Comparison", "", f"{self.title()}; {self.caption}. {COLUMNS}.", ""]
        lines += tables.markdown_table(*self.cells())
        for heading, remarks in (("Notes", self.remarks), ("Failed", self.failed())):
            lines += ["", f"## {heading}", "", *(f"- {line}" for line in remarks)] if remarks else []
        for picture in pictures:
            lines += ["", f"![{picture.stem.replace('_', ' against ')}]({picture.name})"]
        return "\n".join(lines) + "\n"

    def failed(self) -> list[str]:
        causes: dict[str, list[str]] = {}
        for failure in self.failures:
            causes.setdefault(failure.error, []).append(f"{failure.method} seed {failure.seed}")
        return [f"{', '.join(cells)}: {error}" for error, cells in causes.items()]

    def write(self, out: Path, pictures: Sequence[Path] = ()) -> None:
        """Write ``comparison.md``, and ``comparison.csv`` and ``.json`` with fractions and bytes."""
        (out / "comparison.md").write_text(self.markdown(pictures), encoding="utf-8")
        content = asdict(self)
        content["rows"] = [row | row.pop("scores") for row in content["rows"]]
        tables.write_json(out / COMPARISON, content)
        tables.write_csv(out / "comparison.csv", self.flat())

    def flat(self) -> list[dict[str, Any]]:
        """A row of numbers per method, by the names in ``comparison.json``; psi in physical units."""
        return [self._flat(row) for row in self.rows]

    def _flat(self, row: MethodScores) -> dict[str, Any]:
        flat: dict[str, Any] = {"method": row.method, "seeds": len(row.seeds), "metric": self.metric}
        paper: dict[str, Estimate | None] = {}
        if self.published is not None:
            paper["paper"], difference = self.theirs(row.method), self.difference(row)
            flat["difference from paper [standard errors]"] = "" if difference is None else difference
        flat |= tables.number_columns(paper | row.scores | row.psi)
        return flat | {key: "; ".join(single(values)) for key, values in row.chosen.items()}


def collect(
    config: ExperimentConfig, seeds: Iterable[int], runs: Mapping[str, Sequence[Run]],
    failures: Sequence[Failure] = (),
) -> Comparison:  # fmt: skip
    """The comparison of a configuration's runs: the finished ones by method, ``seeds`` those of all."""
    measure, fedavg, least = metric(runs), runs.get("fedavg", ()), least_upload(runs)
    return Comparison(
        rows=[MethodScores.of(method, group, measure, fedavg, least) for method, group in runs.items()],
        failures=list(failures),
        notes=_unequal_cohorts(runs),
        metric=measure,
        rounds=config.rounds,
        seeds=sorted(set(seeds)),
        config={key: value for key, value in config.resolved().items() if key not in ("method", "seed")},
        published=None if config.published is None else Published.of(config.published),
    )


def _unequal_cohorts(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """A sentence per seed whose methods did not meet the same clients, as where nodes were missing."""
    cohorts: dict[int, list[list[list[int]]]] = {}
    for run in (run for group in runs.values() for run in group):
        cohorts.setdefault(run.config.seed, []).append([line["cohort"] for line in run.metrics])
    notes = []
    for seed, several in cohorts.items():
        drawn = enumerate(zip(*several, strict=False), start=1)
        if first := next((n for n, each in drawn if any(cohort != each[0] for cohort in each)), None):
            notes.append(f"Seed {seed}: the methods' cohorts differ, first in round {first}.")
    return notes


_WHOSE = {"validation": "validation", "clients": "clients' own", "test": "test"}  # the first that there is


def headline(comparison: Comparison, classes: int | None = None) -> str:
    """Sentences on the best method, whether bands over seeds overlap, and chance among ``classes``."""
    rows, score = [row for row in comparison.rows if row.seeds], comparison.score
    if not rows:
        return "No run is finished yet."
    if (name := next((name for name in _WHOSE if any(row[name] for row in rows)), None)) is None:
        return "No finished run has a score."
    ranked = [(row[name], row) for row in rows if row[name] is not None]
    ranked.sort(key=lambda one: one[0].mean, reverse=score.larger)
    places = {row.method: score.places(getattr(row, f"{name}_examples", None)) for row in rows}
    texts = {row.method: with_unit(score.cell(mine, places[row.method]), score.unit) for mine, row in ranked}
    what, ((mine, best), *others) = f"{_WHOSE[name]} {score.word}", ranked
    if others:
        other, second = others[0][0], others[0][1].method
        lead = f"{score.factor * abs(mine.mean - other.mean):.{places[best.method]}f}"
        place = f"{lead} {'points ahead of' if score.larger else 'nats below'} {second} ({texts[second]})"
        sentences = [f"{best.method} leads with a {what} of {texts[best.method]}, {place}."]
        if float(lead) == 0:
            both = f"{texts[best.method]} and {texts[second]}"
            sentences = [f"{best.method} and {second} are level, with a {what} of {both}."]
        bands = "Their bands (mean \N{PLUS-MINUS SIGN} standard error over seeds)"
        if mine.error is None or other.error is None:
            sentences.append("With one seed there is no telling whether that is luck.")
        elif abs(mine.mean - other.mean) > mine.error + other.error:
            sentences.append(f"{bands} do not overlap.")
        else:
            sentences.append(f"{bands} overlap: more seeds may turn that round.")
    else:
        seeds = counted(len(best.seeds), "seed")
        sentences = [f"{best.method} has a {what} of {texts[best.method]} ({seeds})."]
    if classes is not None and classes > 1:
        chance = 1 / classes if score.larger else math.log(classes)
        level = f"{100 * chance:.3g}%" if score.larger else f"{chance:.2f} nats"
        sentences.append(f"Guessing among {classes} classes gives {level}.")
        sign = 1 if score.larger else -1
        worse = [row.method for mine, row in ranked if sign * (mine.mean - chance) <= (mine.error or 0.0)]
        if len(worse) == len(ranked):
            sentences.append("No method is better than that.")
        elif worse:
            sentences.append(f"Not better than that: {', '.join(worse)}.")
    if any(len(row.seeds) < len(comparison.seeds) for row in comparison.rows):
        sentences.insert(0, "Some runs are not finished; so far:")
    return " ".join(sentences)
