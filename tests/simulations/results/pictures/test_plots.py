import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from fake_runs import learned, small_config, write_run
from layout import assert_nothing_overlaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from tiny import tiny_training
from torch import nn

from fedpart import AffineAugmentation, Task
from simulations.results.curves import Run, moving_average
from simulations.results.pictures.comparison_figures import metric_figure, psi_figure, psi_groups
from simulations.results.pictures.figures import COLOURS, DPI, places
from simulations.results.pictures.run_figures import (
    SAMPLES,
    mask_figure,
    plot_comparison,
    plot_run,
    run_figure,
    run_figures,
    sample,
    shown_blocks,
    transforms_figure,
)
from simulations.results.psi_parts import Quantity, groups
from simulations.results.scores import Estimate
from simulations.running.run import run_experiment

MINMAX = ("angle", "scale_x", "scale_y", "shear_x", "shear_y", "shift_x", "shift_y")
UNITS = {"angle": " [deg]", "shift_x": " [%]", "shift_y": " [%]"}


def affine(rounds):
    """All of the min-max family and four dropout layers, over rounds."""
    lines = []
    for i in range(1, rounds + 1):
        line = {f"dropout{k}.rate [%]": 10 + 0.1 * k * i for k in (1, 2, 3, 4)}
        for name in MINMAX:
            unit = UNITS.get(name, "")
            line |= {f"affine.{name}_min{unit}": -1.0 * i, f"affine.{name}_max{unit}": 2.0 * i}
        lines.append(line)
    return lines


@pytest.fixture
def runs(tmp_path):
    """fedavg and partitioned, two seeds each."""
    found = {}
    for method in ("fedavg", "partitioned"):
        for seed in (0, 1):
            config = small_config(method=method, seed=seed)
            folder = tmp_path / method / f"seed{seed}"
            accuracies = [(i + seed) / 20 for i in range(12)]
            physical, upload = [{"dropout1.rate [%]": 10.0}] * 12, 3_000_000
            if method == "partitioned":
                physical, upload = learned(12, -60, 60 + seed, 8), 1_000_000 + 1_000_000 * seed
            write_run(folder, config, accuracies, upload=upload, download=3_000_000, physical=physical)
            found.setdefault(method, []).append(Run.load(folder))
    return found


def one_run(folder, physical, accuracies=(0.5,) * 12, **options):
    write_run(folder, small_config(method="partitioned"), accuracies, physical=physical, **options)
    return Run.load(folder)


def of_run(run):
    """The picture of what a run has learned."""
    return run_figures(run)["psi"]


def labels(ax):
    return ax.get_xlabel(), ax.get_ylabel()


def assert_png(path, width):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[-8:-4] == b"IEND"
    assert struct.unpack(">I", data[16:20])[0] == width


