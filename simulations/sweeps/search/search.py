"""Search: trials of other values, one run each, until there are enough; the best one as a configuration."""

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from shlex import quote
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from fedpart.checks import require
from fedpart.registry import reading
from simulations.building.data import load_data
from simulations.building.experiment import ready
from simulations.config.load import AnyConfig, Config, ExperimentConfig, with_values
from simulations.config.search import SearchSection
from simulations.config.yaml_files import as_yaml
from simulations.errors import ConfigError, RunError, one_sentence
from simulations.folders import run_directory
from simulations.folders.cell import refuse_other_sweep
from simulations.folders.contents import new_name, run_name
from simulations.folders.data_files import KnownData
from simulations.folders.resolved import held, is_own, write_config
from simulations.results.pictures.sweep_figures import plot_search
from simulations.results.scores import counted
from simulations.results.search import Cost, Found, TrialRow
from simulations.running.recorder import Interrupted
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.parallel import Pruned
from simulations.sweeps.search.study import JOURNAL, Attempt, Study

BEST = "best.yaml"


def run_search(config: Config, out: str | Path, runner: CellRunner | None = None) -> Found:
    """Run the trials of ``config.search`` that are missing; what all of them amount to."""
    out, runner = Path(out), runner or CellRunner()
    section = _section(config)
    values, resolved = dict[str, Any](), config.resolved()
    for key in section.space:
        values[key] = reduce(lambda inside, part: (inside or {}).get(part), key.split("."), resolved)
    offered = all(values[key] in domain for key, domain in section.domains().items())
    if not (out / run_directory.CONFIG).exists():  # what no trial could have leaves no folder
        with one_sentence():
            ready(config) if offered else load_data(config)
    _claim(out, config)
    with held(out):
        return _search(config, Study(out, config, values if offered else None), out, runner)


def _search(config: Config, study: Study, out: Path, runner: CellRunner) -> Found:
    section, done = study.section, 0

    def ended(attempt: Attempt, error: Exception | None, _: str = "") -> None:
        nonlocal done
        attempt.ended(error)
        done, trial = done + 1, attempt.known
        said = f"{in_line(study.values(trial.params))}: {_ended(trial, section, config.clock.name)}"
        runner.say(f"Trial {trial.number + 1} of {section.trials}: {said}")

    known = KnownData()
    for trial in study.trials:  # before others are made that follow from them
        if run_directory.holds_run(folder := _folder(out, trial.number)):
            own = _with(config, study.values(trial.params))
            Attempt(f"trial {trial.number}", own, folder, study, trial).check(known)
    todo = study.unfinished()

    def take(_: Sequence[Attempt]) -> Attempt | None:
        """The next trial that is missing: those that were under way, then new ones."""
        while todo or len(study.trials) < section.trials:
            trial = todo.pop(0) if todo else study.ask()
            trial_config, misfit = config, None
            try:
                trial_config = _with(config, study.values(trial.params))
            except ConfigError as error:  # each value fits by itself, and not with the others
                misfit = RunError(str(error))
            attempt = Attempt(f"trial {trial.number}", trial_config, _folder(out, trial.number), study, trial)
            end = Pruned() if attempt.caught_up() else misfit
            if end is None:
                return attempt
            ended(attempt, end)
        return None

    if (number := runner.each(take, min(runner.jobs, section.trials), ended, Attempt.stops)) is not None:
        raise Interrupted(number, counted(done, "trial"))
    rows = [_row(study, trial, out) for trial in study.trials]
    outcome = Found(section, rows, config)
    outcome.write(out)
    runner.console.print(outcome.table())
    if outcome.best is None:
        raise RunError("No trial has a result; see what they said above, and widen or move search.space.")
    text = as_yaml(_with(config, outcome.best.values).resolved())
    (out / BEST).write_text(f"# trial {outcome.best.number}: {in_line(outcome.best.values)}\n{text}")
    pictures = plot_search(out, outcome)
    files = ["search.csv", "search.json", *(path.name for path in pictures)]
    runner.say(f"{out}/: {', '.join(files)}")
    runner.say(f"The best configuration: fedpart {config.clock.command} {out / BEST}")
    return outcome


_OPTIONS = "target", "client", "validation", "test", "hold_out", "name", "subset", "revision", "examples"
_OF_OTHERS = {  # keys that decide on which examples the objective is, and of what it is the likelihood
    *("data", "data_dir", "data_seed", "rotated", "max_angle", "validation_points", "full_validation_rounds"),
    *("evaluation_share", "likelihood", "data_options", *(f"data_options.{name}" for name in _OPTIONS)),
}
_OF_CLIENTS = {"seed", "clients", "split", "split.recipe", "split.alpha", "split.by"}  # which evaluate


