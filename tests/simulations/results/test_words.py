"""What people read: numbers in words, and the paper's beside ours."""

import csv
import io
import json
import math

import pytest
from fake_runs import small_config, write_run
from rich.console import Console

from simulations.config.federated import Published
from simulations.config.load import ConfigError, ExperimentConfig
from simulations.results.comparison import collect, headline
from simulations.results.curves import Run
from simulations.results.pictures.comparison_figures import metric_figure
from simulations.results.pictures.run_figures import run_figure
from simulations.results.psi_parts import compact, in_words
from simulations.results.report.page import write_report
from simulations.results.scores import BYTES, SCORES, TIME, Score, score_of, span, told, words_of
from simulations.results.terminal.panel import rows
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.compare import run_comparison


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
def test_a_range_has_three_digits_and_no_more_than_a_person_reads(ends, text):
    assert span(*ends) == text
    assert span(*ends, "deg") == f"{text} deg" and span(*ends, "%") == f"{text}%"


def test_wherever_it_stands_a_range_is_written_alike():
    psi = {"affine.angle_min [deg]": 14.13, "affine.angle_max [deg]": -12.4}
    wide = {"affine.shift_x_min [%]": -1.361, "affine.shift_x_max [%]": 1.36}
    assert compact(psi) == "rotation -12.4..+14.1 deg" and compact({}) == ""
    more = {"affine.scale_x_min": 1.0, "dropout1.rate [%]": 9.0, "dropout2.rate [%]": 10.6, "gain": 0.2}
    assert compact(psi | more | {"affine.scale_x_max": 1.1}) == f"{compact(psi)}, dropout 9.8%, gain 0.2"
    arms = {"arms.probability[2.5%] [%]": 29.7, "arms.probability[5%] [%]": 70.3}
    assert compact({"dropout1.rate [%]": 5.0, **arms, "light.gain": 0.2}) == "dropout 5.0%, light.gain 0.2"
    assert compact(arms).startswith("arms.probability[2.5%]")  # where no rate says it
    assert in_words(psi | wide) == ["rotation -12.4..+14.1 deg", "shift x -1.36..+1.36%"]


def test_what_a_run_has_learned_is_what_its_summary_says(tmp_path):
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


def test_every_room_takes_a_score_from_the_one_table(tmp_path, monkeypatch):
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


def test_a_score_is_told_with_its_unit_and_the_digits_that_examples_hold():
    accuracy, loss = score_of("val_accuracy"), score_of("client_nll_worst_decile")
    assert (accuracy.text(0.769), loss.text(0.5), BYTES.text(7.39e6)) == ("76.9%", "0.500 nats", "7.39 MB")
    assert (accuracy.brief(0.5), loss.brief(0.5), loss.number(-1, 1, "+")) == ("50.0%", "0.500", "-1.0")
    assert (accuracy.places(1000), loss.places(100)) == (1, 2) and accuracy.larger and not loss.larger
    assert [TIME.text(s) for s in (8.25, 65, 12_030)] == ["8.2 s", "1 min 5 s", "3 h 20 min"]
    assert (words_of("val_nll"), loss.axis) == ("validation loss", "loss [nats per example]")
    assert told({"test_accuracy": None, "test_nll": 0.5}, "test_") == "0.500 nats" and told({}) == ""


METHODS = ("fedavg", "partitioned")


def run(config, out, **_):
    return write_run(out, config, [0.90 + 0.02 * config.seed] * config.rounds)


def compare(out, **changes):
    stream = io.StringIO()
    try:
        shown = CellRunner(run=run, console=Console(file=stream, width=80))
        return run_comparison(small_config(**changes), METHODS, 2, out, shown)
    finally:
        compare.printed = stream.getvalue()


def test_the_table_4_of_the_paper():
    cell = Published.of("rotcifar10-45k")
    assert cell.rounds == 5000
    assert cell.accuracy["partitioned"] == {"mean": pytest.approx(0.606), "error": 0.002}
    assert Published.of("mnist-1.25k").accuracy["augerino"] == {"mean": pytest.approx(0.942), "error": 0.005}
    with pytest.raises(ConfigError, match=r"published: .* no cell 'mnist-1k'; its cells are mnist-1.25k, "):
        ExperimentConfig.from_dict({"published": "mnist-1k"})

    plain, named = small_config(), small_config(published="mnist-5k")
    assert plain.hash() == named.hash() and plain.identity() == named.identity()


def test_the_papers_numbers_stand_beside_ours(tmp_path):
    comparison = compare(tmp_path, published="mnist-1.25k")
    # 0.90 and 0.92: mean 0.91, standard error 0.01; the paper has 95.4 +- 0.1
    difference = (0.91 - 0.954) / math.hypot(0.01, 0.001)
    assert comparison.difference(comparison.rows[0]) == pytest.approx(difference)
    row = f"| fedavg | 91.00 ± 1.00 | 95.4 ± 0.1 | {difference:+.1f} | 91.00 ± 1.00 |"
    assert row in (tmp_path / "comparison.md").read_text()
    assert "95.4 ± 0.1" in compare.printed and max(map(len, compare.printed.splitlines()[2:-1])) <= 80
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert found["published"]["accuracy"]["fedavg"]["mean"] == pytest.approx(0.954)
    with (tmp_path / "comparison.csv").open() as file:
        assert float(next(csv.DictReader(file))["paper"]) == pytest.approx(0.954)
