"""The rows of the panel at the end of a run: what was learned, how good it is, and what it has cost."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from simulations.config.load import EVIDENCE_NAMES
from simulations.folders.run_directory import BESIDE, read_summary
from simulations.results.psi_parts import PsiParts, between, kept, several, spans, whole
from simulations.results.words import byte_text, duration, privacy_text

SCORES = {"accuracy": "{:.1%}", "nll": "{:.3f} nats"}  # how each is written; the first that there is


def rows(summary: Mapping[str, Any], own: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names and texts: psi, then ``own`` of the kind of run, then time and what else there is."""
    found = []
    if learned := whole(summary.get("psi_learned", ()), summary["psi"]):
        found += _several("learned", _learned(learned, summary.get("psi_initial", {})))
        found += _several("note", summary.get("psi_remarks", []))
    found += own
    beside = ("test_accuracy", "test_nll")
    measures = {key: value for key, value in summary.items() if key.startswith("test_") and key not in beside}
    texts = [f"{key[5:]} {value:.4g}" for key, value in measures.items() if isinstance(value, float)]
    if texts:
        found.append(("error" if "test_rmse" in measures else "measures", f"{', '.join(texts)} on test data"))
    if missing := summary.get("test_measures_missing"):
        found.append(("measures", missing))
    minutes, seconds = divmod(round(summary["seconds"]), 60)
    where = f" on the {summary['engine']} engine" if "engine" in summary else ""
    if (workers := summary.get("workers") or 1) > 1:
        where += f", {workers} workers"
    if (execution := summary.get("execution", "loop")) != "loop":
        where += f", clients {execution}"
    if (precision := summary.get("precision", "fp32")) != "fp32":
        where += f", {precision}"
    found.append(("time", f"{minutes} min {seconds} s of training and evaluation{where}"))
    if (simulated := summary.get("simulated_seconds")) is not None:
        reached = list(summary["simulated_seconds_to"].items())[-1:]
        to = "".join(f"; {float(level):.0%} right after {duration(after)}" for level, after in reached)
        found.append(("devices", f"{duration(simulated)} on the simulated clock{to}"))
    if summary.get("skipped_clients"):
        skipped = f"{summary['skipped_clients']} client answers; see `skipped` in metrics.jsonl"
        found.append(("skipped", skipped))
    found += limit_rows(summary)
    if summary.get("rounds_without_step"):
        found.append(("not stepped", f"{summary['rounds_without_step']} rounds, for lack of replies"))
    if "epsilon" in summary:
        found.append(("privacy", privacy_text(summary)))
    return found


