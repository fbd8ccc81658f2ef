"""What a run writes of a round is what its readers take, whatever was on."""

import typing
from types import UnionType

import pytest
from tiny import tiny

from fedpart.centralised.settings import TrainingReport
from fedpart.federated.report import RoundReport
from simulations.folders import contents
from simulations.folders.run_directory import read_metrics, read_summary
from simulations.results.report.page import write_report
from simulations.running.run import run_experiment


@pytest.mark.parametrize("report", [RoundReport, TrainingReport])
def test_types_of_reports_are_those_that_readers_ask_for(report):
    known = contents._KEYS | contents._OF_LINES
    for name, kind in typing.get_type_hints(report).items():
        if name in known and name != "psi":
            forms = [*typing.get_args(kind)] if isinstance(kind, UnionType) else [kind]
            asked = [*typing.get_args(known[name])] if isinstance(known[name], UnionType) else [known[name]]
            assert {*forms} - {type(None)} == {*asked} - {type(None)}, name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Round .* the psi gradients")
def test_a_run_with_alarms_is_read_reported_and_goes_on(tmp_path):
    known = {"clients": 12, "cohort": 12, "attack": {"kind": "constant", "share": 0.34}}
    run_experiment(tiny(rounds=3, **known), tmp_path)
    lines = read_metrics(tmp_path)
    assert all(alarm["chunk"] == 3 for alarm in lines[0]["psi_alarms"])
    assert read_summary(tmp_path)["psi_alarms"] == {"3": len(lines)}
    run_experiment(tiny(rounds=4, **known), tmp_path, resume=True)
    assert len(read_metrics(tmp_path)) == 4
    write_report(tmp_path)
    assert (tmp_path / "report.html").exists()