def _section(config: Config) -> SearchSection:
    """What is searched, after a look at what can be known to fail before anything is run."""
    if (section := config.search) is None:
        remedy = "add for instance search: {space: {hyperparameters.dropout.rate: [0.01, 0.5]}, trials: 20}"
        raise ConfigError(f"The configuration does not say what to search; {remedy}.")
    by_clients = section.objective.startswith("client")
    if by_clients and not isinstance(config, ExperimentConfig):
        fault = f"{config.clock.kind.capitalize()} has no clients for search.objective: {section.objective}"
        raise ConfigError(f"{fault}; set it to val_accuracy or val_nll.")
    federated, settings = isinstance(config, ExperimentConfig), config.settings()
    if federated and not (config.evaluation == "clients" if by_clients else settings.scored):
        remedy = f"set evaluation: {'clients' if by_clients else 'central'}, or another objective"
        remedy = remedy if by_clients or config.evaluation == "none" else "name client_accuracy or client_nll"
        raise ConfigError(f"Nobody evaluates {section.objective}, which search.objective names; {remedy}.")
    domains = section.domains()
    for key in (_OF_OTHERS | (_OF_CLIENTS if by_clients else set())).intersection(domains):
        fault = f"Values of {key} cannot be compared by {section.objective}, for each is of other examples"
        raise ConfigError(f"{fault}; leave it out of search.space.")
    methods = [{"method": name} for name in domains["method"].ends] if "method" in domains else [{}]
    for key, domain in domains.items():
        runs = [{_decided(_with(config, {**of, key: value})) for value in domain.ends} for of in methods]
        if max(map(len, runs)) < min(2, len(domain.ends)):
            fault = f"search.space.{key} decides nothing in a run of {config.method}"
            raise ConfigError(f"{fault}; leave it out.")
    return section


def _decided(config: Config) -> str:
    """What tells runs apart: neither options of other methods, nor a server that the method replaces."""
    settings, rest = config.settings(), config.deciding("numbers")
    rest = {key: value for key, value in rest.items() if key not in ("method_options", "server")}
    steps = (getattr(settings, key, None) for key in ("stepped_by", "server_psi"))
    return repr((rest, config.options_of(config.method), *steps))


def _with(config: AnyConfig, values: dict[str, Any]) -> AnyConfig:
    return with_values(config, {"search": None, **values}, f"search.space with {in_line(values)}")


def _claim(out: Path, config: Config) -> None:
    """Write the search's configuration, after a look that the folder's is this one but for its trials."""
    file, now = out / run_directory.CONFIG, config.resolved()
    if run_directory.holds_run(out) and (
        not file.exists() or ((out / run_directory.METRICS).exists() and not (out / JOURNAL).exists())
    ):
        raise ConfigError(f"{out} holds a run; choose another folder with --out.")
    if file.exists():
        before = run_directory.saved_config(out).resolved()
        if before["search"] is not None:
            before["search"]["trials"] = now["search"]["trials"]  # they may change
        remedy = f"choose another folder with --out, or go on with fedpart search --resume {quote(str(out))}"
        require(before == now, f"{out} holds a search with another configuration; {remedy}.", ConfigError)
    refuse_other_sweep(out, run_directory.CONFIG)
    run_directory.make_folder(out, config)
    write_config(out, config, run_name(out) or new_name(), not reading() or is_own(out))


def _folder(out: Path, number: int) -> Path:
    return out / "trials" / f"{number:03d}"


def _row(study: Study, trial: FrozenTrial, out: Path) -> TrialRow:
    folder = _folder(out, trial.number)
    state = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}.get(trial.state, "failed")
    return TrialRow(
        trial.number,
        study.values(trial.params),
        state,
        trial.value if trial.state == TrialState.COMPLETE else None,
        Cost.of(folder),
        (run_directory.read_summary(folder) if run_directory.holds_run(folder) else None) or {},
    )


def in_line(values: dict[str, Any]) -> str:
    """``local.learning_rate 0.0123, cohort 5``."""
    return ", ".join(f"{key} {_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _ended(trial: FrozenTrial, section: SearchSection, clock: str) -> str:
    if trial.state == TrialState.COMPLETE:
        return f"{section.objective} {_short(trial.value)}"
    if trial.state == TrialState.PRUNED:
        return f"stopped after {clock} {max(trial.intermediate_values)}"
    return f"failed: {trial.user_attrs.get('error')}"
