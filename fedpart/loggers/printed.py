"""Printed: lines of a run for people who look on."""

import shutil
import sys
from collections.abc import Mapping
from typing import Any

from fedpart.loggers.lines import step_of

EACH = 10  # rounds that have a line of their own, before only those of evaluations have


def worth_a_line(clock: str, count: int, total: int, every: int) -> bool:
    """Whether a line is printed where nothing that stands there can be changed.

    So are the first ten rounds, those that an evaluation is due in (whether or not there is one), the last
    one, and all reports of centralised training.
    """
    return clock != "round" or count <= EACH or count % every == 0 or count == total


class Printed:
    """Prints lines of ``metrics.jsonl`` in words, see :func:`worth_a_line`; on a terminal the others flit by.

    Of a run of ``total`` rounds or iterations, ``every`` so many an evaluation.
    """

    def __init__(self, total: int, every: int) -> None:
        self._total, self._every = total, every

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Print a line, on the standard output."""
        clock = "round" if "round" in line else "iteration"
        text, terminal = f"{clock} {step_of(line)}/{self._total}: {self._text(line)}", sys.stdout.isatty()
        if terminal:
            text = f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}"
        if worth_a_line(clock, step_of(line), self._total, self._every):
            print(text, flush=True)
        elif terminal:
            print(text, end="", flush=True)

    def _text(self, line: Mapping[str, Any]) -> str:
        parts = []
        for whose, words in (("val", "val."), ("client", "clients'")):
            if line.get(f"{whose}_accuracy") is not None:
                parts.append(f"{words} accuracy {line[f'{whose}_accuracy']:.1%}")
            elif line.get(f"{whose}_nll") is not None:
                parts.append(f"{words} loss {line[f'{whose}_nll']:.3f}")
        if line["train_loss"] is not None:
            parts.append(f"loss {line['train_loss']:.3f}")
        if line["lml"] is not None:
            parts.append(
                f"L_ML {line['lml']:.3f} per example" if "round" in line else f"L_ML {line['lml']:,.1f}"
            )
        parts += [f"{name} {value:.3g}" for name, value in list(line["psi"]["physical"].items())[:3]]
        return ", ".join(parts)
