"""The panel at the end of a run: what came out, in words for somebody who has never seen the method."""

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fedpart.registry import foreign
from fedpart.updates.combining.base import is_personal, spelled
from simulations.config.yaml_files import key_of, read_yaml, shipped
from simulations.folders.run_directory import BESIDE, CONFIG, read_summary
from simulations.results import scores
from simulations.results.scores import BYTES, EVIDENCES, FIRST, PARTS, SCORES, SHARE, TIME, counted, told
from simulations.results.terminal.psi_rows import Rows, ended_at, learned, psi_rows, several
from simulations.results.verdicts import beside, guessed

_CENTRALISED = {
    "partitioned": "One training run learned the network {psi}; this took no validation data.",
    "none": "Plain training: hyperparameters stay fixed.",
    "augerino": "Training with Augerino: a regulariser pushes augmentation widths up.",
    "validation": "Validation-set optimisation: hyperparameters are trained on data set aside.",
    "laplace": "One network on all data: psi follows an estimate of the marginal likelihood.",
    "separate": "Separate networks, one per chunk, learned {psi}: the upper bound.",
}
_FEDERATED = {
    "partitioned": "One federated run learned the network {psi}; this took no validation data.",
    "fedavg": "Federated averaging: only the network is learned.",
    "fjord": "FjORD: clients trained parts of their networks, of sizes drawn anew for every local step.",
    "heterofl": "HeteroFL: small networks were the first units of the large one's, averaged unit by unit.",
    "fedrolex": "FedRolex: small networks were a window of the large one's units, which moved every round.",
    "augerino": "Federated averaging with Augerino: a regulariser pushes augmentation widths up.",
    "validated": "With examples that clients hold out, one federated run learned the network {psi}.",
    "fedex": "FedEx: clients tried settings, and scored them on examples that they held out of training.",
}


def show_end(
    console: Console, summary: Mapping[str, Any], out: Path, config_file: str | None = None,
    overrides: Sequence[str] = (), command: str = "run",
) -> None:  # fmt: skip
    """Print the panel of the run in ``out``, and below it commands to try next, a line each, to be copied."""
    console.print(panel(summary, out))
    console.print(Text("Try next", style="bold"))
    named = next((name for name, file in shipped().items() if str(file) == config_file), config_file)
    for what, words in _tips(command, summary, out, named, overrides):
        console.print(Text(f"  {what}:"), soft_wrap=True)
        console.print(Text(f"    {_called()}{shlex.join(['fedpart', *words])}"), soft_wrap=True)


def panel(summary: Mapping[str, Any], out: Path) -> RenderableType:
    """The summary of the run in a folder."""
    what, clock = (_CENTRALISED, "iterations") if "iterations" in summary else (_FEDERATED, "rounds")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in rows(summary, out):
        table.add_row(name, Text(scores.shown(text)))
    pictures = ", *.png" if any(out.glob("*.png")) else ""
    files = f"config.yaml, metrics.jsonl, summary.json, state.safetensors{pictures}"
    table.add_row("files", Text(f"{out}/: {files}"))
    base, ways = spelled(summary["method"])
    headline = what.get(base, f"Method {base}.").format(psi=learned(summary))
    headline += f" Clients were combined by {' and '.join(ways)}." if ways else ""
    title = Text(f"{summary['method']}, {counted(ended_at(summary), clock[:-1])}")
    return Panel(Group(Text(headline), Text(""), table), title=title, border_style="green")


def _called() -> str:
    """What stands before ``fedpart`` on a command line: ``uv run`` of that uv which runs this, or nothing."""
    if "UV_RUN_RECURSION_DEPTH" not in os.environ or (uv := os.environ.get("UV")) is None:
        return ""
    path = shutil.which("uv")
    near = "uv" if path and Path(path).samefile(uv) else os.path.relpath(uv)
    return shlex.join([near, "run"]) + " "


def _with(overrides: Sequence[str], *changes: str) -> list[str]:
    """Arguments that change keys: the run's own, and others in place of those of the same keys."""
    keys = set(map(key_of, changes))
    others = [override for override in overrides if key_of(override) not in keys]
    changed = [*others, *(change for change in changes if not change.endswith("="))]
    return ["--set", *changed] if changed else []


