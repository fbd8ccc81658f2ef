"""precision: auto, and what is refused before a run has a folder."""

import io
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import refusals
import yaml
from command_line import fedpart
from fake_runs import write_run
from rich.console import Console
from tiny import tiny, tiny_file, tiny_training

from simulations.building.task import build_task
from simulations.config.load import ConfigError
from simulations.folders.run_directory import saved_config
from simulations.running import precision
from simulations.running.precision import choose_precision, measure
from simulations.running.run import run_experiment
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.compare import run_comparisons
from simulations.sweeps.table import run_table

ORDER = [("fp32", False), ("fp32", True), ("bf16", False), ("bf16", True)]


@pytest.fixture
def seconds(monkeypatch):
    """Makes a step take what the test says, in the order of ORDER."""

    def given(*times):
        left = {"fp32": {False: times[0], True: times[1]}, "bf16": {False: times[2], True: times[3]}}
        monkeypatch.setattr(precision, "_seconds", lambda task, *_: left[task.precision][task.channels_last])

    return given


def auto(**changes):
    return tiny(precision="auto", **changes)


@pytest.mark.parametrize(
    "times, chosen",
    [
        ((4.0, 3.0, 5.0, 1.0), ("bf16", True)),
        ((4.0, 3.0, 5.0, 2.9), ("fp32", True)),  # hardly faster: not worth other digits
        ((1.0, 3.0, 5.0, 2.9), ("fp32", False)),
        ((4.0, 3.0, 1.0, 2.0), ("bf16", False)),
    ],
)
def test_the_fastest_is_chosen_unless_it_hardly_is(times, chosen, seconds, tmp_path):
    seconds(*times)
    config = choose_precision(auto(), tmp_path)
    assert (config.precision, config.channels_last) == chosen
    expected = auto().resolved() | {"precision": chosen[0], "channels_last": chosen[1]}
    assert config.resolved() == expected


@pytest.mark.slow
@pytest.mark.parametrize("config", [auto(), tiny_training(precision="auto")], ids=["run", "train"])
def test_every_way_is_measured(config):
    found = measure(config)
    assert sorted((way.precision, way.channels_last) for way in found) == sorted(ORDER)
    assert all(way.seconds > 0 for way in found)


def test_a_step_takes_what_its_fastest_repeat_takes_but_for_the_first(monkeypatch):
    """On a clock of the test's own, as on a processor without units for bfloat16; the first step compiles."""
    module, now, repeats = measure.__module__, [0.0], Counter()

    def step(task, *_):
        way = task.precision, task.channels_last
        repeats[way] += 1
        now[0] += {1: 0.5, 2: 9.0, 4: 3.0 if task.precision == "bf16" else 2.0}.get(repeats[way], 4.0)

    monkeypatch.setattr(f"{module}.gradients", step)
    monkeypatch.setattr(f"{module}.time", SimpleNamespace(perf_counter=lambda: now[0]))
    found = measure(auto())
    assert [(way.precision, way.seconds) for way in found] == 2 * [("fp32", 2.0)] + 2 * [("bf16", 3.0)]
    assert set(repeats) == set(ORDER) and len(set(repeats.values())) == 1


@pytest.mark.slow
def test_the_choice_is_written_and_kept(seconds, tmp_path):
    seconds(4.0, 3.0, 5.0, 1.0)
    out = tmp_path / "run"
    summary = run_experiment(auto(rounds=2), out)
    assert (summary["precision"], summary["channels_last"]) == ("bf16", True)
    written = saved_config(out)
    assert (written.precision, written.channels_last) == ("bf16", True)
    seconds(1.0, 3.0, 5.0, 2.0)  # another day
    file = tiny_file(tmp_path, precision="auto", rounds=2)
    answer = fedpart("run", str(file), "--set", "rounds=3", "--resume", str(out))
    assert answer.exit_code == 0, answer.output
    assert saved_config(out).precision == "bf16"


def test_a_comparison_chooses_once(seconds, tmp_path):
    seconds(4.0, 3.0, 5.0, 1.0)
    run_comparisons({"": auto(rounds=1)}, ["fedavg"], 1, tmp_path)
    seconds(1.0, 3.0, 5.0, 2.0)
    run_comparisons({"": auto(rounds=1)}, ["fedavg", "partitioned"], 2, tmp_path)
    files = [*tmp_path.glob("*/*/config.yaml")]
    assert [saved_config(file.parent).precision for file in files] == ["bf16"] * 4


