"""precision: auto, and what is refused before a run has a folder."""

import io
from functools import partial

import pytest
import refusals
import yaml
from command_line import fedpart
from fake_runs import write_run
from rich.console import Console
from tiny import tiny, tiny_file

from simulations.building.task import build_task
from simulations.config.load import ConfigError
from simulations.folders.run_directory import saved_config
from simulations.running import precision
from simulations.running.precision import choose_precision, multiplies_bf16
from simulations.running.run import run_experiment
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.compare import run_comparison
from simulations.sweeps.table import run_table


def auto(**changes):
    return tiny(precision="auto", **changes)


@pytest.fixture
def units(monkeypatch):
    """Says whether the machine of the test multiplies in bfloat16."""
    return lambda has: monkeypatch.setattr(precision, "multiplies_bf16", lambda device: has)


@pytest.mark.parametrize("has, chosen", [(True, "bf16"), (False, "fp32")])
def test_the_choice_is_what_the_machine_has_units_for(has, chosen, units, tmp_path):
    units(has)
    config = choose_precision(auto(), tmp_path)
    assert config.resolved() == auto().resolved() | {"precision": chosen, "channels_last": True}
    grouped = choose_precision(auto(execution="grouped"), tmp_path)
    assert (grouped.precision, grouped.channels_last) == (chosen, False)
    assert choose_precision(tiny(), tmp_path) == tiny()


def test_a_machine_says_what_it_has_and_clients_on_many_have_no_choice():
    assert multiplies_bf16("cpu") in (True, False)
    assert not multiplies_bf16("mps")
    with pytest.raises(ValueError, match="Flower's clients are on many; give fp32 or bf16"):
        build_task(auto(), 10, (1, 8, 8))


@pytest.mark.slow
def test_the_choice_is_written_and_kept(units, tmp_path):
    units(True)
    out = tmp_path / "run"
    summary = run_experiment(auto(rounds=2), out)
    assert (summary["precision"], summary["channels_last"]) == ("bf16", True)
    written = saved_config(out)
    assert (written.precision, written.channels_last) == ("bf16", True)
    units(False)  # another machine
    file = tiny_file(tmp_path, precision="auto", rounds=2)
    answer = fedpart("run", str(file), "--set", "rounds=3", "--resume", str(out))
    assert answer.exit_code == 0, answer.output
    assert saved_config(out).precision == "bf16"


@pytest.mark.slow
def test_a_comparison_chooses_once(units, tmp_path):
    units(True)
    run_comparison(auto(rounds=1), ["fedavg"], 1, tmp_path)
    units(False)
    run_comparison(auto(rounds=1), ["fedavg", "partitioned"], 2, tmp_path)
    files = [*tmp_path.glob("*/*/config.yaml")]
    assert [saved_config(file.parent).precision for file in files] == ["bf16"] * 4


def test_a_run_of_a_table_keeps_what_it_has(units, tmp_path):
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

    with pytest.raises(ConfigError, match="No run"):
        made(read_only=True)
    units(True)
    made("exact", "plain")
    units(False)  # another machine
    made()
    assert found == {"exact": ("fp32", False), "plain": ("bf16", True), "vect": ("fp32", False)}
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


@pytest.mark.slow
def test_configurations_and_likelihoods(tmp_path):
    def run(**changes):
        run_experiment(tiny(rounds=1, **changes), tmp_path / "run")

    made = [(CONFIGURATIONS, lambda **of: tiny(**{"attack": {"kind": "sign"}, **of})), (LIKELIHOODS, run)]
    refusals.check(
        (f"{changes}", partial(make, **changes), (ConfigError, ValueError), says)
        for rows, make in made
        for changes, says in rows
    )
