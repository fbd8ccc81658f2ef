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
size = (13, 3 * len(rows) + 0.4)
figure, axes = plt.subplots(len(rows), len(SHOWN), figsize=size, sharey="row", squeeze=False)
figure.set_layout_engine("constrained", h_pad=0.15)
for (title, search, *retrained), line in zip(rows, axes, strict=True):
    drawn = table(sorted((Path(search) / "trials").iterdir()))
    plain = table([Path(run) for run in retrained])
    found = table([Path(saved_config(run).psi_from) for run in retrained])
    print(f"{title}: {len(drawn)} draws; {', '.join(SHOWN)}, test accuracy, test log-likelihood")
    quartiles = np.percentile(drawn[:, -2:], [0, 25, 50, 75, 100], axis=0).T.round(3)
    print(f"  accuracy from worst to best by quarters: {quartiles[0]}, log-likelihood: {quartiles[1]}")
    for number in np.argsort(-drawn[:, -2], kind="stable")[:3]:
        print(f"  draw {number}: {np.round(drawn[number], 3)}")
    ranks = 1 + (drawn[:, None, -2:] > plain[None, :, -2:]).sum(0)
    for run, here, there, rank in zip(retrained, plain, found, ranks, strict=True):
        print(f"  {run}: {np.round(here, 3)}, rank {rank[0]} by accuracy, {rank[1]} by log-likelihood")
        print(f"    its partitioned network: {np.round(there[-2:], 3)}")
    places = ", ".join(map(str, ranks[:, 0]))
    text = f"{title}: the learned psi's plain networks have rank {places} among {len(drawn)} draws"
    line[0].text(0, 1.05, text, fontsize=12, transform=line[0].transAxes).set_in_layout(False)
    for column, name in enumerate(SHOWN):
        correlation = spearmanr(drawn[:, column], drawn[:, -2]).statistic
        print(f"  rank correlation of accuracy and {name}: {correlation:.2f}")
        for (label, style), points in zip(KINDS.items(), (drawn, found, plain), strict=True):
            line[column].scatter(points[:, column], points[:, -2], label=label, **style)
        line[column].grid(alpha=0.3)
    line[0].set_ylabel("test accuracy [%]")
for ax, name in zip(axes[-1], SHOWN, strict=True):
    ax.set_xlabel(f"maximum {name.replace('_', ' ')}" + (" [degrees]" if name == "angle" else ""))
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
figure.savefig(Path(__file__).with_name("random_search.png"), dpi=110)
