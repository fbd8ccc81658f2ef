"""Progress: a live bar with accuracy and psi on a terminal, else a line a round, after ten an evaluation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import progress as bars
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fedpart import RoundReport
from fedpart.loggers.logged import worth_a_line
from simulations.config.load import Config, ExperimentConfig
from simulations.folders.run_directory import Report
from simulations.results.psi_parts import compact
from simulations.results.scores import EVIDENCES, PARTS, SCORES, first_of, score_of, shown


class Progress:
    """Shows a run while it goes on, unless ``quiet``; a console that is no terminal gets plain lines."""

    def __init__(self, console: Console | None = None, *, quiet: bool = False, title: str = "") -> None:
        self.console = console or Console(quiet=quiet)
        self.quiet, self.title = quiet, title
        self._bar: bars.Progress | None = None
        self._live: Live | None = None
        self._clock, self._total, self._every = "", 0, 1
        self._scores: dict[str, str] = {}  # the last of each part of the data

    @contextmanager
    def run(self, config: Config, out: Path, completed: int, total: int) -> Iterator[None]:
        """Around a run of ``total`` rounds or iterations, ``completed`` of them done before."""
        self._clock, self._total, self._every = config.clock.name, total, config.evaluate_every
        self._scores, self._evidence = {}, EVIDENCES[getattr(config, "judged_by", "lml")]
        label = f"{config.method} on {'rotated ' if config.rotated else ''}{config.data}"
        resumed = f", resumed after {self._clock} {completed}" if completed else ""
        if isinstance(config, ExperimentConfig):
            what = f"{config.clients} clients, {config.cohort} per round, {config.engine} engine"
            if config.clip is not None and config.clip.multiple is not None:
                what += f", updates clipped to {config.clip.multiple:g} times what is usual"
        else:
            what = f"{total:,} iterations"
        self.say(f"{label}: {what}{resumed}; files in {out}")
        if self.quiet or not self.console.is_terminal:
            if getattr(config, "engine", "") == "ray":
                self.say("Ray starts first, up to a minute on a busy machine.")
            yield
            return
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.TextColumn(f"{self._clock} {{task.completed:.0f}}/{{task.total:.0f}}"),
            bars.TimeRemainingColumn(),
            console=self.console,
        )
        self._bar.add_task(self.title or config.method, total=total, completed=completed)
        line = Text("  starting", style="dim")
        with Live(Group(self._bar, line), console=self.console, refresh_per_second=4) as self._live:
            yield
        self._live = self._bar = None

    @contextmanager
    def clients(self, total: int) -> Iterator[Callable[[], None]]:
        """Around work on ``total`` clients, one after another; what it gives is called after each."""
        console = self.console if self.console.is_terminal else Console(quiet=True)
        columns = bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeRemainingColumn()
        with bars.Progress(bars.TextColumn("client"), *columns, console=console, transient=True) as bar:
            task = bar.add_task("clients", total=total)
            yield lambda: bar.advance(task)

    def completed(self, count: int) -> None:
        """After every round or iteration."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=count)

    def report(self, report: Report) -> None:
        """What is known after a round, or at a report of centralised training."""
        values, of_round = vars(report), isinstance(report, RoundReport)
        for part, whose in (("val", "val."), ("client", PARTS["client"])):
            if key := first_of(values, f"{part}_"):
                score, worst = score_of(key), values.get(f"{key}_worst_decile")
                tenth = "" if worst is None else f" (worst tenth {score.brief(worst)})"
                self._scores[part] = f"{whose} {score.word} {score.brief(values[key])}{tenth}"
        lml, loss, count = report.lml, report.train_loss, values[self._clock]
        score, each = (SCORES["lml"], " per example") if of_round else (self._evidence, "")
        simulated = values.get("simulated_seconds")
        parts = [
            *self._scores.values(),
            "" if lml is None else f"{score.word} {score.brief(lml)}{each}",
            "" if loss is None else f"loss {SCORES['nll'].brief(loss)}",
            f"{simulated:,.1f} simulated s" if simulated else "",
            compact(report.physical),
        ]
        parts = [shown(part) for part in parts if part]
        if self._live is not None and self._bar is not None:
            line = Text("  " + " | ".join(parts), overflow="ellipsis", no_wrap=True)
            self._live.update(Group(self._bar, line))
        elif worth_a_line(self._clock, count, self._total, self._every):
            self.say(f"{self._clock} {count}/{self._total}: {', '.join(parts)}")

    def note(self, text: str) -> None:
        self.say(text, style="yellow")

    def say(self, text: str, style: str | None = None) -> None:
        if not self.quiet:
            self.console.print(Text(shown(text), style=style or ""), soft_wrap=True)
