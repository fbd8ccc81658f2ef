import csv
import io
import platform
from functools import partial
from pathlib import Path

import pytest
import refusals
import yaml
from fake_runs import write_run
from rich.console import Console

from fedpart import Protocol
from fedpart.methods.base import build_method
from simulations.building.task import build_task
from simulations.config.load import SHIPPED, ExperimentConfig, TrainingConfig, read_table, table_file
from simulations.errors import ConfigError
from simulations.folders.cell import Cell
from simulations.folders.run_directory import refuse_existing
from simulations.pretraining.text import pretrain_text
from simulations.results.curves import Run as Curves
from simulations.results.method_scores import at_equal_bytes
from simulations.results.records import write_record
from simulations.results.tables import text_of, values_at
from simulations.sweeps.cell_runner import CellRunner, SweepIncomplete
from simulations.sweeps.compare import run_comparison
from simulations.sweeps.table import recorded_table, run_table

PLACES = ("test_accuracy", "by.parameters", "psi.affine.angle [deg]")
ACCURACY = {("fedavg", 0): 0.80, ("fedavg", 1): 0.84, ("partitioned", 0): 0.9, ("partitioned", 1): 0.9}


@pytest.fixture
def file(tmp_path):
    """A table of two rows and two seeds; ``changes`` of its keys."""

    def written(**changes):
        (tmp_path / "base.yaml").write_text("clients: 20\ncohort: 5\nrounds: 3\nevaluate_every: 1\n")
        base = {
            "title": "Two methods",
            "config": "base.yaml",
            "seeds": [0, 1],
            "scales": {"long": {"rounds": 4, "cohort": 6}},
            "columns": dict(zip(("test [%]", "sizes [M]", "turn [deg]"), PLACES, strict=True)),
            "rows": {
                "FedAvg": {"set": {"method": "fedavg", "cohort": 4}, "given": {"paper [%]": "95.4"}},
                "ours": {"set": {"local.learning_rate": 0.3}, "scales": {"long": {"clients": 30}}},
            },
        }
        path = tmp_path / "table.yaml"
        path.write_text(yaml.safe_dump(base | changes, sort_keys=False))
        return path

    return written


class Run:
    """Writes a run's folder in place of a run; ``fails`` is a row's method that fails."""

    def __init__(self, fails=None):
        self.fails, self.configs = fails, []

    def __call__(self, config, out, *, resume=False, progress=None):
        self.configs.append(config)
        if config.method == self.fails:
            raise ValueError("It has failed.")
        found = {"by": [{"parameters": 2_000_000}, {"parameters": 500_000}]}
        psi = {"affine.angle [deg]": 10.0 + 4 * config.seed} if config.method == "partitioned" else {}
        accuracy = ACCURACY[config.method, config.seed]
        return write_run(out, config, [accuracy] * config.rounds, psi=psi, **found)


def made(path, out, run=None, overrides=(), **options):
    runner = CellRunner(run=run or Run(), console=Console(file=io.StringIO(), width=80))
    return run_table(path, list(overrides), out, runner, **options)


def test_means_and_errors_over_seeds_by_hand(file, tmp_path):
    made(file(), tmp_path / "out")
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert lines[-4] == "|  | seeds | test [%] | sizes [M] | turn [deg] | paper [%] |"
    assert lines[-2] == "| FedAvg | 2 | 82.0 ± 2.0 | 2.00 / 0.50 | — | 95.4 |"
    assert lines[-1] == "| ours | 2 | 90.0 | 2.00 / 0.50 | 12 ± 2 |  |"
    with (tmp_path / "out" / "table.csv").open() as lines:
        fedavg = next(csv.DictReader(lines))
    assert float(fedavg["test_accuracy"]) == pytest.approx(0.82)
    assert float(fedavg["test_accuracy standard_error"]) == pytest.approx(0.02)
    assert float(fedavg["by.parameters.1"]) == 500_000


def test_values_of_a_row_are_what_the_file_says(file, tmp_path):
    options = {"target": "\N{GRINNING FACE}", "ignore": ["{out}", '"']}
    run, out = Run(), tmp_path / 'a "folder"'
    rows = {"one": {"set": {"method": "fedavg", "data": "table", "data_options": options}}}
    made(file(rows=rows), out, run)
    for config in run.configs:
        assert config.data_options == {**options, "ignore": [str(out), '"']}
    endless = {"one": {"set": {"local.learning_rate": float("inf")}}}
    with pytest.raises(ConfigError, match=r"row 'one'.*local\.learning_rate cannot be inf"):
        made(file(rows=endless), tmp_path / "endless")


