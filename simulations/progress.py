"""Progress: a live bar with accuracy and psi on a terminal, a plain line per evaluation elsewhere."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich import progress as bars
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fedpart import RoundReport
from simulations.config import ExperimentConfig
from simulations.curves import PsiParts


class Progress:
    """Shows a run while it goes on.

    Args:
        console: where; standard output if not given. A console that is no terminal gets plain lines.
        quiet: show nothing at all.
        title: what stands before the bar; the method's name if not given.
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False, title: str = "") -> None:
        self.console = console or Console(quiet=quiet)
        self.quiet, self.title = quiet, title
        self._bar: bars.Progress | None = None
        self._live: Live | None = None
        self._line = Text()
        self._rounds = 0
        self._accuracy = ""

    @contextmanager
    def run(self, config: ExperimentConfig, out: Path, completed: int) -> Iterator[None]:
        """Around a run of ``config.rounds`` rounds, ``completed`` of them done before."""
        self._rounds, self._accuracy = config.rounds, ""
        label = f"{config.method} on {'rotated ' if config.rotated else ''}{config.data}"
        resumed = f", resumed after round {completed}" if completed else ""
        self._print(
            f"{label}: {config.clients} clients, {config.cohort} per round, {config.engine} engine{resumed}; "
            f"files in {out}"
        )
        if self.quiet or not self.console.is_terminal:
            yield
            return
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            bars.TimeRemainingColumn(),
            console=self.console,
        )
        self._bar.add_task(self.title or config.method, total=config.rounds, completed=completed)
        self._line = Text("  starting", style="dim")
        with Live(Group(self._bar, self._line), console=self.console, refresh_per_second=4) as self._live:
            yield
        self._live = self._bar = None

    def round(self, report: RoundReport) -> None:
        """After every round."""
        if report.val_accuracy is not None:
            self._accuracy = f"val. accuracy {report.val_accuracy:.1%}"
        elif report.val_nll is not None:
            self._accuracy = f"val. loss {report.val_nll:.3f}"
        loss = "" if report.train_loss is None else f"loss {report.train_loss:.2f}"
        parts = [part for part in (self._accuracy, loss, compact(report.physical)) if part]
        if self._live is not None and self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=report.round)
            self._line = Text("  " + " | ".join(parts), overflow="ellipsis", no_wrap=True)
            self._live.update(Group(self._bar, self._line))
        elif report.val_nll is not None:
            self._print(f"round {report.round}/{self._rounds}: {', '.join(parts)}")

    def note(self, text: str) -> None:
        """A sentence above the bar."""
        self._print(text, style="yellow")

    def _print(self, text: str, style: str | None = None) -> None:
        if not self.quiet:
            self.console.print(Text(text, style=style or ""), soft_wrap=True)


def compact(physical: Mapping[str, float], limit: int = 3) -> str:
    """psi in few words: ``rotation -12..+14 deg, dropout 9.8%``, then others as far as there is room.

    Args:
        physical: from ``Task.physical``, e.g. ``{"affine.angle_max [deg]": 14.0, "dropout1.rate [%]": 9.8}``.
        limit: most entries.
    """
    names = PsiParts.of(physical)
    parts = []
    for ends in names.angles:
        low, high = sorted(physical[name] for name in ends)  # they may have crossed
        parts.append(f"rotation {low:+.0f}..{high:+.0f} deg")
    if names.rates:
        parts.append(f"dropout {statistics.fmean(physical[name] for name in names.rates):.1f}%")
    parts += [f"{name} {physical[name]:.3g}" for name in names.rest]
    return ", ".join(parts[:limit])
