"""Pictures of one run: how well it does, its psi, a mask, its transforms; and who saves those of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpart import Task
from fedpart.data import Splits, has_labels
from fedpart.randomness.noise import Noise, NoiseKey
from simulations.building.data import load_data
from simulations.building.task import build_task, saved_psi
from simulations.folders.run_directory import BESIDE, CONFIG, STATE, saved_config
from simulations.results.curves import LAST, Run, metric, moving_average, with_curve
from simulations.results.pictures import figures as fig
from simulations.results.pictures.comparison_figures import metric_figure, psi_figure, psi_groups
from simulations.results.pictures.figures import drawn, save_png
from simulations.results.psi_parts import PsiParts, compact, groups, in_words
from simulations.results.scores import EVIDENCES, SCORES, counted

SPAN = 10.0  # percentage points that are shown at least: less would draw noise large
CURVES = {"validation": "val_{}", "clients": "client_{}", "worst tenth of clients": "client_{}_worst_decile"}


def run_figures(run: Run, beside: Run | None = None, *, page: bool = False) -> dict[str, fig.Figure]:
    """Those that there are data for, by the names of their files."""
    figures = {"learning_curve": run_figure(run, beside, page=page)}
    masks = PsiParts.of(run.courses()).keeps
    if kinds := groups(name for name in run.courses() if name not in masks):
        columns = 1 if len(kinds) < 4 else 2
        figures["psi"] = psi_figure({run.config.method: [run]}, kinds, columns=columns, page=page)
    return figures | ({"mask": mask_figure(run, page=page)} if masks else {})


def run_figure(run: Run, beside: Run | None = None, *, page: bool = False) -> fig.Figure:
    """One run against its clock: accuracy and evidence, if it has them, and losses."""
    right, nll, likelihood = (SCORES[key] for key in ("accuracy", "nll", "log_likelihood"))
    accuracy, lml, training = run.curve("val_accuracy"), run.curve("lml"), run.curve("train_loss")
    by_clients, known = len(run.curve("client_accuracy")[0]) > 0, len(lml[0]) > 0
    panels = 1 + (len(accuracy[0]) > 0 or by_clients) + known
    figure, axes = fig.canvas(_title("Learning curve", run), panels, page=page)
    limits, validation = _limits(run), run.curve("val_nll")
    if by_clients:
        fig.dress(axes[0], right.axis, limits=limits)
        for i, (label, key) in enumerate(CURVES.items()):
            fig.draw(axes[0], run.curve(key.format("accuracy")), i, right.factor, label=label)
    elif len(accuracy[0]):
        fig.dress(axes[0], f"validation {right.axis}", limits=limits)
        labels = {} if beside is None else {"label": run.config.method}
        fig.draw(axes[0], accuracy, 0, right.factor, **labels)
        if beside is not None:
            style = {"label": f"{beside.config.method}, beside it", "color": fig.GREY}
            fig.draw(axes[0], beside.curve("val_accuracy"), 1, right.factor, **style)
        low, high = axes[0].get_ylim()
        if high - low < SPAN:
            middle = min(max((low + high) / 2, SPAN / 2), 100 - SPAN / 2)
            axes[0].set_ylim(middle - SPAN / 2, middle + SPAN / 2)
    if known and run.clock == "round":
        fig.dress(axes[-2], likelihood.axis, limits=limits)
        plain = {"marker": ""}
        fig.draw(axes[-2], lml, 2, lw=0.8, alpha=0.4, label="one round", **plain)
        label = f"{EVIDENCES['lml'].word}, mean of {LAST} rounds"
        fig.draw(axes[-2], (lml[0], moving_average(lml[1])), 2, label=label, **plain)
        fig.draw(axes[-2], validation, 0, -1.0, label="validation")
    elif known:
        fig.dress(axes[-2], EVIDENCES[getattr(run.config, "evidence", "lml")].axis, limits=limits)
        fig.draw(axes[-2], lml, 2)
        if (best := run.summary.get("lml_iteration", lml[0][-1])) < lml[0][-1]:
            axes[-2].axvline(best, color=fig.GREY, lw=1.2, ls="--", label="kept")
    fig.dress(axes[-1], nll.axis, run.clock, limits=limits)
    style = {} if len(training[0]) == 1 else {"marker": ""}
    fig.draw(axes[-1], training, 1, lw=1.2, label="training", **style)
    for i, (label, key) in enumerate(CURVES.items()):
        if i == 0 or not by_clients:  # with an accuracy, clients are drawn above
            fig.draw(axes[-1], run.curve(key.format("nll")), i + (i > 0), label=label)
    for line in (line for line in run.metrics if "stage" in line):
        for ax in axes:
            label = line["stage"] if ax is axes[-1] else None
            ax.axvline(line[run.clock], color=fig.GREY, lw=1.2, ls=":", label=label)
    for ax in axes:
        fig.legend_above(ax)
    return figure


def mask_figure(run: Run, *, page: bool = False) -> fig.Figure:
    """Probabilities of a learned mask to keep inputs: over the run as colours, the last ones as bars."""
    physical, x, unit = run.physical(), run.counts(), "probability [%]"
    keep = np.stack([physical[name] for name in PsiParts.of(physical).keeps])  # [inputs, reports], percent
    figure, (over_time, last) = fig.canvas(_title("Learned mask", run), panels=2, page=page)
    fig.dress(over_time, "input", run.clock, "Probability to keep an input")
    over_time.grid(False)
    edges = np.concatenate([x[:1] - (x[1:2] - x[:1] if len(x) > 1 else 1), x])  # a report ends its interval
    places = np.arange(len(keep) + 1) - 0.5
    shown = over_time.pcolormesh(edges, places, keep, cmap="cividis", vmin=0, vmax=100)
    over_time.set_ylim(len(keep) - 0.5, -0.5)
    bar = figure.colorbar(shown, ax=over_time, pad=0.01, ticks=[0, 25, 50, 75, 100])
    bar.set_label(unit, fontsize=13)
    bar.ax.tick_params(labelsize=11)
    kept = run.summary.get("lml_iteration", x[-1])  # early stopping ends with an earlier state
    final = keep[:, list(x).index(kept)]
    count = f"{np.sum(final > 50)} of {len(keep)} kept"
    fig.dress(last, unit, "input", f"At {run.clock} {kept:,.0f}: {count}")
    colours = [fig.COLOURS[0] if p > 50 else fig.COLOURS[1] for p in final]
    last.bar(np.arange(len(keep)), final, color=colours, width=0.75)  # from 0, as psi's names have them
    last.set_axisbelow(True)
    last.axhline(50, color=fig.GREY, lw=1.2, ls="--")
    last.set(ylim=(0, 100), xlim=(-0.6, len(keep) - 0.4))
    return figure


def has_costs(summary: Mapping[str, Any]) -> bool:
    """Whether a run was that of an ensemble the cost of whose subsets is known."""
    rows = summary.get("ensemble", {}).get("subsets", ())
    return bool(rows) and all(row["multiply_adds"] is not None for row in rows)


def anytime_figure(summary: Mapping[str, Any]) -> fig.Figure:
    """Accuracy of subsets against multiply-adds, and a line through those that no cheaper one equals."""
    score, best = SCORES["accuracy"], []
    rows = [(row["multiply_adds"] / 1e6, score.factor * row["accuracy"], len(row["members"]))
             for row in summary["ensemble"]["subsets"]]  # fmt: skip
    figure, (ax,) = fig.canvas("Test accuracy of every subset of members")
    for cost, accuracy, _ in sorted(rows, key=lambda one: (one[0], -one[1])):
        if not best or accuracy > best[-1][1]:
            best.append((cost, accuracy))
    ax.step(*zip(*best, strict=True), where="post", color="0.6", label="best so far")
    for i, size in enumerate(sorted({size for *_, size in rows})):
        part = np.array([(cost, accuracy) for cost, accuracy, n in rows if n == size]).T
        fig.draw(ax, part, i % len(fig.COLOURS), ls="", label=counted(size, "member"), markevery=None)
    fig.dress(ax, f"test {score.axis}", "multiply-adds of an example [millions]")
    fig.legend_below(figure, *ax.get_legend_handles_labels())
    return figure


def _limits(run: Run) -> tuple[float, float]:
    counts = run.counts()
    return float(counts[0]), float(counts[-1])


def _title(what: str, run: Run) -> str:
    return f"{what}: {run.summary['method']}, seed {run.summary['seed']}" if run.summary else what


@drawn
def plot_run(folder: str | Path, *, download: bool = True) -> list[Path]:
    """Draw one run's pictures, those that there are data for, into its folder."""
    run = Run.load(folder)
    if not run.metrics:
        return []
    other = run.folder / BESIDE
    beside = Run.load(other) if (other / CONFIG).is_file() else None
    figures = run_figures(run, beside)
    if has_costs(run.summary):
        figures["anytime"] = anytime_figure(run.summary)
    files = save_png(figures, run.folder)
    if (run.folder / STATE).is_file():
        splits = load_data(run.config, download=download)
        if blocks := run_blocks(run.folder, splits):
            files += save_png({"transforms": transforms_figure(blocks, examples(splits)[1])}, run.folder)
    return files