def test_a_sweep_does_not_write_where_another_kind_or_a_run_has(file, tmp_path):
    for name, says in {
        "config.yaml": "holds a run or a search",
        "comparison.json": "holds a comparison",
        "summary.json": "holds a selection",
    }.items():
        out = tmp_path / name.partition(".")[0]
        out.mkdir()
        (out / name).touch()
        with pytest.raises(ConfigError, match=f"{says}; choose another folder with --out"):
            made(file(), out)
        assert [path.name for path in out.iterdir()] == [name]
    made(file(), tmp_path / "out")
    with pytest.raises(FileExistsError, match="holds a table; choose another folder with --out"):
        refuse_existing(tmp_path / "out")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "table.csv").touch()  # a user's own
    refuse_existing(tmp_path / "data")
    with pytest.raises(ConfigError, match="holds a table; choose"):
        run_comparison(ExperimentConfig(), ["fedavg"], 1, tmp_path / "out")


def test_at_equal_bytes_a_run_counts_until_the_cheapest_has_sent_all(file, tmp_path):
    """FedAvg moves 1,800 bytes a round, the other 2,700: of its four evaluations the first two count. A seed
    counts where all rows have finished it, and what another seed has moved does not count."""

    def run(config, out, **_):
        rises = [0.1 + config.seed / 10, 0.3, 0.5, 0.9]
        cheap = config.method == "fedavg" or config.seed
        return write_run(out, config, rises, upload=800 if cheap else 1700)

    columns = {"val [%]": "val_accuracy@bytes", "clients [%]": "client_accuracy@bytes"}
    made(file(columns=columns, set={"rounds": 4}), tmp_path / "out", run)
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert lines[-2] == "| FedAvg | 2 | 70.0 | — | 95.4 |"
    assert lines[-1] == "| ours | 2 | 50.0 ± 20.0 | — |  |"
    three = [Curves.load(folder) for folder in sorted((tmp_path / "out").glob("*/seed*"))[:3]]
    assert at_equal_bytes(three, "val_accuracy", 2)[1] is None


def test_the_row_is_over_the_scale_is_over_the_table_and_the_command_is_over_all(file, tmp_path):
    path, run = file(set={"rounds": 2, "samples": 3}), Run()
    made(path, tmp_path / "a", run)
    made(path, tmp_path / "b", run, ["samples=7"], scale="long")
    fedavg, ours = (run.configs[i] for i in (4, 5))
    assert (run.configs[0].rounds, run.configs[0].samples, run.configs[0].cohort) == (2, 3, 4)
    assert (fedavg.rounds, fedavg.samples, fedavg.cohort, fedavg.clients) == (4, 7, 4, 20)
    assert (ours.rounds, ours.cohort, ours.clients, ours.local.learning_rate) == (4, 6, 30, 0.3)
    assert [config.seed for config in run.configs[4:]] == [0, 0, 1, 1]


def test_a_section_that_a_row_changes_keeps_what_others_have_set_before(file, tmp_path):
    rows = {"a": {"set": {"server.learning_rate": 0.25}}}
    scales, run = {"s": {"server": {"eps": 1e-5}}}, Run()
    path = file(rows=rows, set={"server.learning_rate": 0.5}, scales=scales)
    made(path, tmp_path / "out", run, scale="s")
    assert (run.configs[0].server.learning_rate, run.configs[0].server.eps) == (0.25, 1e-5)


def test_a_row_may_take_what_another_row_of_its_seed_has_found(file, tmp_path):
    rows = {"FedAvg": {"set": {"method": "fedavg"}}, "held": {"set": {"psi_from": "{out}/fedavg/seed{seed}"}}}
    run = Run()
    made(file(rows=rows), tmp_path / "out", run)
    found = [f"{tmp_path}/out/fedavg/seed{seed}" for seed in (0, 1)]
    assert [config.psi_from for config in run.configs] == [None, found[0], None, found[1]]