def test_accuracy_against_rounds(runs):
    figure = metric_figure(runs, "rounds")
    (ax,) = figure.axes
    assert labels(ax) == ("round", "validation accuracy [%]")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fedavg", "partitioned"]
    assert figure._suptitle.get_text() == (
        "Validation accuracy, moving average of up to 10 evaluations\nmean ± standard error over 2 seeds"
    )
    line = ax.lines[0]
    assert line.get_color() == COLOURS[0] and ax.lines[1].get_color() == COLOURS[2]
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 13))
    averages = [(n // 2 + n - 1) / 2 for n in range(1, 13)]  # of the second half of 0, 1, ..., n - 1
    np.testing.assert_allclose(line.get_ydata(), [5 * (a + 0.5) for a in averages])  # mean of a/20, (a+1)/20
    edge = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert edge.min() == pytest.approx(0.0) and edge.max() == pytest.approx(47.5)  # +- 2.5, the error
    for curve, own in zip(ax.lines, runs.values(), strict=True):  # they end at the score of the table
        score = Estimate.of(run.last10("val_accuracy") for run in own)
        assert curve.get_ydata()[-1] == pytest.approx(100 * score.mean)
    alone = metric_figure({method: own[:1] for method, own in runs.items()}, "rounds")
    assert not alone.axes[0].collections and "one seed" in alone._suptitle.get_text()


def test_accuracy_against_bytes(runs):
    (ax,) = metric_figure(runs, "bytes").axes
    assert labels(ax) == ("upload + download, all clients [MB]", "validation accuracy [%]")
    fedavg, partitioned = ax.lines
    np.testing.assert_allclose(fedavg.get_xdata(), 6.0 * np.arange(1, 13))
    np.testing.assert_allclose(partitioned.get_xdata(), 4.5 * np.arange(1, 13))  # mean of 4 and 5 MB a round


@pytest.mark.parametrize("evaluations", [0, 1, 2, 9, 19, 20, 25])
def test_a_moving_average_is_over_half_of_the_values_and_ten_at_most(evaluations):
    squares = np.arange(evaluations, dtype=float) ** 2
    wanted = []
    for i in range(evaluations):
        left_out = (i + 1) // 2 if i < 19 else i - 9
        sums = [n * (n - 1) * (2 * n - 1) / 6 for n in (i + 1, left_out)]  # of the squares below n
        wanted.append((sums[0] - sums[1]) / (i + 1 - left_out))
    np.testing.assert_allclose(moving_average(squares), wanted)


def a_point_apart(folder, accuracies):
    """Two methods, one of them a point of accuracy better throughout."""
    found = {}
    for method, more in (("fedavg", 0.0), ("partitioned", 0.01)):
        config = small_config(method=method, rounds=len(accuracies))
        write_run(folder / method, config, [a + more for a in accuracies])
        found[method] = [Run.load(folder / method)]
    return found


@pytest.mark.parametrize("against", ["rounds", "bytes"])
def test_the_axis_leaves_out_the_start_of_a_long_run(tmp_path, against):
    runs = a_point_apart(tmp_path, [0.1] * 3 + [0.95] * 117)
    (ax,) = metric_figure(runs, against).axes
    assert ax.get_ylim() == pytest.approx((94.95, 96.05))  # 95 and 96, with room
    for line in (line for (run,) in runs.values() for line in run.metrics):
        line.pop("val_accuracy")
    (ax,) = metric_figure(runs, against).axes
    assert ax.get_ylim() == pytest.approx((0.0395, 0.0505))  # the losses


@pytest.mark.parametrize("evaluations", [1, 2, 5])
def test_a_short_run_is_drawn_whole(tmp_path, evaluations):
    (ax,) = metric_figure(a_point_apart(tmp_path, [0.2, 0.8, 0.3, 0.4, 0.5][:evaluations]), "bytes").axes
    values = np.concatenate([line.get_ydata() for line in ax.lines])
    low, high = ax.get_ylim()
    assert len(values) == 2 * evaluations and low < values.min() and values.max() < high


def test_psi_of_a_comparison_shows_who_learned_what(runs):
    figure = psi_figure(runs, psi_groups(runs))
    rotation, dropout = figure.axes
    assert rotation.get_ylabel() == "rotation [degrees]" and rotation.get_title("left") == "Rotation range"
    assert labels(dropout) == ("round", "drop rate [%]")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["partitioned"]
    assert rotation.lines[0].get_color() == COLOURS[2]  # as in the learning curves
    np.testing.assert_allclose([line.get_ydata()[-1] for line in rotation.lines[:2]], [-60, 60.5])
    assert psi_groups({"fedavg": runs["fedavg"]}) == []


def test_pictures_of_a_comparison_are_png(runs, tmp_path):
    paths = plot_comparison({**runs, "augerino": []}, tmp_path)
    assert [path.name for path in paths] == ["accuracy_rounds.png", "accuracy_bytes.png", "psi.png"]
    for path in paths:
        assert_png(path, 8 * DPI)
    assert plot_comparison({"fedavg": []}, tmp_path) == []


def test_runs_are_compared_at_the_rounds_that_all_of_them_evaluated(runs):
    for line in runs["fedavg"][0].metrics[:11]:
        line.pop("val_accuracy")
    (ax,) = metric_figure(runs, "rounds").axes
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [12])


def test_one_run(tmp_path):
    run = one_run(tmp_path, learned(12, -60, 60, 8), [i / 12 for i in range(12)])
    accuracy, loss = run_figure(run).axes
    assert accuracy.get_ylabel() == "validation accuracy [%]"
    assert labels(loss) == ("round", "loss [nats per example]")
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training", "validation"]
    np.testing.assert_allclose(loss.lines[0].get_ydata(), [2 / (i + 1) for i in range(12)])
    rotation, dropout = of_run(run).axes
    assert labels(rotation) == ("round", "rotation [degrees]")
    assert labels(dropout) == ("round", "drop rate [%]")
    assert len(dropout.lines) == 1  # dropout2 was not learned
    paths = plot_run(tmp_path)
    assert [path.name for path in paths] == ["learning_curve.png", "psi.png"]
    assert_png(paths[0], 8 * DPI)


def test_another_method_beside_is_drawn_and_noise_is_not_drawn_large(tmp_path):
    run = one_run(tmp_path, learned(12, -60, 60, 8), [0.8 + i / 1200 for i in range(12)])
    (ax, _) = run_figure(run, run).axes
    name = run.config.method
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [name, f"{name}, beside it"]
    low, high = ax.get_ylim()
    assert high - low == 10.0 and low < 80 < high


def test_a_run_without_classes_or_psi_has_its_loss(tmp_path):
    run = one_run(tmp_path, None, None)
    (ax,) = run_figure(run).axes
    assert ax.get_ylabel() == "loss [nats per example]" and len(ax.lines) == 2
    assert [path.name for path in plot_run(tmp_path)] == ["learning_curve.png"]


def test_a_run_that_is_not_finished_or_not_there(tmp_path):
    run = one_run(tmp_path, None, finished=False)
    assert run_figure(run)._suptitle.get_text() == "Learning curve"
    (tmp_path / "metrics.jsonl").write_text("")
    assert plot_run(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="holds no run"):
        plot_run(tmp_path / "nowhere")


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2, 12])
def test_nothing_overlaps(tmp_path, rounds):
    config = small_config(method="partitioned", rounds=rounds)
    write_run(tmp_path, config, [0.8] * rounds, physical=affine(rounds))
    run = Run.load(tmp_path)
    one, two = {"partitioned": [run]}, {"partitioned": [run], "package.module:Method": [run, run]}
    figures = [run_figure(run), *(metric_figure(two, "bytes", page=page) for page in (False, True))]
    if rounds > 1:
        figures += [of_run(run), psi_figure(one, psi_groups(one)[:3])]
        figures += [psi_figure(two, [group], page=True) for group in psi_groups(two)]
    for line in run.metrics:
        line.pop("val_accuracy")
    figures.append(metric_figure(one, "rounds", page=True))
    for figure in figures:
        assert_nothing_overlaps(figure)