@drawn
def plot_comparison(runs: Mapping[str, Sequence[Run]], out: str | Path) -> list[Path]:
    """Draw a comparison's curves against rounds and bytes and, if any was learned, psi over rounds."""
    figures = {}
    if any(with_curve(runs, metric(runs)).values()):
        for against in ("rounds", "bytes"):
            figures[f"{metric(runs).removeprefix('val_')}_{against}"] = metric_figure(runs, against)
    kinds = psi_groups(runs)
    if shown := [group for group in kinds if group.kind in ("angle", "rate")] or kinds[:4]:
        figures["psi"] = psi_figure(runs, shown)
    return save_png(figures, Path(out))


IMAGES, SAMPLES = 5, 6
Block = tuple[str, Tensor]  # a title of up to two lines, and images [n, columns, c, h, w]


def run_blocks(folder: str | Path, splits: Splits, limit: int | None = 2) -> list[Block]:
    """Training images of a finished run and samples of its transforms; none where nothing changes them."""
    config = saved_config(folder)
    shape = splits.train.input_shape
    if not isinstance(shape, tuple) or len(shape) != 3 or shape[0] not in (1, 3):
        return []
    task = config.build_method().prepare(build_task(config, splits.num_classes, shape))
    psi, (images, _) = saved_psi(folder, task), examples(splits)
    if torch.equal(sample(task, psi, images, 1)[:, 0].to(images.dtype), images):
        return []
    blocks, spread = shown_blocks(task, psi, images, limit), config.normalise
    if spread is None:
        return blocks
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (spread.mean, spread.std))
    return [(title, shown * std + mean) for title, shown in blocks]