def test_what_is_finished_is_not_run_again_and_rows_can_be_run_alone(file, tmp_path):
    first, second = Run(), Run()
    found = made(file(), tmp_path / "out", first, labels=["ours"])
    assert [config.method for config in first.configs] == ["partitioned"] * 2
    assert list(found.summaries) == ["ours"]
    # also those of rows that are not asked for
    with pytest.raises(ConfigError, match=r"ours/.* holds a run with other settings"):
        made(file(set={"samples": 3}), tmp_path / "out", second, labels=["FedAvg"])
    made(file(), tmp_path / "out", second)
    assert [config.method for config in second.configs] == ["fedavg"] * 2
    read = made(file(), tmp_path / "out", Run("nothing is run"), read_only=True)
    assert [len(own) for own in read.summaries.values()] == [2, 2]


def test_a_run_that_fails_leaves_the_others_their_table(file, tmp_path):
    with pytest.raises(SweepIncomplete, match=r"(?s)2 of 4 runs failed.*ours, seed 0: It has failed"):
        made(file(), tmp_path / "out", Run("partitioned"))
    assert "| FedAvg | 2 | 82.0" in (tmp_path / "out" / "table.md").read_text()


def test_what_does_not_fit_is_refused_in_one_sentence(file, tmp_path):
    def table(changes, options):
        made(file(**changes), tmp_path / "out", **options)

    rows = [
        ({}, {"labels": ["theirs"]}, "has no row 'theirs'; its rows are FedAvg, ours"),
        ({}, {"overrides": ["samples=2", "seed = 3"]}, "The seeds are those of .*leave seed out"),
        ({}, {"scale": "longer"}, "has no scale 'longer'; it has long"),
        ({}, {"read_only": True}, "No run of .* is finished"),
        ({"rows": {"A b": {}, "a-B": {}}}, {}, "makes no folder of its own"),
        ({"rows": {"a": {"set": {"chunky": 1}}}}, {}, "row 'a'.*unknown key 'chunky'"),
        ({"row": {}}, {}, "unknown key 'row': did you mean 'rows'"),
        ({"seeds": []}, {}, "seeds cannot be"),
        ({"seeds": [0, 1, 0]}, {}, "names a seed twice"),
        ({"rows": {}}, {}, "rows cannot be"),
    ]
    refusals.check(
        (says, partial(table, changes, options), ConfigError, says) for changes, options, says in rows
    )


LARGE = {
    "attacks",
    "cifar10_1250",
    "mnist_1250",
    "rotmnist_1250",
    "sizes",
    "sizes_rotated",
    "table4_large",
}  # of many, or wide, networks
BUILT = set()  # networks and protocols that rows share, also of several tables, are built once
OF_NO_FORM = {
    *("data", "data_dir", "data_options", "data_seed", "rotated", "max_angle", "split", "published", "seed"),
    *("training_points", "validation_points", "test_points", "rounds", "evaluate_every", "psi_from"),
    *("local", "server", "server_psi", "precision"),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else [])
        for name in sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    ],
)
def test_every_row_of_a_shipped_table_is_a_configuration_at_every_scale(name, tmp_path):
    path = table_file(name)
    table = read_table(path)
    for scale in (None, *table.scales):
        for label in table.rows:
            config = table.configured(label, table.seeds[0], path, tmp_path, scale, [f"data_dir={tmp_path}"])
            assert config.seed == table.seeds[0]
            if isinstance(config, TrainingConfig) and config.training_points:  # psi has its turn
                sizes = config.iterations, config.training_points, config.batch_size
                build_method(config.method, config.method_options.get(config.method, {})).stages(*sizes)
            elif isinstance(config, ExperimentConfig) and scale is None:  # every client has something to do
                if "weights" in config.model_options:  # which a command has made
                    weights = tmp_path / "weights"
                    weights.exists() or pretrain_text(steps=1, batch_size=2, texts=2).save_pretrained(weights)
                    options = {**config.model_options, "weights": str(weights)}
                    config = config.model_copy(update={"model_options": options})
                shape, settings = (1, 28, 28) if "mnist" in config.data else (3, 32, 32), config.settings()
                if (form := f"{shape}, {config.model_dump(exclude=OF_NO_FORM)}") not in BUILT:
                    BUILT.add(form)
                    Protocol(build_task(config.model_copy(update={"psi_from": None}), 10, shape), settings)
    with pytest.raises(ConfigError, match="No run of"):  # and every row has a folder of its own
        run_table(path, [f"data_dir={tmp_path}"], tmp_path / "out", read_only=True)


def test_a_name_that_is_no_table_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"There is no table sizess; give a file, or one of .*sizes"):
        table_file("sizess")
    assert table_file("sizes") == Path(SHIPPED) / "sizes.yaml"


