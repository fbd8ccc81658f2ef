"""The table of personal networks: each client before and after, and what is gained on average."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from simulations.results.personal import ClientGain, Gains
from simulations.results.tables import terminal_table
from simulations.results.words import counted, percent

_MOST = 40  # rows


def gains_table(gains: Gains) -> RenderableType:
    """A row for each client, the first 40 of many, then means over held-out examples, and the note."""
    classes = gains.metric == "accuracy"
    names = ["client", "chunk", "trained\non", "scored\non"]
    if classes:
        names += ["accuracy\nbefore", "[%]\nafter", "\ngain"]
    names += ["loss\nbefore", "[nats]\nafter", "\ngain"]
    table = terminal_table(names, "Personal networks", None)
    for one in gains.clients[:_MOST]:
        table.add_row(*_row(one, classes))
    lines: list[RenderableType] = [table]
    if (hidden := len(gains.clients) - _MOST) > 0:
        lines.append(Text(f"and {counted(hidden, 'client')} more, in personal.json"))
    if gains.left_out:
        left = f"{counted(len(gains.left_out), 'client')} with fewer than two examples left out"
        lines.append(Text(left))
    lines += [Text(text) for text in (_mean(gains), _shares(gains), gains.note)]
    return Group(*lines)


def _row(one: ClientGain, classes: bool) -> list[str]:
    cells = [str(one.client), str(one.chunk), f"{one.examples:,}", f"{one.held_out:,}"]
    if classes:
        cells += [percent(one.before["accuracy"]), percent(one.after["accuracy"])]
        cells.append(f"{100 * one.gain['accuracy']:+.1f}")
    return [*cells, f"{one.before['nll']:.3f}", f"{one.after['nll']:.3f}", f"{one.gain['nll']:+.3f}"]


def _mean(gains: Gains) -> str:
    """``mean gain +2.1 points (81.0% to 83.1%)``, over held-out examples."""
    before, after, gain = (gains.mean(when, gains.metric) for when in ("before", "after", "gain"))
    if gains.metric == "accuracy":
        change = f"{100 * gain:+.1f} points of accuracy ({before:.1%} to {after:.1%})"
    else:
        change = f"{gain:+.3f} nats ({before:.3f} to {after:.3f})"
    return f"mean gain {change}, each client weighted by its held-out examples"


def _shares(gains: Gains) -> str:
    better, worse = gains.share(1), gains.share(-1)
    same = 1 - better - worse
    return f"{better:.0%} of the clients gain, {worse:.0%} lose, {same:.0%} stay as they are"