def test_every_kind_of_psi_has_its_panel_and_unit(tmp_path):
    run = one_run(tmp_path, affine(12))
    axes = [ax for ax in of_run(run).axes if ax.get_visible()]
    units = {"rotation": "degrees", "scale": "factor", "shear": "factor", "shift": "% of the image"}
    wanted = {f"{name} [{unit}]" for name, unit in units.items()} | {"drop rate [%]"}
    assert {ax.get_ylabel() for ax in axes} == wanted


def test_a_mask_of_many_numbers_is_summarised(tmp_path):
    physical = [{f"mask.logit[{k}]": float(k * i) for k in range(1, 102)} for i in range(12)]
    (ax,) = of_run(one_run(tmp_path, physical)).axes
    assert ax.get_title("left") == "mask.logit" and len(ax.lines) == 1
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 51.0 * np.arange(12))
    assert ax.get_legend().get_texts()[0].get_text() == "median of 101"


def test_names_of_psi_are_taken_apart():
    name = "affine.shift_x_max [%]"
    assert Quantity.parse(name) == Quantity(name, "affine", "shift_x", "max", "%")
    assert Quantity.parse("gain") == Quantity("gain", "", "gain", "", "")
    arm = Quantity.parse("arms.probability[2.5%] [%]")
    assert arm == Quantity("arms.probability[2.5%] [%]", "arms", "probability[2.5%]", "", "%")
    assert list(groups([arm.name, "arms.probability[10%] [%]"])[0].lines) == ["2.5%", "10%"]
    found = groups(["a.angle_max [deg]", "a.angle_min [deg]", "d1.rate [%]", "d2.rate [%]", "s.w.norm"])
    assert {g.kind: list(g.lines) for g in found} == {
        "angle": ["angle"],
        "rate": ["d1", "d2"],
        "norm": ["s.w"],
    }
    assert [g.title for g in found[:2]] == ["Rotation range", "Dropout rate"]
    ranges = groups(["affine.scale_x_min", "affine.scale_x_max", "lora.scale"])
    assert [g.title for g in ranges] == ["Scale range", "lora.scale"], "one number is no range"
    assert found[0].lines["angle"] == ("a.angle_min [deg]", "a.angle_max [deg]")  # the lower end first


def test_a_method_has_its_colour_whatever_else_is_drawn():
    assert places(["partitioned"])["partitioned"] == places(["fedavg", "a:B", "partitioned"])["partitioned"]
    own = places(["b:B", "fedavg", "a:A"])
    assert len(set(own.values())) == 3 and list(own) == ["b:B", "fedavg", "a:A"]
    assert own == places(["a:A", "b:B", "fedavg"])
    many = places([f"m:{i}" for i in range(20)])
    assert set(many.values()) <= set(range(len(COLOURS)))


@pytest.mark.slow
def test_matplotlib_is_imported_for_pictures_alone_and_never_pyplot(tmp_path):
    one_run(tmp_path, learned(12, -60, 60))
    code = "import sys, simulations.sweeps.compare, simulations.results.pictures.run_figures as p\n"
    code += f"before = 'matplotlib' in sys.modules; p.plot_run({str(tmp_path)!r})\n"
    code += "print(before, 'matplotlib.pyplot' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "False False\n"


