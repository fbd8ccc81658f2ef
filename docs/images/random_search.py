"""Draws docs/images/random_search.png (the paper's Figure 9), and prints the ranks of what was learned.

python docs/images/random_search.py --row "rotated digits" runs/draws runs/found-0-retrained runs/found-1-retrained

A row is of one data set: a title, the folder of `fedpart search simulations/configs/random_search.yaml`, and runs of
`fedpart retrain` with as many iterations.
"""  # noqa: E501

import argparse
import math
from pathlib import Path

import matplotlib
import numpy as np
from scipy.stats import spearmanr

from fedpart import AffineAugmentation
from simulations.folders.run_directory import read_metrics, read_summary, saved_config

matplotlib.use("Agg")
from matplotlib import pyplot as plt

NAMES = AffineAugmentation.components["lila"]
SHOWN = ("angle", "shear", "shift_x", "shift_y", "scale_x", "scale_y")
KINDS = {  # label -> style of its points
    "drawn, plain network": {"marker": "+", "color": "0.45", "s": 28},
    "learned, partitioned network": {"marker": "o", "color": "#0072B2", "s": 30},
    "learned, plain network": {"marker": "D", "color": "#D55E00", "s": 30},
}


def table(runs: list[Path]) -> np.ndarray:
    """A line for each run: its six maxima (the angle in degrees), test accuracy [%], test log-likelihood."""
    lines = []
    for run in runs:
        raw, summary = read_metrics(run)[-1]["psi"]["raw"]["affine.range"], read_summary(run)
        maxima = dict(zip(NAMES, map(abs, raw), strict=True))
        maxima["angle"] = math.degrees(min(math.pi, maxima["angle"]))
        lines.append(
            [*(maxima[name] for name in SHOWN), 100 * summary["test_accuracy"], -summary["test_nll"]]
        )
    return np.array(lines)


parser = argparse.ArgumentParser()
parser.add_argument("--row", nargs="+", action="append", required=True)
rows = parser.parse_args().row
figure, axes = plt.subplots(
    len(rows),
    len(SHOWN),
    figsize=(12, 3 * len(rows) + 0.4),
    sharey="row",
    squeeze=False,
    layout="constrained",
)
for (title, search, *retrained), line in zip(rows, axes, strict=True):
    drawn = table(sorted((Path(search) / "trials").iterdir()))
    plain = table([Path(run) for run in retrained])
    found = table([Path(saved_config(run).psi_from) for run in retrained])
    print(f"{title}: {len(drawn)} draws; {', '.join(SHOWN)}, test accuracy, test log-likelihood")
    order = np.argsort(-drawn[:, -2], kind="stable")
    for part, numbers in (
        ("best", order[:3]),
        ("median", order[len(order) // 2 :][:1]),
        ("worst", order[-1:]),
    ):
        for number in numbers:
            print(f"  {part} draw {number}: {np.round(drawn[number], 3)}")
    for run, here, there in zip(retrained, plain, found, strict=True):
        ranks = [1 + int((drawn[:, column] > here[column]).sum()) for column in (-2, -1)]
        print(f"  {run}: {np.round(here, 3)}, rank {ranks[0]} by accuracy, {ranks[1]} by log-likelihood")
        print(f"    its partitioned network: {np.round(there[-2:], 3)}")
    for column, name in enumerate(SHOWN):
        print(
            f"  rank correlation of accuracy and {name}: {spearmanr(drawn[:, column], drawn[:, -2])[0]:.2f}"
        )
        for (label, style), points in zip(KINDS.items(), (drawn, found, plain), strict=True):
            line[column].scatter(points[:, column], points[:, -2], label=label, **style)
        line[column].grid(alpha=0.3)
    line[0].set_ylabel(f"{title}\ntest accuracy [%]")
for ax, name in zip(axes[-1], SHOWN, strict=True):
    ax.set_xlabel(f"maximum {name.replace('_', ' ')}" + (" [degrees]" if name == "angle" else ""))
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
figure.savefig(Path(__file__).with_name("random_search.png"), dpi=110)
