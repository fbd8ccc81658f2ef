"""The headline of a comparison: who leads, by how much, whether bands over seeds overlap, and chance."""

from __future__ import annotations

import math

from simulations.results.comparison import Comparison
from simulations.results.estimate import Estimate
from simulations.results.scores import MethodScores
from simulations.results.words import counted, digits

_SCORES = {"validation": "validation", "clients": "clients' own", "test": "test"}  # the first that there is


def headline(comparison: Comparison, classes: int | None = None) -> str:
    """Sentences on the best method by the scores of the table.

    Args:
        comparison: of the finished runs.
        classes: of the data, for the level of chance; None: there are none, or they are not known.
    """
    rows = [row for row in comparison.rows if row.seeds]
    if not rows:
        return "No run is finished yet."
    found = next((name for name in _SCORES if any(getattr(row, name) for row in rows)), None)
    if found is None:
        return "No finished run has a score."
    scores = {row.method: (getattr(row, found), row) for row in rows if getattr(row, found) is not None}
    accuracy = comparison.metric == "val_accuracy"
    ranked = sorted(scores, key=lambda method: scores[method][0].mean, reverse=accuracy)
    best, own = ranked[0], scores[ranked[0]][0]
    what = f"{_SCORES[found]} {'accuracy' if accuracy else 'loss'}"
    unit, factor = ("%", 100.0) if accuracy else (" nats", 1.0)

    def text(method: str) -> str:
        score, row = scores[method]
        return f"{score.text(factor, _digits(row, found, accuracy))}{unit}"

    if len(ranked) == 1:
        sentences = [f"{best} has a {what} of {text(best)} ({counted(len(scores[best][1].seeds), 'seed')})."]
    else:
        second, other = ranked[1], scores[ranked[1]][0]
        lead = f"{factor * abs(own.mean - other.mean):.{_digits(scores[best][1], found, accuracy)}f}"
        by = f"{lead} points" if accuracy else f"{lead} nats"
        if float(lead) == 0:
            sentences = [f"{best} and {second} are level, with a {what} of {text(best)} and {text(second)}."]
        else:
            place = f"{by} {'ahead of' if accuracy else 'below'} {second} ({text(second)})"
            sentences = [f"{best} leads with a {what} of {text(best)}, {place}."]
        sentences.append(_bands(own, other))
    if classes is not None and classes > 1:
        chance = 1 / classes if accuracy else math.log(classes)
        level = f"{100 * chance:.3g}%" if accuracy else f"{chance:.2f} nats"
        sentences.append(f"Guessing among {classes} classes gives {level}.")
        above = [method for method in ranked if _better(scores[method][0], chance, accuracy)]
        if not above:
            sentences.append("No method is better than that.")
        elif len(above) < len(ranked):
            worse = [method for method in ranked if method not in above]
            sentences.append(f"Not better than that: {', '.join(worse)}.")
    if any(len(row.seeds) < len(comparison.seeds) for row in comparison.rows):
        sentences.insert(0, "Some runs are not finished; so far:")
    return " ".join(sentences)


def _digits(row: MethodScores, found: str, accuracy: bool) -> int:
    held = {"validation": row.validation_examples, "test": row.test_examples}.get(found)
    return digits(held) + (0 if accuracy else 2)


def _bands(one: Estimate, other: Estimate) -> str:
    """Whether means with their standard errors meet."""
    if one.error is None or other.error is None:
        return "With one seed there is no telling whether that is luck."
    apart = abs(one.mean - other.mean) > one.error + other.error
    bands = "Their bands (mean \N{PLUS-MINUS SIGN} standard error over seeds)"
    return f"{bands} do not overlap." if apart else f"{bands} overlap: more seeds may turn that round."


def _better(score: Estimate, chance: float, accuracy: bool) -> bool:
    error = score.error or 0.0
    return score.mean - error > chance if accuracy else score.mean + error < chance
