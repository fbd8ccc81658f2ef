"""The runs of a page in words and tables: with which settings, how far they are, what computed them."""

from __future__ import annotations

from collections.abc import Sequence

from simulations.config.load import ExperimentConfig
from simulations.config.yaml_files import as_yaml
from simulations.report.folder import Found
from simulations.results.curves import Run
from simulations.results.words import counted, privacy_text

Table = tuple[list[str], list[list[str]]]  # headings and rows of texts


def about(config: ExperimentConfig) -> str:
    """The experiment in a line: data, clients, length."""
    points = (
        counted(config.training_points, "training point") if config.training_points else "all training points"
    )
    turned = f" turned by up to {config.max_angle:g} degrees" if config.rotated else ""
    natural = config.split.recipe == "natural"
    split = "each with its own" if natural else f"{config.split.recipe} split by {config.split.by}"
    if not natural and config.split.recipe != "iid":
        split += f", Dirichlet {config.split.alpha:g}"
    return (
        f"Data {config.data}{turned}, {points}; {counted(config.clients, 'client')} ({split}) in cohorts of "
        f"{config.cohort}; model {config.model}, S = {config.samples}; {counted(config.rounds, 'round')}."
    )


def settings_text(found: Found) -> str:
    """The configuration that the runs share, as YAML."""
    own = ("method", "seed")
    shared = {key: value for key, value in found.config.resolved().items() if key not in own}
    return as_yaml(shared, 90, None)


def runs_table(comparisons: Sequence[Found]) -> Table:
    """Every run: how far it is, where and how it was computed, and the hash of what it computed."""
    named = _named(comparisons)
    private = any("epsilon" in run.summary for _, run in named)
    head = ["run", "state", "engine", "precision", *["privacy"] * private, "configuration"]
    rows = []
    for name, run in named:
        config = run.config
        state = counted(config.rounds, "round")
        if not run.finished:
            state = f"round {len(run.metrics):,} of {config.rounds:,}"
        workers = run.summary.get("workers", config.processes)
        engine = [run.summary.get("engine", config.engine)]
        engine += [f"{workers} workers"] if workers and workers > 1 else []
        engine += [config.execution] if config.execution != "loop" else []
        precision = f"{config.precision}{', channels last' if config.channels_last else ''}"
        spent = [privacy_text(run.summary)] * private
        rows.append([name, state, ", ".join(engine), precision, *spent, config.hash()])
    return head, rows


def versions(comparisons: Sequence[Found]) -> list[str]:
    """A sentence for each set of versions that has computed finished runs."""
    found: dict[str, list[str]] = {}
    for name, run in _named(comparisons):
        if summary := run.summary:
            texts = [f"{key} {value}" for key, value in summary.get("versions", {}).items() if value]
            if commit := summary.get("git_commit"):
                number, plus, changes = commit.partition("+")
                texts.append(f"commit {number[:12]}{plus}{changes}")
            found.setdefault(", ".join(texts) or "versions not recorded", []).append(name)
    every = len(found) == 1
    return [f"{'All finished runs' if every else '; '.join(own)}: {text}." for text, own in found.items()]


def _named(comparisons: Sequence[Found]) -> list[tuple[str, Run]]:
    """All runs with their names on the page."""
    several = len(comparisons) > 1
    return [
        (f"{found.name}: {run.name}" if several else run.name, run)
        for found in comparisons
        for run in found.runs
    ]
