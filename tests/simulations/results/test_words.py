"""Scores and ranges in words, and what a run has learned: one notation, one answer."""

import math

import pytest
from fake_runs import small_config, write_run

from simulations.results.comparison import collect
from simulations.results.curves import Run
from simulations.results.overview import headline
from simulations.results.pictures.comparison_figures import metric_figure
from simulations.results.pictures.run_figures import run_figure
from simulations.results.psi_parts import all_words, compact, in_words
from simulations.results.report.page import write_report
from simulations.results.scores import BYTES, SCORES, Score, score_of, span, told, words_of
from simulations.results.terminal.panel import rows


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((14.13, -12.4), "-12.4..+14.1"),
        ((-180, 179.96), "-180..+180"),
        ((0.9312, 1.0699), "+0.93..+1.07"),
        ((-0.0412, 0.0412), "-0.04..+0.04"),
        ((-0.00123, 0.0004), "-0.001..+0.000"),
        ((0, 0), "+0.00..+0.00"),
        ((-math.inf, 2), "-inf..+2.00"),
    ],
)
def test_a_range_has_three_digits_and_no_more_than_a_person_reads(ends: tuple, text: str) -> None:
    assert span(*ends) == text
    assert span(*ends, "deg") == f"{text} deg" and span(*ends, "%") == f"{text}%"


def test_wherever_it_stands_a_range_is_written_alike() -> None:
    psi = {"affine.angle_min [deg]": 14.13, "affine.angle_max [deg]": -12.4}
    wide = {"affine.shift_x_min [%]": -1.361, "affine.shift_x_max [%]": 1.36}
    assert compact(psi) == "rotation -12.4..+14.1 deg"
    assert in_words(psi | wide) == ["rotation -12.4..+14.1 deg", "shift x -1.36..+1.36%"]
    assert all_words(psi | wide, []) == ["affine: angle -12.4..+14.1 deg, shift_x -1.36..+1.36%"]


def test_what_a_run_has_learned_is_what_its_summary_says(tmp_path) -> None:
    """From the start, which is no line of the metrics; both ends of a range."""
    psi = {"affine.angle_min [deg]": -12.0, "affine.angle_max [deg]": 14.0, "mine.gain": 2.0}
    one = small_config(rounds=1)
    write_run(tmp_path / "one", one, [0.5], physical=[psi], psi=psi, psi_learned=["affine.angle_max [deg]"])
    run = Run.load(tmp_path / "one")
    assert [*run.learned()] == ["affine.angle_min [deg]", "affine.angle_max [deg]"]
    assert run.courses() == {}  # a point is no course
    moved = [psi | {"mine.gain": float(n)} for n in range(2)]
    write_run(tmp_path / "going", small_config(rounds=2), [0.5, 0.5], physical=moved, finished=False)
    assert [*Run.load(tmp_path / "going").courses()] == ["mine.gain"]


def test_every_room_takes_a_score_from_the_one_table(tmp_path, monkeypatch) -> None:
    """Its word, unit and digits: of the panel, the table, the headline, the page and the axes of pictures."""
    monkeypatch.setitem(SCORES, "accuracy", Score("hits", "‰", 1000.0, 4, larger=True))
    own = {"psi": {}, "val_accuracy": 0.25, "upload_ratio_expected": 0.77, "upload_bytes": 9}
    write_run(tmp_path / "fedavg" / "seed0", small_config(method="fedavg"), [0.25] * 12, **own)
    run = Run.load(tmp_path / "fedavg" / "seed0")
    found = collect(small_config(), [0], {"fedavg": [run]})
    assert ("accuracy", "250.0000 ‰ on test data that no client has seen") in [*rows(run.summary, run.folder)]
    assert found.cells()[0][1] == "validation\nhits [‰]" and found.cells()[1][0][1] == "250.0000"
    assert headline(found).startswith("fedavg has a validation hits of 250.0000 ‰")
    assert "validation hits [‰]" in write_report(tmp_path).read_text().replace("\n", " ")
    for figure in (metric_figure({"fedavg": [run]}, "rounds"), run_figure(run)):
        assert figure.axes[0].get_ylabel() == "validation hits [‰]"
        assert figure.axes[0].lines[0].get_ydata()[-1] == 250


def test_a_score_is_told_with_its_unit_and_the_digits_that_examples_hold() -> None:
    accuracy, loss = score_of("val_accuracy"), score_of("client_nll_worst_decile")
    assert (accuracy.text(0.769), loss.text(0.5), BYTES.text(7.39e6)) == ("76.9%", "0.500 nats", "7.39 MB")
    assert (accuracy.brief(0.5), loss.brief(0.5), loss.number(-1, 1, "+")) == ("50.0%", "0.500", "-1.0")
    assert (accuracy.places(1000), loss.places(100)) == (1, 2) and accuracy.larger and not loss.larger
    assert (words_of("val_nll"), loss.axis) == ("validation loss", "loss [nats per example]")
    assert told({"test_accuracy": None, "test_nll": 0.5}, "test_") == "0.500 nats" and told({}) == ""
