"""The rows of the panel at the end of a run: what was learned, how good it is, and what it has cost."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulations.folders.run_directory import BESIDE, read_summary
from simulations.results.psi_parts import in_words, whole
from simulations.results.scores import (
    BYTES,
    EVIDENCES,
    FIRST,
    PARTS,
    SCORES,
    SHARE,
    TIME,
    first_of,
    score_of,
    size_name,
    told,
)
from simulations.results.words import privacy_text

Rows = Iterator[tuple[str, str]]  # names and texts; a row without a name belongs to the one above


def rows(summary: Mapping[str, Any], out: Path) -> Rows:
    """Of the run in a folder: psi, then what its kind has, then time and what else there is."""
    learned = whole(summary.get("psi_learned", ()), summary["psi"])
    yield from _several("learned", *in_words(learned, summary.get("psi_initial", {})))
    yield from _several("note", *(summary.get("psi_remarks", []) if learned else []))
    yield from _training_rows(summary) if "iterations" in summary else _federated_rows(summary)
    other = read_summary(out / BESIDE)
    if other is not None and other["rounds"] == summary["rounds"]:  # else it has not been extended yet
        score = f" {score} on the same test data;" if (score := told(other, "test_")) else ""
        ratio = other["upload_bytes"] / summary["upload_bytes"]
        sent = f"{BYTES.text(other['upload_bytes'])} sent, {ratio:.2f} times as much"
        yield "beside it", f"{other['method']}, the same clients and cohorts:{score} {sent}"
    tested = {key[5:]: value for key, value in summary.items() if key.startswith("test_")}
    own = {key: value for key, value in tested.items() if key not in FIRST}
    if texts := [f"{key} {value:.4g}" for key, value in own.items() if isinstance(value, float)]:
        yield "error" if "rmse" in own else "measures", f"{', '.join(texts)} on test data"
    yield from _several("measures", summary.get("test_measures_missing"))
    where = f" on the {summary['engine']} engine" if "engine" in summary else ""
    where += f", {summary['workers']} workers" if (summary.get("workers") or 1) > 1 else ""
    for key, usual, before in (("execution", "loop", "clients "), ("precision", "fp32", "")):
        where += f", {before}{summary[key]}" if summary.get(key, usual) != usual else ""
    yield "time", f"{TIME.text(summary['seconds'])} of training and evaluation{where}"
    if (simulated := summary.get("simulated_seconds")) is not None:
        reached = list(summary["simulated_seconds_to"].items())[-1:]
        to = "".join(f"; {float(level):.0%} right after {TIME.text(after)}" for level, after in reached)
        yield "devices", f"{TIME.text(simulated)} on the simulated clock{to}"
    if skipped := summary.get("skipped_clients"):
        yield "skipped", f"{skipped} client answers; see `skipped` in metrics.jsonl"
    yield from limit_rows(summary)
    if rounds := summary.get("rounds_without_step"):
        yield "not stepped", f"{rounds} rounds, for lack of replies"
    if "epsilon" in summary:
        yield "privacy", privacy_text(summary)


def limit_rows(summary: Mapping[str, Any]) -> Rows:
    """What kept single clients from much, and what to look at."""
    if (clip := summary.get("clip") or {}).get("multiple") is not None:
        counts = sorted(clip["clipped"].items(), key=lambda one: -one[1])[:3]
        most = ", ".join(f"client {client} {count} times" for client, count in counts)
        yield "clip", f"{clip['multiple']:g} times the usual norm{most and f': longer were {most}'}"
    if clip.get("quantile") is not None:
        psi, cells = clip["bounds"]["psi"], clip["bounds"]["cells"]
        ends = ["none" if norm is None else f"{norm:.3g}" for norm in cells]
        ends += [] if psi is None else [f"psi {psi:.3g}"]
        yield "clip", f"follows the {clip['quantile']:g} quantile of norms, ends at {', '.join(ends)}"
    for chunk, rounds in (summary.get("psi_alarms") or {}).items():
        yield "alarm", f"psi gradients of chunk {chunk} of another size in {rounds} rounds"
    if held := summary.get("psi_held"):
        yield "held", f"at the bound of what it can mean: {', '.join(held)}"


def _several(name: str, *texts: str | None) -> Rows:
    known = [text for text in texts if text]
    yield from zip([name, *[""] * len(known)], known, strict=False)


def _federated_rows(summary: Mapping[str, Any]) -> Rows:
    """Scores, sizes, L_ML and bytes."""
    test, average = told(summary, "test_"), ""
    if (many := summary.get("val_evaluations_averaged", 0)) > 1:
        score = SCORES["accuracy"].text(summary["val_accuracy_last10"])
        average = f" (mean of the last {many} evaluations {score})"
    looked = f", only looked at{average}" if summary["val_accuracy"] is not None else ""
    scores = [
        test and f"{test} on test data that no client has seen",
        (validation := told(summary, "val_")) and f"{validation} on validation data{looked}",
        _by_clients(summary),
    ]
    classes = any(summary.get(f"{part}_accuracy") is not None for part in PARTS)
    yield from _several("accuracy" if classes else "loss", *scores)
    yield from _several("sizes", *_by_architecture(summary))
    if (lml := summary.get("lml_last10")) is not None:
        told_lml = f"{SCORES['lml'].text(lml)} per example of clients"
        yield "L_ML", f"{told_lml}, by subnetworks that have never seen them"
    if share := summary.get("held_out_share"):
        yield "held out", f"{SHARE.text(share)} of the clients' examples, never trained on"
    ratio, expected = (SHARE.text(summary[key]) for key in ("upload_ratio", "upload_ratio_expected"))
    sent = f"{ratio} of what FedAvg's clients send (expected {expected})"
    yield "upload", f"{sent}; {BYTES.text(summary['upload_bytes'])} in all"


def _by_architecture(summary: Mapping[str, Any]) -> Iterator[str]:
    """Of each size of the network, and of all together: scores on test data, and what its clients sent."""
    for row in summary.get("by_architecture", ()):
        score = f"{score} on test data, " if (score := told(row)) else ""
        sent = f"{row['clients']} clients, {BYTES.text(row['upload_bytes'])} sent"
        yield f"{size_name(row)}: {score}{row['parameters']:,} parameters, {sent}"
    if (together := summary.get("ensemble")) is not None:
        yield f"their ensemble: {told(together)}"


def _by_clients(summary: Mapping[str, Any]) -> str:
    """What the clients found on the examples that they hold out, and how it differs among them."""
    if (key := first_of(summary, "client_")) is None:
        return ""
    show, parts = score_of(key).text, [f"{told(summary, 'client_')} on examples that clients hold out"]
    if (worst := summary.get(f"{key}_worst_decile")) is not None:
        parts.append(f"{show(worst)} for the worst tenth of clients")
        for kind, words in (("chunks", "in chunk"), ("caps", "with cap")):  # architectures have rows
            found = enumerate(summary.get(f"{key}_{kind}") or [], start=1)
            parts.append(", ".join(f"{show(value)} {words} {k}" for k, value in found if value is not None))
    return "; ".join(filter(None, parts))


def _training_rows(summary: Mapping[str, Any]) -> Rows:
    """Scores, the evidence, an ensemble's, those of subnetworks and stages."""
    key = "accuracy" if summary["train_accuracy"] is not None else "nll"
    score, found = SCORES[key], {part: summary[f"{part}_{key}"] for part in ("test", "val", "train")}
    texts = [
        f"{score.text(value)} on {PARTS[part]} data" for part, value in found.items() if value is not None
    ]
    yield score.word, ", ".join(texts)
    if summary["lml"] is not None:
        evidence = EVIDENCES[summary.get("evidence", "lml")]
        at = f"at iteration {summary['lml_iteration']:,} (larger is better)"
        yield evidence.word, f"{evidence.text(summary['lml'])} {at}"
    accuracy, nll = SCORES["accuracy"].text, SCORES["nll"].text
    if (ensemble := summary.get("ensemble")) is not None:
        together = f"{accuracy(ensemble['accuracy'])}, {nll(ensemble['nll'])}"
        calibration = f"calibration error {accuracy(ensemble['calibration_error'])}"
        yield "ensemble", f"together {together}, {calibration}; {ensemble['parameters']:,} parameters"
        alone = [row["accuracy"] for row in ensemble["subsets"] if len(row["members"]) == 1]
        yield "members", ", ".join(map(accuracy, alone))
        if "diversity" in ensemble:
            yield "diversity", f"{ensemble['diversity']:.2f}: pairs that disagree, over a member's errors"
    if (corrupted := summary.get("corrupted")) is not None:
        mean = ", ".join(SCORES[k].text(corrupted["mean"][k]) for k in FIRST if k in corrupted["mean"])
        yield "corrupted", f"{mean}, the mean of 25 corrupted test sets"
    parts = summary["subnetworks"]
    if len(parts) > 1 and all(part["test"] for part in parts):
        each = ", ".join(f"{score.text(part['test'][key])} (of {part['examples']:,})" for part in parts)
        yield "subnetworks", f"on test data, each trained on the first examples: {each}"
    for stage in summary["stages"][:-1]:
        if stage[f"test_{key}"] is not None:
            before = score.text(stage[f"test_{key}"])
            yield stage["name"], f"{before} on test data before the next stage"
