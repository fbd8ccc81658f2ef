"""What fine-tuning on each client's own examples has gained: as numbers, and for the terminal."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedpart.loggers.lines import finite
from simulations.results.scores import FIRST, SCORES, client_text, counted
from simulations.results.tables import terminal_table, write_json

_WHEN = ("before", "after", "gain")
MOST = 40  # rows on the terminal


@dataclass(frozen=True)
class ClientGain:
    """One client, before and after."""

    client: int  # 0..N-1
    chunk: int  # 1..C
    examples: int  # of its shard that were trained on
    held_out: int  # that were scored
    before: dict[str, float]  # ``nll`` (nats per example) and, of a classification, ``accuracy`` (a fraction)
    after: dict[str, float]
    name: str | None = None  # None: clients have numbers alone

    @property
    def gain(self) -> dict[str, float]:
        """By how much each score is better than before: larger accuracy, smaller loss."""
        signs = {name: 1.0 if SCORES[name].larger else -1.0 for name in self.before}
        return {name: sign * (self.after[name] - self.before[name]) for name, sign in signs.items()}


@dataclass(frozen=True)
class Gains:
    """All clients of a run that were personalised."""

    clients: Sequence[ClientGain]  # at least one
    left_out: Sequence[int]  # clients with too few examples to hold one out
    settings: dict[str, Any]  # what was done, by name
    note: str  # what the scores stand for, in a sentence

    @property
    def metric(self) -> str:
        """``accuracy`` of a classification, or else ``nll``."""
        return "accuracy" if "accuracy" in self.clients[0].before else "nll"

    def mean(self, when: str, metric: str) -> float:
        """Mean of a score over the held-out examples of all clients; ``when``: before, after or gain."""
        total = sum(client.held_out for client in self.clients)
        return sum(client.held_out * getattr(client, when)[metric] for client in self.clients) / total

    def share(self, sign: int) -> float:
        """Share of the clients whose :attr:`metric` is better (1) or worse (-1) than before."""
        return sum(sign * client.gain[self.metric] > 0 for client in self.clients) / len(self.clients)

    def write(self, folder: Path) -> None:
        """Write ``personal.json`` into a folder, which is made if it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "settings": self.settings,
            "note": self.note,
            "metric": self.metric,
            "mean": {when: {key: self.mean(when, key) for key in self.clients[0].before} for when in _WHEN},
            "share_better": self.share(1),
            "share_worse": self.share(-1),
            "left_out": list(self.left_out),
            "clients": [asdict(client) | {"gain": client.gain} for client in self.clients],
        }
        write_json(folder / "personal.json", finite(content))

    def table(self) -> RenderableType:
        """A row for each client, the first 40 of many, then means over held-out examples, and the note."""
        scores = {key: SCORES[key] for key in FIRST if key in self.clients[0].before}
        head, rows = ["client", "chunk", "trained\non", "scored\non"], []
        for score in scores.values():
            head += [f"{score.word}\nbefore", f"[{score.unit}]\nafter", "\ngain"]
        for client in self.clients[:MOST]:
            who = client_text(0, [client.name]) if client.name else str(client.client)
            rows.append([who, str(client.chunk), f"{client.examples:,}", f"{client.held_out:,}"])
            for key, score in scores.items():
                rows[-1] += [score.number(client.before[key]), score.number(client.after[key])]
                rows[-1].append(score.number(client.gain[key], sign="+"))
        lines, score = [], SCORES[self.metric]
        if (hidden := len(self.clients) - MOST) > 0:
            lines.append(f"and {counted(hidden, 'client')} more, in personal.json")
        if self.left_out:
            lines.append(f"{counted(len(self.left_out), 'client')} with fewer than two examples left out")
        before, after, gain = (self.mean(when, self.metric) for when in _WHEN)
        unit = "points of accuracy" if score.larger else score.unit
        change = f"{score.number(gain, sign='+')} {unit} ({score.brief(before)} to {score.brief(after)})"
        lines.append(f"mean gain {change}, each client weighted by its held-out examples")
        better, worse = self.share(1), self.share(-1)
        same = f"{1 - better - worse:.0%} stay as they are"
        lines += [f"{better:.0%} of the clients gain, {worse:.0%} lose, {same}", self.note]
        return Group(terminal_table(head, "Personal networks", rows=rows), *map(Text, lines))
