"""Runs with loggers: what these have is metrics.jsonl, whatever happened to the run."""

import json
import re
import sys
from pathlib import Path

import pytest
from command_line import fedpart
from interruptions import Died, DiesAfter, die, kill, killed
from logged_points import as_kept_by, in_lines, mlflow_client, wandb_records, written
from tiny import same_run, tiny, tiny_file, tiny_training

from fedpart.loggers import Logger
from fedpart.loggers.lines import scalars
from simulations.config.load import ConfigError, ExperimentConfig
from simulations.folders.run_directory import STATE, read_metrics, read_summary, saved_config
from simulations.results.pictures import run_figures
from simulations.running.run import run_experiment

pytestmark = pytest.mark.slow

KINDS = ["tensorboard", "wandb", "mlflow"]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A run that nobody looks at and nothing happens to."""
    folder = tmp_path_factory.mktemp("runs") / "calm"
    run_experiment(tiny(rounds=6), folder)
    return folder


def events_of(folder):
    """What TensorBoard reads in a run's folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


def shown_table(kind, folder):
    """Numbers of the final table."""
    if kind == "mlflow":
        client, run = mlflow_client(folder)
        return {k: v for k, v in client.get_run(run).data.metrics.items() if k.startswith("summary/")}
    if kind == "wandb":
        updates = [update for record in wandb_records(folder) for update in record.summary.update]
        table = [one for one in updates if one.key.startswith("summary/")]
        return {one.key: float(json.loads(one.value_json)) for one in table}
    events = events_of(folder)
    return {tag: events.Scalars(tag)[-1].value for tag in events.Tags()["scalars"] if tag[:8] == "summary/"}


def assert_table(kind, folder):
    """It has what the summary has."""
    numbers = [(f"summary/{name}", 0, float(x)) for name, x in scalars(read_summary(folder)).items()]
    table = {name: value for name, _, value in as_kept_by(kind, numbers)}
    assert shown_table(kind, folder) == pytest.approx(table, rel=1e-6)


def pictures_and_configuration(kind, folder):
    """Names of the pictures and of the settings that a logger has kept."""
    if kind == "mlflow":
        client, run = mlflow_client(folder)
        pictures = {Path(file.path).stem for file in client.list_artifacts(run)}
        return pictures, set(client.get_run(run).data.params)
    if kind == "wandb":
        files = folder.glob("wandb/*/files/media/images/pictures/*.png")
        updates = [one for record in wandb_records(folder) for one in record.run.config.update]
        return {file.stem.rsplit("_", 2)[0] for file in files}, {one.key for one in updates}
    events = events_of(folder)
    plugin = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    return set(events.Tags()["images"]), set(re.findall(r"[\w.]+", plugin.decode("latin-1")))


def test_after_kill_and_resume_a_logger_has_every_point_of_metrics_once(calm, tmp_path):
    out, config = tmp_path / "killed", tiny(rounds=6, checkpoint_every=2, loggers=KINDS)
    killed(config, out, 5)
    for kind in (
        "tensorboard",
        "mlflow",
    ):  # wandb's file is of a process of its own, which may still be at it
        before = as_kept_by(kind, in_lines(read_metrics(out)))
        assert written(kind, out) == before and max(step for _, step, _ in before) == 5
    run_experiment(saved_config(out), out, resume=True)
    same_run(calm, out)
    for kind in KINDS:
        assert written(kind, out) == as_kept_by(kind, in_lines(read_metrics(out))), kind
        pictures, hyperparameters = pictures_and_configuration(kind, out)
        assert {"transforms", "psi"} <= pictures and "server_psi.learning_rate" in hyperparameters, kind
        assert_table(kind, out)


def test_a_run_that_stopped_at_its_checkpoint_goes_on_in_the_same_run_of_mlflow(tmp_path):
    with pytest.raises(Died):
        run_experiment(tiny(loggers=["mlflow"]), tmp_path, progress=DiesAfter(2))
    before = mlflow_client(tmp_path)[1]
    run_experiment(saved_config(tmp_path), tmp_path, resume=True)
    assert mlflow_client(tmp_path)[1] == before
    assert written("mlflow", tmp_path) == as_kept_by("mlflow", in_lines(read_metrics(tmp_path)))


