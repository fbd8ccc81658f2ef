import csv
import io
import json
import math
from functools import partial

import numpy as np
import pytest
import refusals
from fake_runs import learned, small_config, write_run
from rich.console import Console

from fedpart import ClientError
from simulations.config.load import ConfigError
from simulations.errors import RunError
from simulations.results.scores import Estimate
from simulations.running.recorder import Interrupted
from simulations.sweeps.cell_runner import CellRunner, SweepIncomplete
from simulations.sweeps.compare import plan, run_comparison

# fedavg and partitioned, seeds 3 and 4: early evaluations that the mean of the last half must leave out
CURVES = {
    ("fedavg", 3): [0.0] * 6 + [0.80] * 6,
    ("fedavg", 4): [0.0] * 6 + [0.84] * 6,
    ("partitioned", 3): [0.1] * 6 + [0.85] * 3 + [0.95] * 3,
    ("partitioned", 4): [0.1, 0.1] + [0.90] * 10,
}


class FakeRunner:
    """Writes a run folder in place of a run; raises what ``errors`` holds for a cell."""

    def __init__(self, errors=None, **options):
        self.errors, self.options, self.calls = errors or {}, options, []

    def __call__(self, config, out, *, resume=False, progress=None):
        cell = (config.method, config.seed)
        self.calls.append((*cell, resume))
        if cell in self.errors:
            write_run(out, config, [0.5] * config.rounds, finished=False)
            raise self.errors[cell]
        partitioned = config.method == "partitioned"
        ends = {3: (-60.0, 50.0, 8.0), 4: (-40.0, 70.0, 12.0)}.get(config.seed, (-50.0, 60.0))
        physical = learned(12, *ends)
        return write_run(
            out,
            config,
            CURVES.get(cell, [0.5] * config.rounds),
            upload=616_000 if partitioned else 800_000,
            download=1_000_000,
            physical=physical if partitioned else [{"dropout1.rate [%]": 10.0}] * 12,
            test_accuracy={3: 0.7, 4: 0.8}.get(config.seed, 0.6),
            seconds=10.0 * config.seed,
            **self.options,
        )


def compare(out, runner, methods=("fedavg", "partitioned"), seeds=2, drawn=False, **changes):
    """A comparison, without pictures where nobody looks at them."""
    stream = io.StringIO()
    console = Console(file=stream, width=80)
    with pytest.MonkeyPatch.context() as patch:
        if not drawn:
            patch.setattr("simulations.sweeps.compare.plot_comparison", lambda *_: [])
        try:
            config = small_config(**{"seed": 3, **changes})
            return run_comparison(config, methods, seeds, out, CellRunner(run=runner, console=console))
        finally:
            compare.printed = stream.getvalue()


def test_the_numbers_are_those_of_the_run_folders(tmp_path):
    fedavg, partitioned = compare(tmp_path, FakeRunner()).rows
    # means of the last six evaluations: 0.80 and 0.84; 0.90 and 0.90
    assert fedavg["validation"].mean == pytest.approx(0.82)
    assert fedavg["validation"].error == pytest.approx(0.02)  # std(ddof=1) 0.0283 / sqrt(2)
    assert partitioned["validation"].mean == pytest.approx(0.90)
    assert partitioned["validation"].error == pytest.approx(0.0)
    assert fedavg["test"].mean == pytest.approx(0.75) and fedavg["test"].error == pytest.approx(0.05)
    assert partitioned["upload_bytes"].mean == 12 * 616_000
    assert partitioned["download_bytes"].mean == 12_000_000
    assert partitioned["upload_ratio"].mean == pytest.approx(0.77) and fedavg["upload_ratio"].mean == 1
    assert fedavg["seconds"].mean == 35
    assert fedavg.psi == {}  # a drop rate that nothing changed is not learned
    assert partitioned.psi["affine.angle_min [deg]"] == Estimate(-50.0, pytest.approx(10.0))
    assert partitioned.psi["affine.angle_max [deg]"].mean == pytest.approx(60.0)
    assert "dropout2.rate [%]" not in partitioned.psi