def test_a_table_chooses_once_and_goes_on_in_its_own_folder(seconds, tmp_path):
    """A row that is computed otherwise keeps what it can; a started folder keeps what it has."""
    base = {"clients": 20, "cohort": 5, "rounds": 1, "evaluate_every": 1, "precision": "auto"}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    changes = {"exact": {"precision": "fp32"}, "vect": {"execution": "grouped"}, "plain": {}}
    rows = {label: {"set": change} for label, change in changes.items()}
    table = {"title": "Three", "config": "base.yaml", "seeds": [0], "rows": rows}
    file, out = tmp_path / "table.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(table | {"columns": {"test [%]": "test_accuracy"}}))
    found = {}

    def run(config, folder, **_):
        found[folder.parent.name] = (config.precision, config.channels_last)
        write_run(folder, config, [0.5])

    def made(*labels, **options):
        runner = CellRunner(run=run, console=Console(file=io.StringIO()))
        return run_table(file, [], out, runner, labels=labels, **options)

    with pytest.raises(ConfigError, match="No run"):  # and nothing is measured
        made(read_only=True)
    seconds(4.0, 3.0, 5.0, 1.0)
    made("exact", "plain")
    seconds(1.0, 3.0, 5.0, 2.0)  # another day
    made()
    assert found == {"exact": ("fp32", False), "plain": ("bf16", True), "vect": ("bf16", False)}
    assert made(read_only=True).summaries.keys() == rows.keys()


CONFIGURATIONS = [
    ({"engine": "ray"}, "one process, client by client, but engine is ray; set engine: local"),
    ({"workers": 2}, "but workers is 2; set workers: 1"),
    ({"execution": "grouped"}, "but execution is grouped; set execution: loop"),
    ({"upload": "int8"}, "not their codes; leave attack or upload out"),
    ({"attack": {"kind": "sing"}}, "did you mean 'sign'"),
    ({"attack": {"kind": "sign", "options": {"factor": 1}}}, "the attack 'sign' has no option 'factor'"),
    ({"attack": {"kind": "labels", "once": 1}}, "on the clients' data, which they have in every round"),
    ({"attack": {"kind": "sign", "once": 1}, "devices": {"speed": 10.0}}, "leave once out"),
    ({"attack": {"kind": "sign", "share": 1.0}}, "attack.share cannot be 1.0"),
    ({"attack": None, "evaluation_share": 1.0}, "evaluation_share cannot be"),
    ({"attack": None, "evaluation": "client"}, "evaluation cannot be 'client'"),
]
LIKELIHOODS = [
    ({"likelihood_options": {"temperatur": 2}}, "has no option 'temperatur': did you mean 'temperature'"),
    ({"likelihood": "gausian"}, "did you mean 'gaussian'"),
    ({"likelihood": "ordinal"}, r"'ordinal' needs classes; .*likelihood_options: \{classes: \.\.\.\}"),
    ({"likelihood_options": {"temperature": "abc"}}, "likelihood_options.temperature cannot be 'abc'"),
    ({"likelihood": "ordinal", "likelihood_options": {"classes": "5"}}, "cannot be '5'; .* integer"),
    ({"likelihood_options": {"label_smoothing": 1.5}}, "strictly between 0 and 1, got 1.5"),
]


def likely(folder, **changes):
    run_experiment(tiny(rounds=1, **changes), folder)


def test_configurations():
    refusals.check(
        (f"{changes}", partial(tiny, **{"attack": {"kind": "sign"}, **changes}), ConfigError, says)
        for changes, says in CONFIGURATIONS
    )


def test_likelihoods(tmp_path):
    refusals.check(
        (f"{changes}", partial(likely, tmp_path / "run", **changes), (ConfigError, ValueError), says)
        for changes, says in LIKELIHOODS
    )


def test_precisions(tmp_path):
    here, absent = tiny(precision="auto"), tiny(precision="auto", data="mnist", data_dir=None)
    deployed, choose = partial(build_task, here, 10, (1, 8, 8)), partial(choose_precision, absent, tmp_path)
    rows = [("Flower starts the clients", deployed, "give fp32 or bf16"), ("no data", choose, "MNIST")]
    refusals.check((what, call, ValueError, says) for what, call, says in rows)