def test_a_longer_run_loses_the_evaluation_that_was_out_of_turn(tmp_path):
    run_experiment(tiny(rounds=3, loggers=["tensorboard"]), tmp_path)
    run_experiment(tiny(rounds=4, loggers=["tensorboard"]), tmp_path, resume=True)
    points = written("tensorboard", tmp_path)
    assert points == as_kept_by("tensorboard", in_lines(read_metrics(tmp_path)))
    assert [step for name, step, _ in points if name == "val_nll"] == [2, 4]


def test_a_centralised_run_logs_its_reports_and_a_logger_may_be_added_later(tmp_path):
    with pytest.raises(Died):
        run_experiment(tiny_training(), tmp_path, watch=lambda line: die())
    run_experiment(tiny_training(loggers=["tensorboard"]), tmp_path, resume=True)
    lines = read_metrics(tmp_path)
    assert [line["iteration"] for line in lines] == [10, 20, 30]
    assert written("tensorboard", tmp_path) == as_kept_by("tensorboard", in_lines(lines))


def test_a_run_that_is_killed_while_it_draws_has_ended_for_its_loggers(tmp_path, monkeypatch):
    monkeypatch.setattr("simulations.running.run.plot_run", lambda *_, **__: kill())
    killed(tiny(rounds=2, loggers=["tensorboard", "mlflow"]), tmp_path)
    for kind in ("tensorboard", "mlflow"):
        assert_table(kind, tmp_path)
    client, run = mlflow_client(tmp_path)
    assert client.get_run(run).info.status == "FINISHED"


def test_pictures_are_drawn_once(tmp_path, monkeypatch):
    drawn = []
    save = run_figures.save_png

    def count(figures, folder):
        drawn.extend(figures)
        return save(figures, folder)

    monkeypatch.setattr(run_figures, "save_png", count)
    file = tiny_file(tmp_path, rounds=1, loggers=["tensorboard"])
    assert fedpart("run", file, "--out", tmp_path / "run").exit_code == 0
    assert "learning_curve" in drawn and len(set(drawn)) == len(drawn)
    assert (tmp_path / "run" / "learning_curve.png").exists()


SEEN = []


def note(line):
    SEEN.append(line["round"])


class Broken(Logger):
    """Works for two rounds."""

    def log(self, line):
        if line["round"] == 3:
            raise OSError("the server is away")
        assert line["round"] < 3


def test_a_logger_that_fails_neither_ends_the_run_nor_changes_it(calm, tmp_path):
    SEEN.clear()
    config = tiny(rounds=6, loggers=[f"{__name__}:Broken", f"{__name__}:note"])
    with pytest.warns(RuntimeWarning, match="test_logged_runs:Broken has failed .*the server is away"):
        run_experiment(config, tmp_path)
    same_run(calm, tmp_path)
    assert SEEN == [1, 2, 3, 4, 5, 6], "a function of one's own sees every line"


def test_processes_of_workers_are_forked_beside_loggers(calm, tmp_path):
    run_experiment(tiny(rounds=6, workers=2, loggers=["tensorboard", "wandb"]), tmp_path)
    assert (tmp_path / STATE).read_bytes() == (calm / STATE).read_bytes()
    for kind in ("tensorboard", "wandb"):
        assert written(kind, tmp_path) == as_kept_by(kind, in_lines(read_metrics(tmp_path)))


def test_a_missing_library_is_said_with_its_command_before_there_is_a_folder(tmp_path, monkeypatch):
    for name in [*sys.modules]:
        if name.partition(".")[0] in KINDS or name.startswith("torch.utils.tensorboard"):
            monkeypatch.delitem(sys.modules, name)
    for kind in KINDS:
        monkeypatch.setitem(sys.modules, kind, None)
        with pytest.raises(ConfigError, match=rf'pip install "fedpart\[{kind}\]"\.$'):
            run_experiment(tiny(loggers=[kind]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_key_takes_names_and_options_and_decides_no_number():
    short, long = tiny(loggers=["wandb"]), tiny(loggers=[{"use": "wandb", "options": {"project": "p"}}])
    assert short.hash() == long.hash() == tiny().hash()
    assert ExperimentConfig.from_dict(long.resolved()) == long
    with pytest.raises(ConfigError, match="did you mean 'wandb'"):
        tiny(loggers=["wandbb"])
    with pytest.raises(ConfigError, match="the logger 'mlflow' has no option 'uri'"):
        tiny(loggers=[{"use": "mlflow", "options": {"uri": "x"}}])