def limit_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What kept single clients from much, and what to look at."""
    found = []
    if (clip := summary.get("clip") or {}).get("multiple") is not None:
        counts = sorted(clip["clipped"].items(), key=lambda one: -one[1])[:3]
        most = "".join(f", client {client} {count} times" for client, count in counts)
        found.append(
            ("clip", f"{clip['multiple']:g} times the usual norm{most and ': longer were' + most[1:]}")
        )
    if clip.get("quantile") is not None:
        psi, cells = clip["bounds"]["psi"], clip["bounds"]["cells"]
        w = ", ".join("none" if norm is None else f"{norm:.3g}" for norm in cells)
        ends = w if psi is None else f"{w}, psi {psi:.3g}"
        found.append(("clip", f"follows the {clip['quantile']:g} quantile of norms, ends at {ends}"))
    for chunk, rounds in (summary.get("psi_alarms") or {}).items():
        found.append(("alarm", f"psi gradients of chunk {chunk} of another size in {rounds} rounds"))
    if held := summary.get("psi_held"):
        found.append(("held", f"at the bound of what it can mean: {', '.join(held)}"))
    return found


def _several(name: str, texts: list[str]) -> list[tuple[str, str]]:
    return [("" if i else name, text) for i, text in enumerate(texts)]


def federated_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of a federated run: its scores, sizes, L_ML and bytes."""
    accuracy = []
    for key, show in SCORES.items():
        if summary.get(f"test_{key}") is not None and not accuracy:
            accuracy.append(f"{show.format(summary[f'test_{key}'])} on test data that no client has seen")
    if summary["val_accuracy"] is not None:
        many = summary["val_evaluations_averaged"]
        average = (
            f" (mean of the last {many} evaluations {summary['val_accuracy_last10']:.1%})" if many > 1 else ""
        )
        accuracy.append(f"{summary['val_accuracy']:.1%} on validation data, only looked at{average}")
    elif summary.get("val_nll") is not None:
        accuracy.append(f"{SCORES['nll'].format(summary['val_nll'])} on validation data")
    accuracy += _by_clients(summary)
    classes = any(summary.get(f"{part}_accuracy") is not None for part in ("test", "val", "client"))
    lml = summary.get("lml_last10")
    unseen = f"{lml or 0:.3f} nats per example of clients, by subnetworks that have never seen them"
    ratio, expected = summary["upload_ratio"], summary["upload_ratio_expected"]
    sent, share = f"{ratio:.1%} of what FedAvg's clients send", summary.get("held_out_share")
    return [
        *_several("accuracy" if classes else "loss", accuracy),
        *_several("sizes", _by_architecture(summary)),
        *([("L_ML", unseen)] if lml is not None else []),
        *([("held out", f"{share:.1%} of the clients' examples, never trained on")] if share else []),
        ("upload", f"{sent} (expected {expected:.1%}); {byte_text(summary['upload_bytes'])} in all"),
    ]


def beside_rows(summary: Mapping[str, Any], out: Path) -> list[tuple[str, str]]:
    """The method that was run beside this one: its score, and what its clients sent."""
    other = read_summary(out / BESIDE)
    if other is None or other["rounds"] != summary["rounds"]:  # it has not been extended yet
        return []
    key = next((f"test_{key}" for key in SCORES if other.get(f"test_{key}") is not None), None)
    score = f" {SCORES[key.removeprefix('test_')].format(other[key])} on the same test data;" if key else ""
    ratio = other["upload_bytes"] / summary["upload_bytes"]
    sent = f"{byte_text(other['upload_bytes'])} sent, {ratio:.2f} times as much"
    return [("beside it", f"{other['method']}, the same clients and cohorts:{score} {sent}")]


def _by_architecture(summary: Mapping[str, Any]) -> list[str]:
    """Of each size of the network, and of all together: scores on test data, and what its clients sent."""
    found = []
    for row in summary.get("by_architecture", ()):
        name = ", ".join(f"{key} {value}" for key, value in row["model_options"].items()) or "as it is"
        key = next((key for key in SCORES if row.get(key) is not None), None)
        score = f"{SCORES[key].format(row[key])} on test data, " if key else ""
        sent = byte_text(row["upload_bytes"])
        found.append(
            f"{name}: {score}{row['parameters']:,} parameters, {row['clients']} clients, {sent} sent"
        )
    if (together := summary.get("ensemble")) is not None:
        found.append(f"their ensemble: {SCORES['accuracy'].format(together['accuracy'])}")
    return found


def _by_clients(summary: Mapping[str, Any]) -> list[str]:
    """What the clients found on the examples that they hold out, and how it differs among them."""
    name = next((f"client_{key}" for key in SCORES if summary.get(f"client_{key}") is not None), None)
    if name is None:
        return []
    show = SCORES[name.removeprefix("client_")].format
    parts = [f"{show(summary[name])} on examples that clients hold out"]
    if (worst := summary.get(f"{name}_worst_decile")) is not None:
        parts.append(f"{show(worst)} for the worst tenth of clients")
        for key, words in (("chunks", "in chunk"), ("caps", "with cap")):  # architectures have rows
            found = enumerate(summary.get(f"{name}_{key}") or [], start=1)
            if texts := [f"{show(value)} {words} {k}" for k, value in found if value is not None]:
                parts.append(", ".join(texts))
    return ["; ".join(parts)]


