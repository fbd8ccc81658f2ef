"""Rows of hyperparameters: what of them has settled, still moves, or has not moved, in words."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedpart.updates.combining.base import spelled
from simulations.results.psi_parts import PsiParts, in_words, whole
from simulations.results.scores import EVIDENCES, SCORES
from simulations.results.verdicts import guessed

Rows = Iterator[tuple[str, str]]  # names and texts; a row without a name belongs to the one above
_OF_STATES = {  # see :func:`.courses`: what follows the numbers; {larger}, {smaller}: what moves them
    "settled": "means and reach of the last fifth of the {clock}",
    "moving": "still drifting over the last fifth of the {clock}: more of them may change it",
    "swinging": "to and fro, the mean of the last fifth of the {clock}: {smaller} calms it",
    "unclear": "too uneven over the last fifth of the {clock} to rule a drift out: more of them may tell",
    "held": "stands still while others move: at a bound of what it can mean, or without a gradient",
    "moved": "by fewer than 25 lines of metrics.jsonl, too few to say whether it has settled",
    "length": "length alone, which does not tell where the weights have settled",
    "not moved": "by more than 5%: {larger}, or more {clock}, may move it",
}


def several(name: str, *texts: str | None) -> Rows:
    """A row of each text that there is, the first with the name."""
    known = [text for text in texts if text]
    yield from zip([name, *[""] * len(known)], known, strict=False)


def learned(summary: Mapping[str, Any]) -> str:
    """What a method that learns psi has learned of it, for the first sentence."""
    states = {course["state"] for course in summary.get("psi_course", {}).values()}
    said = guessed(summary)
    no_better = ", and is not ahead of a guess" if " level with " in said or " behind " in said else ""
    if not summary["psi"] or "untaught" in summary:
        return f"alone{no_better}"
    if states and states <= {"fixed", "not moved"}:
        return f"alone, for its hyperparameters have not moved{no_better}"
    settled = "" if _kept(summary) else _settled(summary.get("psi_course", {}))
    return f"and its hyperparameters{settled}{no_better}"


def _settled(courses: Mapping[str, Mapping[str, Any]]) -> str:
    """How many have settled, a range as one; nothing where all have, or where there are no courses."""
    psi = PsiParts.of(courses)
    lows = [low for low, _ in (*psi.angles, *psi.ranges)]
    states = [courses[name]["state"] for name in (*lows, *psi.rates, *psi.keeps[:1], *psi.rest)]
    settled = states.count("settled")
    return "" if settled == len(states) else f", {settled or 'none'} of {len(states)} known to have settled"


def ended_at(summary: Mapping[str, Any]) -> int:
    """The last round, or the last iteration of all stages."""
    stages = summary.get("stages")
    return int(stages[-1]["iteration"] if stages else summary.get("iterations") or summary["rounds"])


def _kept(summary: Mapping[str, Any]) -> tuple[int, float] | None:
    """The round or iteration whose weights and psi were kept, where it is not the last, and its evidence."""
    if summary.get("kept_round") is not None:
        return summary["kept_round"], summary["kept_lml"]
    early = summary.get("lml_iteration") not in (None, ended_at(summary))
    return (summary["lml_iteration"], summary["lml"]) if early and summary["lml"] is not None else None


def psi_rows(summary: Mapping[str, Any]) -> Rows:
    """Hyperparameters by their courses: means of the last values and their reach, or the last value alone."""
    told_of, before = summary.get("psi_course", {}), summary.get("psi_initial", {})
    if spelled(summary.get("method", ""))[0] == "fedex":  # it chooses among arms, alike at the start
        told_of, before = {}, {}
    if not told_of:  # of a run from before there were courses, too
        psi = whole(summary.get("psi_learned", ()), summary["psi"])
        arms = [summary["psi"][name] for name in PsiParts.of(summary["psi"]).probabilities]
        likely = f"the likeliest of {len(arms)} arms, with {max(arms):.0f}%" if arms else None
        yield from several("learned", *in_words(psi, before), likely)
    clock, steps = ("iterations", "optimiser") if "iterations" in summary else ("rounds", "server")
    rate = f"{steps}_psi.learning_rate"
    words = {"clock": clock, "larger": f"a larger {rate}", "smaller": f"a smaller {rate}"}
    for state, text in _OF_STATES.items():
        those = {name: course for name, course in told_of.items() if course["state"] == state}
        steady = state in ("settled", "swinging", "unclear")
        reach = {name: (course["low"], course["high"]) for name, course in those.items()}
        values = {name: course["mean" if steady else "last"] for name, course in those.items()}
        lines = in_words(values, before, reach=reach)
        yield from several(state, *lines, text.format(**words) if lines else None)
    if (kept := _kept(summary)) is not None:
        word = EVIDENCES[summary.get("evidence", "lml")].word
        of, mean = ("of", "") if "iterations" in summary else ("at the start of", ", a mean of ten")
        best, number = f"{clock[:-1]} {kept[0]:,}", f"{SCORES['lml'].text(kept[1])}{mean}"
        kept_text = f"weights and psi {of} {best}, with {word} {number}: scores are of these"
        yield from several("kept", kept_text, *in_words(summary["psi"]))
    yield from several("kept", summary.get("kept_none"))
