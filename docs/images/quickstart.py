"""Draws docs/images/quickstart.png: accuracy and learned rotation of the default experiment, beside FedAvg.

fedpart compare quickstart --engine local --methods fedavg,partitioned --seeds 5 --out runs/quickstart
python docs/images/quickstart.py runs/quickstart
"""

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

COLOURS = {"fedavg": "#8a8a8a", "partitioned": "#1f6fb4"}


def curve(method: str, read) -> tuple[list[int], np.ndarray]:
    """Rounds, and what ``read`` finds in their lines, [seeds, rounds]."""
    runs = []
    for file in sorted(Path(sys.argv[1]).glob(f"{method}/seed*/metrics.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found = {line["round"]: read(line) for line in lines}
        runs.append({number: value for number, value in found.items() if value is not None})
    rounds = sorted(set.intersection(*(set(run) for run in runs)))
    return rounds, np.array([[run[number] for number in rounds] for run in runs])


figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", dpi=110)
for method, colour in COLOURS.items():
    rounds, accuracy = curve(method, lambda line: line.get("val_accuracy"))
    mean, error = 100 * accuracy.mean(0), 100 * accuracy.std(0, ddof=1) / len(accuracy) ** 0.5
    left.plot(rounds, mean, color=colour, label=method)
    left.fill_between(rounds, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
left.set(xlabel="round", ylabel="validation accuracy [%]", ylim=(0, 100), title="Accuracy")
left.legend(loc="lower right", frameon=False)

for i, side in enumerate(("min", "max")):
    key = f"affine.angle_{side} [deg]"
    rounds, angles = curve("partitioned", lambda line, key=key: line["psi"]["physical"].get(key))
    for seed, angle in enumerate(angles):
        label = "learned, a line a seed" if i == seed == 0 else None
        right.plot(rounds, angle, color=COLOURS["partitioned"], alpha=0.9 - 0.15 * seed, label=label)
    right.axhline(
        (-180, 180)[i],
        color="#c44e52",
        linestyle="--",
        linewidth=1,
        label=None if i else "how the data were turned",
    )
right.set(
    xlabel="round",
    ylabel="rotation [degrees]",
    yticks=range(-180, 181, 90),
    title="Learned range of rotations",
)
right.legend(loc="center right", frameon=False)
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_suffix(".png"))