def training_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of centralised training: its scores, L_ML, ensemble and stages."""
    key = "accuracy" if summary["train_accuracy"] is not None else "nll"
    show = SCORES[key]
    names = {"test": "test", "val": "validation", "train": "training"}
    found = {name: summary[f"{part}_{key}"] for part, name in names.items()}
    texts = [f"{show.format(value)} on {name} data" for name, value in found.items() if value is not None]
    rows = [("accuracy" if key == "accuracy" else "loss", ", ".join(texts))]
    if summary["lml"] is not None:
        name = EVIDENCE_NAMES[summary.get("evidence", "lml")]
        at = f"at iteration {summary['lml_iteration']:,}"
        rows.append((name, f"{summary['lml']:,.1f} nats {at} (larger is better)"))
    rows += _ensemble_rows(summary)
    parts = summary["subnetworks"]
    if len(parts) > 1 and all(part["test"] for part in parts):
        each = ", ".join(f"{show.format(part['test'][key])} (of {part['examples']:,})" for part in parts)
        rows.append(("subnetworks", f"on test data, each trained on the first examples: {each}"))
    for stage in summary["stages"][:-1]:
        if stage[f"test_{key}"] is not None:
            score = show.format(stage[f"test_{key}"])
            rows.append((stage["name"], f"{score} on test data before the next stage"))
    return rows


def _ensemble_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of an ensemble its members' and common scores, and what corrupted images do."""
    rows, accuracy, nll = [], SCORES["accuracy"].format, SCORES["nll"].format
    if (found := summary.get("ensemble")) is not None:
        alone = [row["accuracy"] for row in found["subsets"] if len(row["members"]) == 1]
        together = f"{accuracy(found['accuracy'])}, {nll(found['nll'])}"
        calibration = f"calibration error {accuracy(found['calibration_error'])}"
        rows.append(("ensemble", f"together {together}, {calibration}; {found['parameters']:,} parameters"))
        rows.append(("members", ", ".join(map(accuracy, alone))))
        if "diversity" in found:
            rows.append(
                ("diversity", f"{found['diversity']:.2f}: pairs that disagree, over a member's errors")
            )
    if (found := summary.get("corrupted")) is not None:
        mean = ", ".join(SCORES[key].format(found["mean"][key]) for key in SCORES if key in found["mean"])
        rows.append(("corrupted", f"{mean}, the mean of 25 corrupted test sets"))
    return rows


def _learned(psi: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """psi in sentences: the rotation range first, other ranges, dropout, then what is the user's own.

    Of ranges of rotation and of rates also where they began, as far as that is in ``before``.
    """
    parts = PsiParts.of(psi)
    found = []
    for names in parts.angles:
        began = f", {between(before, names)} at the start" if before.keys() >= {*names} else ""
        found.append(f"images may be turned by {between(psi, names)}{began}")
    if others := spans(psi, parts.ranges):
        found.append(", ".join(others))
    if parts.rates:
        first = dict.fromkeys(f"{before[name]:.1f}%" for name in parts.rates if name in before)
        began = f" ({', '.join(first)} at the start)" if first else ""
        found.append("dropout rates " + ", ".join(f"{psi[name]:.1f}%" for name in parts.rates) + began)
    if parts.keeps:
        found.append(f"the mask keeps {len(kept(psi))} of {len(parts.keeps)} inputs: {_list(kept(psi))}")
    if parts.rest:
        found.append(several({name: psi[name] for name in parts.rest}))
    return found


def _list(numbers: list[int]) -> str:
    """``0-14, 17``: runs of numbers in short."""
    places = groupby(enumerate(numbers), lambda place: place[1] - place[0])
    parts = [[number for _, number in own] for _, own in places]
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts) or "none"
