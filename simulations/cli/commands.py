"""What the commands do, from what was typed to what is shown; experiments.py says what they are."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedpart.checks import require
from fedpart.data.trained_on import counted
from fedpart.extras import need
from fedpart.loggers.logged import untaken
from simulations.cli.guards import interruptible
from simulations.cli.options import single
from simulations.config import load
from simulations.config.yaml_files import key_of, purpose, read_extended, shipped
from simulations.errors import ConfigError, as_written
from simulations.folders.run_directory import CONFIG, read_summary, saved_config
from simulations.folders.starting import start_folder
from simulations.results.report.page import write_report
from simulations.results.terminal.panel import show_end
from simulations.results.terminal.progress import Progress
from simulations.running.export import export_run
from simulations.running.personalise import Tuning, personalise_run
from simulations.running.predict import predict_run
from simulations.running.resume import missing_beside, resumed_config, retraining_config, run_beside
from simulations.running.run import run_experiment
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.compare import run_comparison
from simulations.sweeps.select import run_selection
from simulations.sweeps.table import recorded_table, run_table

_EXAMPLES = {"train": "input_mask", "select": "input_selection", "search": "search_quickstart"}


def _run(
    kind: type[load.Config], *, files: list[str], overrides: list[str], out: Path | None, resume: Path | None
) -> None:
    file = single(files)
    if resume is not None:
        _refuse_another(out, resume)
        config, folder = resumed_config(resume, file, overrides, kind), resume
        before = read_summary(resume, config)
        other = missing_beside(config, folder, set(map(key_of, overrides)))
        if before is not None and other is None:
            console = Console()
            more = f"; add --set {kind.clock.total}=N to train on" if config.may_grow else ""
            done = f"The run in {resume} is already finished{more}."
            console.print(done, soft_wrap=True, markup=False, highlight=False)
            show_end(console, before, folder, file, overrides)
            return
    else:
        config = load.load_config(_named(file, kind.clock.command), overrides, kind)
        folder = out or new_folder(Path(str(file)).stem, config)
        other = missing_beside(config, folder)  # refused now, and not after the run
    _show(config, folder, file, overrides, resume is not None, other)


run = partial(_run, load.ExperimentConfig)
train = partial(_run, load.TrainingConfig)


def new(kind: str, folder: Path) -> None:
    command = start_folder(kind, folder)
    print(f"{folder} has what runs as it is; next:\n  cd {quote(str(folder))}\n  {command}")


def show(run: Path) -> None:
    summary = read_summary(run)
    if summary is None or "method" not in summary:
        raise ConfigError(f"{run} holds no finished run; give the folder of one.")
    with as_written(run):
        show_end(Console(), summary, run)


def export(run: Path, kind: str, out: Path | None) -> None:
    path, learned = export_run(run, kind, out)
    left = f"; without {', '.join(learned)}, which fedpart predict applies" if learned else ""
    text = f"{path}: the network, checked against the run's module{left}"
    Console().print(text, soft_wrap=True, markup=False, highlight=False)


def predict(run: Path, source: Path, out: Path) -> None:
    count, remarks = predict_run(run, source, out)
    for text in (f"{out}: {counted(count, 'prediction')}", *remarks):
        Console().print(text, soft_wrap=True, markup=False, highlight=False)


def configs() -> None:
    table = Table.grid(padding=(0, 2))
    for name, file in shipped().items():
        table.add_row(Text(name, style="bold"), Text(purpose(file)))
    Console().print(table)


def schema(kind: str) -> None:
    kinds = {each.clock.command: each for each in load.Config.__subclasses__()}
    known = f"fedpart schema takes {' or '.join(kinds)}, got {kind!r}; name one."
    require(kind in kinds, known, ConfigError)
    print(json.dumps(kinds[kind].file_schema(), indent=2))


def retrain(found: Path, overrides: list[str], out: Path | None) -> None:
    config = retraining_config(found, overrides)
    _show(config, out or new_folder(f"{found.resolve().name}-retrained", config))


def personalise(
    run: Path, clients: int | None, client: list[str] | None, layers: list[str] | None, overrides: list[str],
    save: Path | None, out: Path | None, **tuning: Any,
) -> None:  # fmt: skip
    require(not client or not clients, "Give --clients or --client, not both.", ConfigError)
    tuning |= {"clients": client or clients, "layers": layers or ["*"]}
    console = Console()
    folder = out or run
    gains = personalise_run(run, Tuning(**tuning), overrides, save, Progress(console))
    gains.write(folder)
    console.print(gains.table())
    files = f"{folder}/: personal.json" + (f"; {save}/: client-*.safetensors" if save else "")
    console.print(files, soft_wrap=True, markup=False, highlight=False)


def compare(
    files: list[str], overrides: list[str], methods: str, seeds: int, jobs: int, out: Path | None
) -> None:
    names = [name.strip() for name in methods.split(",") if name.strip()]
    file = _named(single(files), "compare")
    folder = out or Path("runs") / f"compare-{Path(file).stem}"
    config = load.load_config(file, overrides, load.ExperimentConfig)
    with _sweeping(jobs, folder, f"the same command continues the comparison in {folder}") as runner:
        run_comparison(config, names, seeds, folder, runner)


def table(
    name: str, overrides: list[str], scale: str | None, rows: list[str] | None, finished: bool, raw: bool,
    jobs: int, out: Path | None,
) -> None:  # fmt: skip
    file = load.table_file(name)
    folder = out or Path("runs") / "-".join(filter(None, ("table", file.stem, scale)))
    with _sweeping(jobs, folder, f"the same command continues the table in {folder}") as runner:
        if raw:
            recorded_table(file, folder, scale, runner)
        else:
            run_table(file, overrides, folder, runner, scale=scale, labels=rows or [], read_only=finished)


@contextmanager
def _sweeping(jobs: int, folder: Path, remedy: str) -> Iterator[CellRunner]:
    progress = Progress()
    with interruptible(remedy, folder):
        yield CellRunner(jobs, progress=progress, console=progress.console)


def report(folder: Path, out: Path | None) -> None:
    path = write_report(folder, out)
    Console().print(f"Report: {path}", soft_wrap=True, markup=False, highlight=False)


def select(
    files: list[str], overrides: list[str], values: str | None, seeds: int | None, laplace: bool, jobs: int,
    out: Path | None,
) -> None:  # fmt: skip
    file = _named(single(files), "select")
    folder = out or Path("runs") / f"select-{Path(file).stem}"
    asked = {"values": None if values is None else f"[{values}]", "seeds": seeds}
    chosen = [f"select.{key}={value}" for key, value in asked.items() if value is not None]
    config = load.load_config(file, [*overrides, *chosen], load.TrainingConfig)
    with _sweeping(jobs, folder, f"the same command continues the selection in {folder}") as runner:
        run_selection(config, folder, runner, laplace)


def search(files: list[str], overrides: list[str], jobs: int, out: Path | None, resume: Path | None) -> None:
    file = single(files)
    need("optuna", "fedpart search", "search")
    from simulations.sweeps.search.search import run_search

    if resume is not None:
        _refuse_another(out, resume)
        out = resume
    if resume is not None and file is None:
        saved = saved_config(resume)
        config = load.with_overrides(saved.resolved(), overrides, str(resume / CONFIG), type(saved))
    else:
        file = _named(file, "search")
        config = load.load_config(file, overrides, load.kind_of(read_extended(Path(file))[0]))
    folder = out or Path("runs") / f"search-{Path(str(file)).stem}"
    with _sweeping(jobs, folder, f"continue with: fedpart search --resume {quote(str(folder))}") as runner:
        run_search(config, folder, runner)


def _show(
    config: load.Config, folder: Path, file: str | None = None, overrides: Sequence[str] = (),
    resume: bool = False, other: load.ExperimentConfig | None = None,
) -> None:  # fmt: skip
    """Run it, and then the ``other`` beside it, with progress, pictures and the panel at the end."""
    console = Console()
    with interruptible(
        f"continue with: fedpart {config.clock.command} --resume {quote(str(folder))}", folder
    ):
        alone = other is None  # else all is drawn when both are there
        summary = run_experiment(config, folder, resume=resume, progress=Progress(console), draw=alone)
        if other is not None:
            run_beside(other, folder, Progress(console), set(map(key_of, overrides)))
    show_end(console, summary, folder, file, overrides)


def _refuse_another(out: Path | None, resume: Path) -> None:
    if out is not None and out.resolve() != resume.resolve():
        raise ConfigError(f"--resume {resume} continues in its own folder; leave --out {out} away.")


def _named(file: str | None, command: str) -> str:
    if file is None:
        example = f"simulations/configs/{_EXAMPLES.get(command, 'quickstart')}.yaml"
        raise ConfigError(f"Name a configuration, for instance fedpart {command} {example}.")
    return file


def new_folder(name: str, config: load.Config) -> Path:
    """``runs/<config>-<method>-seed<seed>``, with a number appended if that is taken."""
    method = re.sub(r"[^A-Za-z0-9_.-]+", "-", config.method)
    return untaken(Path("runs") / f"{name}-{method}-seed{config.seed}")
