"""What a configuration becomes agrees between processes, and says what it does not cover."""

import pytest
from tiny import tiny, wards, wards_file

from fedpart.federated.wire import Header
from simulations.building.experiment import build
from simulations.running.resume import beside_config

PRIVATE = {
    "weighting": "uniform",
    "clip": {"weights": 1.0, "psi": 1.0},
    "privacy": {"noise_multiplier": 1.0, "delta": 1e-3},
}


@pytest.mark.parametrize("change", ["columns", "unit", "rows"])
def test_processes_whose_files_differ_do_not_agree(tmp_path, change):
    """Where each reads the whole table, another one would give clients other rows, or other columns."""
    file = wards_file(tmp_path)
    ours, apart = (build(wards(file, data_options=of)).protocol for of in ({}, {"statistics": "federated"}))
    assert build(wards(file)).protocol.echo == ours.echo != ours.fingerprint
    lines = [line.split(",") for line in file.read_text().splitlines()]
    for number, line in enumerate(lines):
        if change == "columns":
            line[0], line[1] = line[1], line[0]
        elif change == "unit" and number:
            line[0] = str(1000 * int(line[0]))
    if change == "rows":
        lines = [lines[0], *reversed(lines[1:])]
    file.write_text("\n".join(map(",".join, lines)) + "\n")
    theirs = build(wards(file)).protocol
    header = Header.of(theirs, 1, 0)
    assert Header.of(ours, 1, 0) != header and header.fingerprint == theirs.echo
    assert theirs.fingerprint == ours.fingerprint, "it names what clients keep, and what has been released"
    assert apart.echo == apart.fingerprint


def test_a_private_run_says_what_epsilon_does_not_cover_and_has_nothing_run_beside_it(tmp_path):
    file, told = wards_file(tmp_path), "epsilon does not cover the preprocessing"
    for options, covered in (({}, True), ({"standardise": True}, False), ({"missing": "mean"}, False)):
        for more, known in ((PRIVATE, covered), ({}, True)):
            notes = build(wards(file, data_options=options, **more)).notes
            assert any(note.startswith(told) for note in notes) is not known
    real = {"target": "days", "ignore": ["ill"]}  # whose mean and deviation the file has
    for options, known in ((real, False), ({**real, "standardise_target": False}, True)):
        notes = build(wards(file, data_options=options, likelihood="gaussian", **PRIVATE)).notes
        assert any(note.startswith(told) for note in notes) is not known
    both = tiny(beside="fedavg", **PRIVATE)
    assert beside_config(both) is None
    assert "beside: fedavg is left out, as a second run would spend privacy as well." in build(both).notes