def examples(splits: Splits) -> tuple[Tensor, list[str]]:
    """A few training images ``[n, c, h, w]``, of different classes if there are any; their names, if any."""
    targets = splits.train.targets
    if not has_labels(splits.train):
        return splits.train.inputs[:IMAGES], []
    labels = targets.unique()[:IMAGES]
    first = [int((targets == label).nonzero()[0]) for label in labels]
    return splits.train.inputs[first], [splits.classes[label] for label in labels] if splits.classes else []


def shown_blocks(task: Task, psi: Tensor, images: Tensor, limit: int | None = 2) -> list[Block]:
    """Images ``[n, c, h, w]`` in [0, 1], and SAMPLES of each at the start and as learned; psi in words."""
    start = task.psi_space.initial()
    panels = [("at the start", start), ("as learned", psi)]
    panels = [("fixed", psi)] if torch.equal(start, psi) else panels
    blocks = [("training\nimages", images[:, None])]
    for name, values in panels:
        seen = {k: v for k, v in task.physical(values).items() if k.partition(".")[0] in task.transforms}
        silent = [name for name in task.transforms if not any(key.startswith(f"{name}.") for key in seen)]
        words = compact(seen, limit) if limit else "; ".join([*in_words(seen, limit=len(seen)), *silent])
        blocks.append((f"{name}\n{words}", sample(task, values, images)))
    return blocks


def transforms_figure(blocks: Sequence[Block], names: Sequence[str] = ()) -> fig.Figure:
    """Blocks of the same images side by side, a row for each image; the names, if any, on their left."""
    from matplotlib.figure import Figure

    columns = [block.shape[1] for _, block in blocks]
    rows = len(blocks[0][1])
    figure = Figure(figsize=(0.82 * sum(columns) + 1.5, 0.82 * rows + 1.1), dpi=fig.DPI, layout="constrained")
    figure.suptitle("Training images, and how the network is shown them", fontsize=15)
    axes = figure.subplots(1, len(blocks), width_ratios=columns, squeeze=False)[0]
    for ax, (title, block) in zip(axes, blocks, strict=True):
        shown = sheet(block)
        ax.imshow(shown, interpolation="nearest")
        ax.set_title(title, fontsize=12)
        ax.set_axis_off()
    height = (len(shown) + 1) / rows
    for row, name in enumerate(names):
        style = {"fontsize": 12, "ha": "right", "va": "center", "parse_math": False}
        axes[0].text(-0.2 * height, (row + 0.5) * height - 1, fig.wrapped(name), **style)
    return figure


def sheet(images: Tensor) -> NDArray[np.float64]:
    """Images ``[n, s, c, h, w]`` in [0, 1], a row each, as one of RGBA ``[height, width, 4]``."""
    n, s, _, h, w = images.shape
    tiles = np.zeros((n, h + 1, s, w + 1, 4))
    tiles[:, :h, :, :w, :3] = images.float().clamp(0, 1).permute(0, 3, 1, 4, 2).expand(n, h, s, w, 3).numpy()
    tiles[:, :h, :, :w, 3] = 1.0
    return tiles.reshape(n * (h + 1), s * (w + 1), 4)[:-1, :-1]


def sample(task: Task, psi: Tensor, images: Tensor, samples: int = SAMPLES) -> Tensor:
    """Images ``[n, c, h, w]`` under the transforms with ``psi``: ``[n, samples, c, h, w]``."""
    with torch.no_grad():
        noise = Noise(NoiseKey(0, "pictures"), dtype=task.dtype)
        x = task.transformed(psi, images.repeat_interleave(samples, 0), noise)
    return x.view(len(images), samples, *x.shape[1:])