def _tips(
    command: str, summary: Mapping[str, Any], out: Path, config: str | None, overrides: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """What a command does, and its words."""
    base, ways = spelled(summary["method"])
    learns, plain = base == "partitioned", "the same without learned hyperparameters"
    saved = read_yaml(out / CONFIG)
    if "iterations" in summary:
        if config is not None and learns and summary["psi"]:
            yield plain, ["train", config, *_with(overrides, "method=none", "keep_best=false")]
        if summary.get("psi_learned"):
            yield "a plain network with the hyperparameters found", ["retrain", str(out)]
    else:
        spent = ", which spends more privacy" if "epsilon" in summary else ""
        if config is not None and "caps" not in summary:  # other methods have none
            without = "+".join(["fedavg", *ways])
            other = read_summary(out / BESIDE) or {}
            if learns and not summary.get("untaught") and other.get("method") != without:
                best = ["keep_best=null"] if saved.get("keep_best") else []  # a plain run has no L_ML
                yield f"{plain}{spent}", ["run", config, *_with(overrides, f"method={without}", *best)]
            several = ["compare", config, *_with(overrides, "method=")]
            yield f"all methods side by side, with plots{spent}", several
        # A run on Flower goes on by the command that knows its federation, or here.
        engine = ["--engine", "local"] if summary["engine"] == "flower" and command == "run" else []
        longer = ["--set", f"rounds={2 * summary['rounds']}"]
        yield f"go on for more rounds{spent}", [command, "--resume", str(out), *engine, *longer]
    trust = ["--trust-code"] if any(foreign(saved)) else []  # it names code of its user
    yield "a page with its curves and pictures", ["report", str(out), *trust]
    yield "the network in a file", ["export", str(out), *trust]
    if summary.get("preprocessing"):
        yield "what it says of rows, images or texts in NEW", ["predict", str(out), "NEW", *trust]


def rows(summary: Mapping[str, Any], out: Path) -> Rows:
    """Of the run in a folder: psi, then what its kind has, then time and what else there is."""
    yield from psi_rows(summary)
    remarks = summary.get("psi_remarks", []) if summary.get("psi_learned") else []
    yield from several("note", *remarks, summary.get("untaught"), summary.get("parted"))
    yield from several("rates", summary.get("rates"))
    yield from _training_rows(summary) if "iterations" in summary else _federated_rows(summary)
    other = read_summary(out / BESIDE)
    if other is not None and other["rounds"] == summary["rounds"]:  # else it has not been extended yet
        yield "beside it", beside(summary, other)
    tested = {key[5:]: value for key, value in summary.items() if key.startswith("test_")}
    others = {key: value for key, value in tested.items() if key not in FIRST}
    if texts := [f"{key} {value:.4g}" for key, value in others.items() if isinstance(value, float)]:
        yield "error" if "rmse" in others else "measures", f"{', '.join(texts)} on test data"
    yield from several("measures", summary.get("test_measures_missing"))
    where = f" on the {summary['engine']} engine" if "engine" in summary else ""
    where += f", {summary['workers']} workers" if (summary.get("workers") or 1) > 1 else ""
    for key, usual, before in (("execution", ("auto", "loop"), "clients "), ("precision", ("fp32",), "")):
        where += f", {before}{summary[key]}" if summary.get(key, usual[0]) not in usual else ""
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
        yield "privacy", scores.privacy_text(summary)


def limit_rows(summary: Mapping[str, Any]) -> Rows:
    """What kept single clients from much, and what to look at."""
    if (clip := summary.get("clip") or {}).get("multiple") is not None:
        counts = sorted(clip["clipped"].items(), key=lambda one: (-one[1], int(one[0])))[:3]
        names = summary.get("client_names", ())
        most = [(scores.client_text(int(who), names), counted(times, "time")) for who, times in counts]
        longer = ", ".join(f"client {who} {times}" for who, times in most)
        longer = f": longer were {longer}" if most else ""
        yield "clip", f"{clip['multiple']:g} times the usual norm{longer}"
    if clip.get("quantile") is not None:
        psi, cells = clip["bounds"]["psi"], clip["bounds"]["cells"]
        ends = ["none" if norm is None else f"{norm:.3g}" for norm in cells]
        ends += [] if psi is None else [f"psi {psi:.3g}"]
        yield "clip", f"follows the {clip['quantile']:g} quantile of norms, ends at {', '.join(ends)}"
    alarms = {chunk: counted(n, "round") for chunk, n in (summary.get("psi_alarms") or {}).items()}
    size = "of another size in"
    yield from several("alarm", *(f"psi gradients of chunk {k} {size} {n}" for k, n in alarms.items()))
    courses = summary.get("psi_course", {}).values()
    if (held := summary.get("psi_held")) and all(course["state"] != "held" for course in courses):
        yield "held", f"at the bound of what it can mean: {', '.join(held)}"


def _federated_rows(summary: Mapping[str, Any]) -> Rows:
    """Scores, sizes, L_ML and bytes."""
    test, average = told(summary, "test_"), ""
    if (many := summary.get("val_evaluations_averaged", 0)) > 1 and "kept_round" not in summary:
        score = SCORES["accuracy"].text(summary["val_accuracy_last10"])
        average = f" (mean of the last {many} evaluations {score})"
    looked = f", which taught it nothing{average}" if summary["val_accuracy"] is not None else ""
    parts = [
        test and f"{test} on test data that no client has seen",
        (validation := told(summary, "val_")) and f"{validation} on validation data{looked}",
        _by_clients(summary),
    ]
    classes = any(summary.get(f"{part}_accuracy") is not None for part in PARTS)
    yield from several("accuracy" if classes else "loss", *parts)
    yield from several("by guess", guessed(summary))
    yield from several("sizes", *_by_architecture(summary))
    if (lml := summary.get("lml_last10")) is not None:
        told_lml = f"{SCORES['lml'].text(lml)} per example of clients, the mean of the last rounds"
        unseen = f"{told_lml}, by subnetworks that have never seen them"
        yield from several("L_ML", unseen, summary.get("lml_fallen"))
    if share := summary.get("held_out_share"):
        yield "held out", f"{SHARE.text(share)} of the clients' examples, from which no weights learn"
    ratio, expected = (SHARE.text(summary[key]) for key in ("upload_ratio", "upload_ratio_expected"))
    who = "clients with the whole network would" if "by_architecture" in summary else "FedAvg's clients"
    sent = f"{ratio} of what {who} send (expected {expected})"
    yield "upload", f"{sent}; {BYTES.text(summary['upload_bytes'])} in all"


def _by_architecture(summary: Mapping[str, Any]) -> Iterator[str]:
    """Of each size of the network, and of all together: scores on test data, and what its clients sent."""
    for row in summary.get("by_architecture", ()):
        score = f"{score} on test data, " if (score := told(row)) else ""
        sent = f"{row['clients']} clients, {BYTES.text(row['upload_bytes'])} sent"
        yield f"{scores.size_name(row)}: {score}{row['parameters']:,} parameters, {sent}"
    if (together := summary.get("ensemble")) is not None:
        yield f"their ensemble: {told(together)} on test data"


def _by_clients(summary: Mapping[str, Any]) -> str:
    """What the clients found on the examples that they hold out, and how it differs among them."""
    if (key := scores.first_of(summary, "client_")) is None:
        return ""
    when = " in the last round" if "kept_round" in summary else ""
    show = scores.score_of(key).text
    by = " (with weights of their own)" if is_personal(summary["method"]) else ""
    parts = [f"{told(summary, 'client_')} on examples that clients hold out{by}{when}"]
    if (worst := summary.get(f"{key}_worst_decile")) is not None:
        parts.append(f"{show(worst)} for the worst tenth of clients")
        for kind, words in (("chunks", "in chunk"), ("caps", "with cap")):  # architectures have rows
            values = summary.get(f"{key}_{kind}") or []
            each = [f"{show(score)} {words} {k}" for k, score in enumerate(values, 1) if score is not None]
            parts.append(", ".join(each if len(values) > 1 else ()))
    return "; ".join(filter(None, parts))


def _training_rows(summary: Mapping[str, Any]) -> Rows:
    """Scores, the evidence, an ensemble's, those of subnetworks and stages."""
    key = "accuracy" if summary["train_accuracy"] is not None else "nll"
    score, values = SCORES[key], {part: summary[f"{part}_{key}"] for part in ("test", "val", "train")}
    known = {part: score.text(value) for part, value in values.items() if value is not None}
    texts = {part: f"{text} on {PARTS[part]} data" for part, text in known.items()}
    yield score.word, ", ".join(text + " (only looked at)" * (part == "val") for part, text in texts.items())
    yield from several("by guess", guessed(summary))
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
    for stage, then in pairwise(summary["stages"]):
        if stage[f"test_{key}"] is not None:
            before = score.text(stage[f"test_{key}"])
            yield stage["name"], f"{before} on test data, before the next stage ({then['name']})"
