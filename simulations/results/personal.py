"""What fine-tuning on each client's own examples has gained, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpart.loggers.lines import finite
from simulations.results.tables import write_json


@dataclass(frozen=True)
class ClientGain:
    """One client, before and after.

    Attributes:
        client: 0..N-1; chunk: 1..C, of the client.
        examples: of its shard that were trained on; held_out: that were scored.
        before, after: ``nll`` (nats per example) and, of a classification, ``accuracy`` (a fraction).
    """

    client: int
    chunk: int
    examples: int
    held_out: int
    before: dict[str, float]
    after: dict[str, float]

    @property
    def gain(self) -> dict[str, float]:
        """By how much each score is better than before: larger accuracy, smaller loss."""
        signs = {"nll": -1.0, "accuracy": 1.0}
        return {name: signs[name] * (self.after[name] - self.before[name]) for name in self.before}


@dataclass(frozen=True)
class Gains:
    """All clients of a run that were personalised.

    Attributes:
        clients: at least one.
        left_out: clients with too few examples to hold one out.
        settings: what was done, by name.
        note: what the scores stand for, in a sentence.
    """

    clients: Sequence[ClientGain]
    left_out: Sequence[int]
    settings: dict[str, Any]
    note: str

    @property
    def metric(self) -> str:
        """``accuracy`` of a classification, or else ``nll``."""
        return "accuracy" if "accuracy" in self.clients[0].before else "nll"

    def mean(self, when: str, metric: str) -> float:
        """Mean of a score over the held-out examples of all clients; ``when``: before, after or gain."""
        total = sum(one.held_out for one in self.clients)
        return sum(one.held_out * getattr(one, when)[metric] for one in self.clients) / total

    def share(self, sign: int) -> float:
        """Share of the clients whose :attr:`metric` is better (1) or worse (-1) than before."""
        return sum(sign * one.gain[self.metric] > 0 for one in self.clients) / len(self.clients)

    def write(self, folder: Path) -> None:
        """Write ``personal.json`` into a folder, which is made if it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "personal.json", finite(self.content()))

    def content(self) -> dict[str, Any]:
        """As plain data, for ``personal.json``."""
        means = {
            when: {metric: self.mean(when, metric) for metric in self.clients[0].before}
            for when in ("before", "after", "gain")
        }
        return {
            "settings": self.settings,
            "note": self.note,
            "metric": self.metric,
            "mean": means,
            "share_better": self.share(1),
            "share_worse": self.share(-1),
            "left_out": list(self.left_out),
            "clients": [asdict(one) | {"gain": one.gain} for one in self.clients],
        }