def training_run(folder, **changes):
    """A tiny finished training run that learned a mask."""
    config = tiny_training(**{"keep_best": True, **changes})
    run_experiment(config, folder)
    return Run.load(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One that has kept what it had after 20 iterations."""
    run = training_run(tmp_path_factory.mktemp("trained"))
    run.summary["lml_iteration"] = 20
    return run


def test_centralised_runs_are_drawn_against_iterations(trained):
    run, figure = trained, run_figure(trained)
    accuracy, lml, loss = figure.axes
    np.testing.assert_array_equal(lml.lines[0].get_xdata(), [10, 20, 30])
    np.testing.assert_allclose(lml.lines[0].get_ydata(), [line["lml"] for line in run.metrics])
    assert lml.lines[1].get_xdata()[0] == 20  # what early stopping kept
    assert loss.get_xlabel() == "iteration" and accuracy.get_ylabel() == "validation accuracy [%]"
    assert_nothing_overlaps(figure)


def test_where_a_stage_ends_is_marked(tmp_path):
    options = {"method": "validation", "method_options": {"validation": {"finetune_epochs": 1}}}
    run = training_run(tmp_path, chunks=[0.9, 0.1], keep_best=False, **options)
    figure = run_figure(run)
    loss = figure.axes[-1]
    assert [text.get_text() for text in loss.get_legend().get_texts()][-1] == "optimised"
    assert loss.lines[-1].get_xdata()[0] == 30
    assert_nothing_overlaps(figure)


def test_a_mask_is_drawn_over_time_and_at_its_end(trained):
    run, figure = trained, mask_figure(trained)
    over_time, last = figure.axes[:2]
    keep = np.stack([run.physical()[f"mask.keep[{i}] [%]"] for i in range(30)])
    np.testing.assert_allclose(over_time.collections[0].get_array().reshape(30, 3), keep)
    np.testing.assert_allclose([bar.get_height() for bar in last.patches], keep[:, 1])  # what was kept
    assert [round(bar.get_x() + bar.get_width() / 2) for bar in last.patches] == list(range(30))  # from 0
    assert labels(over_time) == ("iteration", "input") and labels(last) == ("input", "probability [%]")
    assert last.get_title("left") == f"At iteration 20: {(keep[:, 1] > 50).sum()} of 30 kept"
    assert_nothing_overlaps(figure)


def test_images_are_shown_as_at_the_start_and_as_learned():
    turn = AffineAugmentation("minmax", initial=0.01)
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), transforms=[turn])
    images, learned = torch.rand(3, 1, 8, 8), task.psi_space.initial()
    learned[0], learned[7] = -1.0, 1.0  # radians
    blocks = shown_blocks(task, learned, images)
    figure = transforms_figure(blocks, ["cat", "dog", "a very long-eared owl"])
    assert [ax.get_title() for ax in figure.axes] == [
        "training\nimages",
        "at the start\nrotation -0.57..+0.57 deg",
        "as learned\nrotation -57.3..+57.3 deg",
    ]
    before = sample(task, task.psi_space.initial(), images)
    turned = sample(task, learned, images)
    for ax, block in zip(figure.axes, (images[:, None], before, turned), strict=True):
        shown = ax.images[0].get_array()
        assert block.shape[:2] == (3, 1 if ax is figure.axes[0] else SAMPLES)
        for row, column in np.ndindex(*block.shape[:2]):  # a pixel between two images
            tile = shown[9 * row : 9 * row + 8, 9 * column : 9 * column + 8]
            np.testing.assert_allclose(tile[..., 0], block[row, column, 0], atol=1e-6)
            assert (tile[..., 3] == 1).all()
    assert (before - images[:, None]).abs().mean() < (turned - images[:, None]).abs().mean()
    assert torch.equal(turned, sample(task, learned, images))
    assert len(shown_blocks(task, task.psi_space.initial(), images)) == 2  # nothing was learned
    FigureCanvasAgg(figure).draw()
    renderer, first = figure.canvas.get_renderer(), figure.axes[0].get_window_extent()
    names = figure.axes[0].texts
    boxes = [text.get_window_extent(renderer) for text in names]
    assert [text.get_text() for text in names] == ["cat", "dog", "a very long-\neared owl"]
    assert all(box.x0 > 0 and box.x1 < first.x0 for box in boxes)
    assert boxes[0].y0 > boxes[1].y1 and first.y0 < boxes[0].y0 < boxes[0].y1 < first.y1