def test_the_table_says_the_same_in_terminal_markdown_csv_and_json(tmp_path):
    compare(tmp_path, FakeRunner(), drawn=True)
    page = (tmp_path / "comparison.md").read_text()
    # FedAvg has sent as much as partitioned networks after 9 rounds; two of the last five scores are 0
    costs = "100.0 | 9.6 MB | 12 MB | 35.0 | — |"
    assert f"| fedavg | 82.00 ± 2.00 | 49.20 ± 1.20 | 75.00 ± 5.00 | — | {costs}" in page
    costs = "77.0 | 7.39 MB | 12 MB | 35.0 | rotation"
    assert f"| partitioned | 90.00 ± 0.00 | 90.00 ± 0.00 | 75.00 ± 5.00 | — | {costs}" in page
    assert "rotation -50.0..+60.0 deg<br>dropout 10.0%" in page
    for picture in ("accuracy_rounds", "accuracy_bytes", "psi"):
        assert f"({picture}.png)" in page and (tmp_path / f"{picture}.png").stat().st_size > 5000
    printed = compare.printed
    for text in (page, " ".join(printed.split())):
        assert "validation: mean of a run's last ten evaluations, at most half of them" in text
    assert "82.00 ± 2.00" in printed and "partitioned learned: rotation -50.0..+60.0 deg; dropout" in printed
    assert max(map(len, printed.splitlines()[3:-1])) <= 80 and "partitioned 90.00" in printed
    with (tmp_path / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["fedavg", "partitioned"]
    assert float(rows[0]["validation"]) == pytest.approx(0.82)
    assert float(rows[0]["validation standard_error"]) == pytest.approx(0.02)
    assert [row["affine.angle_max [deg]"] for row in rows] == ["", "60.0"]
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert found["rows"][1]["upload_bytes"]["mean"] == 12 * 616_000
    assert found["seeds"] == [3, 4] and found["config"]["rounds"] == 12 and "method" not in found["config"]


@pytest.mark.slow
def test_fedex_pays_with_what_it_holds_out_and_its_choices_are_not_averaged(tmp_path):
    rates = {3: 2.5, 4: 40.00000059604645}

    def run(config, out, **_):
        fedex = config.method == "fedex"
        rate = rates[config.seed] if fedex else 10.0
        after = {"dropout1.rate [%]": rate, "dropout2.rate [%]": rate}
        after |= {"arms.probability[2.5%] [%]": 60.0, "arms.probability[40%] [%]": 40.0} if fedex else {}
        share = 0.2232 if fedex else 0.0
        return write_run(out, config, [0.5] * 12, physical=[after] * 12, held_out_share=share)

    found = compare(tmp_path, run, ["fedavg", "fedex"])
    page = (tmp_path / "comparison.md").read_text()
    assert "| 22.3 | 100.0 |" in page and "| dropout 2.5%, 40% (chosen, by seed) |" in page
    assert "fedex held out 22.3% of the clients' examples." in compare.printed
    assert "fedavg held out" not in compare.printed
    assert found.flat()[1]["dropout1.rate [%]"] == "2.5; 40" and found.flat()[1]["held_out"] == 0.2232
    rates[3] = rates[4]
    compare(tmp_path / "agreed", run, ["fedavg", "fedex"])
    assert "| dropout 40% (chosen) |" in (tmp_path / "agreed" / "comparison.md").read_text()


def scored(evaluation):
    """Runs whose scores are those that ``evaluation`` gives, of which L_ML only partitioned networks have."""

    def run(config, out, **_):
        lml = {"lml_last10": -0.5 - config.seed / 10} if config.method == "partitioned" else {}
        test = {"test_accuracy": None, "test_nll": None} if evaluation == "none" else {}
        found = write_run(out, config, [0.5] * 12, **lml, **test)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            if evaluation == "none":
                del line["val_accuracy"], line["val_nll"]
            elif line["round"] % 2 == 0:
                right = line["round"] / 20
                scores = {"client_accuracy": right, "client_accuracy_worst_decile": right / 2}
                line |= {**scores, "client_nll": 1.0}
        (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return found

    return run


def test_what_nobody_evaluates_is_compared_by_lml(tmp_path):
    fedavg, partitioned = compare(tmp_path, scored("none"), evaluation="none").rows
    assert fedavg["lml"] is None and partitioned["lml"].mean == pytest.approx(-0.85)
    assert "| method | L_ML [nats] | held out [%] | upload" in (tmp_path / "comparison.md").read_text()
    assert "| partitioned | -0.850 ± 0.050 |" in (tmp_path / "comparison.md").read_text()
    assert "L_ML" in compare.printed and "validation\n" not in compare.printed
    found = json.loads((tmp_path / "comparison.json").read_text())["rows"]
    assert [row["lml"] for row in found] == [None, vars(partitioned["lml"])]


def test_clients_scores_stand_beside_central_ones(tmp_path):
    fedavg, _ = compare(tmp_path, scored("clients"), evaluation="clients").rows
    mean = np.mean([0.4, 0.5, 0.6])
    assert (fedavg["clients"].mean, fedavg["clients_worst"].mean) == pytest.approx((mean, mean / 2))
    page = (tmp_path / "comparison.md").read_text()
    assert "| clients [%] (worst tenth) | L_ML [nats] |" in page and "| 50.00 ± 0.00<br>(25.00) |" in page
    assert "50.00 ± 0.00" in compare.printed and "(25.00)" in compare.printed
    assert max(map(len, compare.printed.splitlines()[3:-1])) <= 80
    row = next(csv.DictReader((tmp_path / "comparison.csv").open()))
    assert float(row["clients_worst"]) == pytest.approx(mean / 2)


def test_equal_upload_waits_for_all_methods(tmp_path):
    compare(tmp_path, FakeRunner(), ["fedavg"])
    with pytest.raises(SweepIncomplete) as caught:
        compare(tmp_path, FakeRunner({("partitioned", 4): ClientError("No.")}))
    fedavg, partitioned = caught.value.found.rows
    assert fedavg["equal_upload"] is None and partitioned["equal_upload"].mean == pytest.approx(0.9)


@pytest.mark.slow
def test_equal_upload_is_of_the_same_images_and_forgives_a_thousandth(tmp_path):
    more = {"fedavg": 800_500, "augerino": 800_000, "partitioned": 400_000}
    curve = [0.1 * round for round in range(1, 9)] + [0.0] * 4  # the last four on other images

    def run(config, out, **_):
        return write_run(out, config, curve, upload=more[config.method])

    def equal(methods, **changes):
        out = tmp_path / "-".join((*methods, *changes))
        return [row["equal_upload"].mean for row in compare(out, run, methods, seeds=1, **changes).rows]

    whole = sum(curve[6:]) / 6
    assert equal(["fedavg", "augerino"]) == pytest.approx([whole] * 2)
    early = {"full_validation_rounds": 4, "validation_points": 10}
    # Partitioned has sent 8 times 400,000 bytes before the images change, FedAvg as many after 4 rounds.
    assert equal(["fedavg", "partitioned"], **early) == pytest.approx([0.35, 0.65])
    more["fedavg"] = 801_000
    assert equal(["partitioned", "fedavg"], **early) == pytest.approx([0.65, 0.25])


def test_a_regression_is_measured_by_its_loss(tmp_path):
    def run(config, out, **_):
        return write_run(out, config, None, test_nll=0.25)

    (row,) = compare(tmp_path, run, ["fedavg"], seeds=1, drawn=True).rows
    assert row["validation"].mean == 1.0 and row["test"].mean == 0.25
    assert "validation loss [nats]" in (tmp_path / "comparison.md").read_text()
    assert {path.name for path in tmp_path.glob("*.png")} == {"nll_rounds.png", "nll_bytes.png"}


@pytest.mark.slow
def test_finished_cells_are_not_run_again_and_started_ones_continued(tmp_path):
    first, again, more = FakeRunner(), FakeRunner(), FakeRunner()
    write_run(
        tmp_path / "fedavg" / "seed3", small_config(seed=3, method="fedavg"), [0.5] * 12, finished=False
    )
    compare(tmp_path, first)
    cells = [(method, seed) for seed in (3, 4) for method in ("fedavg", "partitioned")]
    assert first.calls == [(*cell, cell == ("fedavg", 3)) for cell in cells]
    before = compare(tmp_path, again)
    assert again.calls == [] and before.rows[0]["validation"].mean == pytest.approx(0.82)
    compare(tmp_path, more, ["fedavg", "augerino", "partitioned"], seeds=3)
    new = [("augerino", 3), ("augerino", 4), ("fedavg", 5), ("augerino", 5), ("partitioned", 5)]
    assert more.calls == [(*cell, False) for cell in new]


def test_a_cell_whose_extension_was_interrupted_is_continued(tmp_path):
    config = small_config(seed=3, method="fedavg")  # 12 rounds now, 6 when its summary was written
    write_run(tmp_path / "fedavg" / "seed3", config, [0.5] * 12, rounds=6)

    def refuse(*_, **options):
        raise RunError("No.") if options["resume"] else AssertionError

    with pytest.raises(SweepIncomplete, match="fedavg seed 3: No"):  # its summary is no result
        compare(tmp_path, refuse, ["fedavg"], seeds=1, drawn=True)
    assert "| fedavg<br>(0/1 seeds) | — |" in (tmp_path / "comparison.md").read_text()
    assert not list(tmp_path.glob("*.png"))
    runner = FakeRunner()
    compare(tmp_path, runner, ["fedavg"], seeds=1)
    assert runner.calls == [("fedavg", 3, True)]


@pytest.mark.slow
def test_what_has_changed_or_is_damaged_is_refused_before_anything_runs(tmp_path):
    runner, images = FakeRunner(), {"data": "image_folder", "data_options": {"size": 32}}
    compare(tmp_path / "own", FakeRunner(), seeds=1)
    alone = ["partitioned"]  # a single method is not asked whether it fits, so data are not read
    compare(tmp_path / "images", FakeRunner(), alone, seeds=1, data_dir="cats", **images)
    other = "holds a run with other settings"
    rows = [
        ("own", {"local": {"batch_size": 8}}, rf"seed3 {other} \(local.batch_size: 64 there, 8 here\)"),
        ("own", {"engine": "ray"}, "engine: local there, ray here"),
        ("images", {"data_dir": "dogs", **images}, rf"{other} \(data_dir: cats there, dogs here\)"),
    ]
    refusals.check(
        (says, partial(compare, tmp_path / name, runner, alone, seeds=2, **changes), ConfigError, says)
        for name, changes, says in rows
    )
    for file, content in (("metrics.jsonl", "{}\nnot a line\n"), ("summary.json", "null")):
        (tmp_path / "own" / "partitioned" / "seed3" / file).write_text(content)
        with pytest.raises(ConfigError, match=rf"{file} is damaged .*run"):
            compare(tmp_path / "own", runner, seeds=2)
    assert runner.calls == []


@pytest.mark.slow
def test_what_cannot_change_the_numbers_does_not_count_as_changed(tmp_path):
    """Options of a method concern its own cells; where data lie and how often state is saved concern none."""
    compare(tmp_path, FakeRunner())
    runner, options = FakeRunner(), {"augerino": {"safe": False}}
    changes = {"checkpoint_every": 3, "data_dir": "elsewhere", "method": "augerino"}
    compare(tmp_path, runner, method_options=options, **changes)
    assert runner.calls == []


def test_one_bad_cell_does_not_lose_the_others(tmp_path):
    errors = {("fedavg", 3): ClientError("The loss of client 7 is nan."), ("fedavg", 4): KeyError("w")}
    runner = FakeRunner(errors)
    with pytest.raises(SweepIncomplete) as caught:
        compare(tmp_path, runner, ["fedavg", "partitioned"], seeds=3)
    assert len(runner.calls) == 6
    message = str(caught.value)
    assert "2 of 6 runs failed" in message and "fedavg seed 3: The loss of client 7 is nan." in message
    assert "fedavg seed 4: KeyError: 'w'" in message
    assert isinstance(caught.value, RunError)  # the command line's status 1
    fedavg, partitioned = caught.value.found.rows
    assert fedavg.seeds == [5] and partitioned.seeds == [3, 4, 5]
    page = (tmp_path / "comparison.md").read_text()
    assert "| fedavg<br>(1/3 seeds) |" in page and "## Failed" in page
    failures = json.loads((tmp_path / "comparison.json").read_text())["failures"]
    assert "Traceback" in failures[1]["traceback"]
    again = FakeRunner()
    compare(tmp_path, again, ["fedavg", "partitioned"], seeds=3)
    assert again.calls == [("fedavg", 3, True), ("fedavg", 4, True)]


@pytest.mark.quick(1)
@pytest.mark.parametrize("error", [Interrupted(2, "round 5"), OSError("disk full"), KeyboardInterrupt("no")])
def test_a_person_or_the_disk_stops_everything_and_a_bad_configuration_at_the_first_run(tmp_path, error):
    bad = ConfigError("There is no folder.")
    for name, cell, stop in (("a", ("partitioned", 3), error), ("b", ("fedavg", 3), bad)):
        runner = FakeRunner({cell: stop})
        with pytest.raises(type(stop), match=str(stop)):
            compare(tmp_path / name, runner)
        assert len(runner.calls) == (2 if stop is error else 1)
    with pytest.raises(SweepIncomplete, match="no folder"):
        compare(tmp_path / "c", FakeRunner({("partitioned", 3): bad}))


def test_bad_requests_are_refused(tmp_path):
    runner = FakeRunner()
    rows = [
        (["fedavgg"], 1, "did you mean 'fedavg'"),
        (["fedavg", "fedavg"], 1, "'fedavg' twice"),
        ([], 1, "at least one method"),
        (["fedavg"], 0, "at least one seed"),
    ]
    refusals.check(
        (says, partial(compare, tmp_path, runner, methods, seeds), ConfigError, says)
        for methods, seeds, says in rows
    )
    assert runner.calls == [] and not list(tmp_path.iterdir())


def test_unequal_cohorts_are_pointed_out(tmp_path):
    config = small_config(seed=3)
    for cell in plan(config.model_copy(update={"beside": "fedavg"}), ["fedavg", "partitioned"], 1, tmp_path):
        assert cell.config.beside is None, "nothing is run beside it, also when it goes on alone"
        cohort = [0, 1] if cell.config.method == "fedavg" else [0, 2]
        write_run(cell.folder, cell.config, [0.5] * 12, cohort=cohort)
    comparison = compare(tmp_path, FakeRunner(), seeds=1)
    assert all(row["validation"].error is None for row in comparison.rows)
    assert comparison.notes == ["Seed 3: the methods' cohorts differ, first in round 1."]
    assert comparison.notes[0] in compare.printed and "the same data and clients" in comparison.title()


def test_estimates_and_their_differences():
    assert Estimate.of([1.0, 2.0, 6.0]) == Estimate(3.0, pytest.approx(math.sqrt(7 / 3)))
    assert [Estimate.of(values) for values in ([], [1.0, None], [1.0, math.nan])] == [None] * 3
    assert Estimate(0.95678, 0.0012).text(100) == "95.68 ± 0.12"
    assert Estimate(0.95, 0.003).difference(Estimate(0.97, 0.004)) == pytest.approx(-4.0)
    assert Estimate(0.95, None).difference(Estimate(0.97, 0.004)) is None  # one seed
    assert Estimate(0.95, 0.0).difference(Estimate(0.97, 0.0)) is None


def test_what_cannot_augment_the_data_is_left_out_with_a_word(tmp_path):
    changes = {"hyperparameters": {"affine": None}}
    runner = FakeRunner()
    comparison = compare(tmp_path / "some", runner, ["fedavg", "augerino", "partitioned"], 1, **changes)
    assert [row.method for row in comparison.rows] == ["fedavg", "partitioned"]
    assert {method for method, *_ in runner.calls} == {"fedavg", "partitioned"}
    assert "augerino is left out, for it does not fit: " in compare.printed and not comparison.failures
    alone = FakeRunner()
    compare(tmp_path / "alone", alone, ["augerino"], 1, **changes)
    assert [method for method, *_ in alone.calls] == ["augerino"], "which says itself why it fails"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("method", "changes", "why"),
    [
        ("fedbn", {}, "this network has none that is trained"),
        ("partitioned+fedrep", {"evaluation": "clients"}, "would take psi's gradient through weights"),
        ("scaffold", {"execution": "fused", "engine": "local"}, "Fused clients have no updates of their own"),
    ],
)
def test_what_the_settings_or_the_engine_refuse_is_left_out_before_anything_runs(
    tmp_path, method, changes, why
):
    runner = FakeRunner()
    comparison = compare(tmp_path, runner, ["fedavg", method], 1, **changes)
    assert [row.method for row in comparison.rows] == ["fedavg"] and not comparison.failures
    assert [name for name, *_ in runner.calls] == ["fedavg"]
    said = next(line for line in compare.printed.splitlines() if line.startswith(f"{method} is left out, "))
    assert why in said and said.count("fedavg") <= 1


def test_what_is_left_out_again_needs_no_data(tmp_path, monkeypatch):
    """A finished run of the comparison says what the data are like."""
    changes = {"hyperparameters": {"dropout": {}}}
    inputs = {"form": "inputs", "kinds": {"inputs": ["float32", 1, 28, 28]}}

    def run(config, out, **_):
        return write_run(out, config, [0.5] * 12, num_classes=10, inputs=inputs)

    methods = ["fedavg", "augerino"]
    compare(tmp_path, run, methods, 1, **changes)
    monkeypatch.setattr("simulations.sweeps.compare.load_data", lambda config: pytest.fail("data are loaded"))
    compare(tmp_path, run, methods, 1, **changes)
    assert "augerino is left out, for it does not fit: " in compare.printed


def test_every_kind_of_psi_that_has_moved_is_named_and_ranges_stand_in_order(tmp_path):
    def run(config, out, **_):
        ends = (3.0, -1.0) if config.seed == 3 else (-5.0, 9.0)
        ranges = {"affine.scale_min": 1.0, "affine.scale_max": 1.0, "mine.reach": 0.0}
        last = {"affine.scale_min": 0.6, "affine.scale_max": 1.7, "mine.reach": -2.5}
        physical = [turned | (last if i == 11 else ranges) for i, turned in enumerate(learned(12, *ends))]
        return write_run(out, config, [0.5] * 12, physical=physical)

    (row,) = compare(tmp_path, run, ["augerino"]).rows
    assert row.psi["affine.angle_min [deg]"].mean == pytest.approx(-3.0)
    said = "augerino learned: rotation -3.00..+6.00 deg; scale +0.60..+1.70; mine.reach -2.5"
    assert said in compare.printed.replace("\n", " ")


def test_methods_with_ways_to_combine_clients_are_rows_and_take_their_own_options(tmp_path):
    methods = ("partitioned", "fedprox", "partitioned+fedprox", "fedavg+yogi")
    options = {"partitioned": {}, "fedprox": {"mu": 0.3}, "yogi": {"eps": 0.1}, "fedex": {"augment": True}}
    cells = plan(small_config(method_options=options), methods, 1, tmp_path)
    settings = [cell.config.settings() for cell in cells]
    assert [fixed.combination.pull for fixed in settings] == [0, 0.3, 0.3, 0]
    assert settings[3].stepped_by.eps == 0.1 and settings[2].stepped_by == settings[2].server
    assert [cell.folder.parent.name for cell in cells] == list(methods)
    shown = compare(tmp_path, FakeRunner(), methods, method_options=options)
    assert [row.method for row in shown.rows] == list(methods)
    mine = compare(tmp_path / "mine", FakeRunner(), ("fedavg", "ditto"))
    assert mine.config["evaluation"] == "clients"  # where clients have weights of their own
    with pytest.raises(ConfigError, match="Unknown way to combine 'scafold': did you mean 'scaffold'"):
        compare(tmp_path / "other", FakeRunner(), ("fedavg", "partitioned+scafold"))
    with pytest.raises(ConfigError, match="'none' has none; use it alone"):
        compare(tmp_path / "other", FakeRunner(), ("fedavg", "none+scaffold"))