def test_numbers_are_found_by_keys_that_have_points_themselves():
    summary = {
        "psi": {"affine.angle [deg]": 3, "affine.x": True},
        "each": [{"a": 1}, {"a": None}],
        "n": float("nan"),
    }
    assert values_at("psi.affine.angle [deg]", summary) == [3.0]
    assert values_at("each.a", summary) == [1.0, None]
    assert [values_at(path, summary) for path in ("psi.affine.x", "nothing", "n")] == [[None]] * 3
    assert values_at("x.y", {"x": {}, "x.y": 2}) == values_at("x.y", {"x.y": 2, "x": {"y": None}}) == [2.0]
    assert text_of("a", "each.a", [summary]) == "1.000 / —"
    assert text_of("a", "each.a", [summary, {"each": []}]) == "—"


def test_a_table_of_records_has_each_rows_length_and_names_what_has_not_run(file, tmp_path):
    path, out, home = file(), tmp_path / "out", tmp_path / "raw"
    made(path, tmp_path / "elsewhere", overrides=["rounds=7"])
    made(path, out)
    config = read_table(path).configured("FedAvg", 1, path, out, None, ["rounds=7"])
    cell = Cell("FedAvg", config, tmp_path / "elsewhere" / "fedavg" / "seed1")
    write_record(home, cell, {"table": "table", "scale": None, "row": "FedAvg", "seed": 1})
    (out / "ours" / "seed0" / "summary.json").unlink()
    (out / "ours" / "seed1" / "summary.json").unlink()
    runner = CellRunner(console=Console(file=io.StringIO(), width=80))
    assert recorded_table(path, out, None, runner, home).machines == ["this machine", platform.machine()]
    lines = (out / "table.md").read_text().splitlines()
    assert lines[-4] == "|  | seeds | length | test [%] | sizes [M] | turn [deg] | paper [%] |"
    assert lines[-2] == "| FedAvg | 2 | 3 to 7 | 82.0 ± 2.0 | 2.00 / 0.50 | — | 95.4 |"
    assert lines[-1] == "| ours | 0 | not run | — | — | — |  |"
    with pytest.raises(ConfigError, match=r"No run of .* is recorded"):
        recorded_table(path, tmp_path / "empty", "long", runner, home)


def test_a_table_that_goes_on_on_another_machine_keeps_its_precision(file, tmp_path, monkeypatch):
    path, chosen = file(), []
    for able in (False, True):
        monkeypatch.setattr("simulations.running.precision.multiplies_bf16", lambda device, able=able: able)
        run = Run()
        made(path, tmp_path / "out", run, ["precision=auto"], labels=["ours"] if able else ["FedAvg"])
        chosen.append({config.precision for config in run.configs})
    assert chosen == [{"fp32"}, {"fp32"}]


@pytest.mark.parametrize("path", ["val_acuracy@bytes", "val_accuracy@byte"])
def test_a_misspelt_metric_at_equal_bytes_is_refused_before_anything_runs(path, tmp_path):
    file = tmp_path / "table.yaml"
    columns = {"test": "test_accuracy", "equal": path}
    table = {"title": "T", "config": "quickstart.yaml", "seeds": [0], "columns": columns, "rows": {"a": {}}}
    file.write_text(yaml.safe_dump(table))
    with pytest.raises(ConfigError, match=f"no round has '{path}': did you mean 'val_accuracy@bytes'"):
        read_table(file)
    columns["equal"] = "val_accuracy@bytes"
    file.write_text(yaml.safe_dump(table))
    assert read_table(file).columns == columns


def test_a_unit_that_nothing_is_converted_to_is_refused_and_an_empty_column_is_told(file, tmp_path):
    with pytest.raises(ConfigError, match=r"the unit of 'upload \[MiB\]' is none of .*\[kB\]"):
        made(file(columns={"upload [MiB]": "upload_bytes"}), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    columns = {"time [h]": "seconds", "upload [kB]": "upload_bytes", "typo [%]": "test_acuracy"}
    runner = CellRunner(run=Run(), console=Console(file=io.StringIO(), width=80))
    run_table(file(columns=columns), [], tmp_path / "out", runner)
    assert "No run has a number for 'typo [%]'" in runner.console.file.getvalue()
    summary = {"seconds": 5400.0, "upload_bytes": 435_600}
    assert [text_of(heading, path, [summary]) for heading, path in columns.items()] == [
        "1.50",
        "435.6",
        "\N{EM DASH}",
    ]
