"""Draws docs/images/server_rates.png, runs from three learning rates of the server, and prints the table beside it.

for seed in 1 2 3; do for rate in 0.0007-0 0.0022-0 0.007-0 0.022-0 0.07-0 0.0007-0.3 0.007-0.3 0.07-0.3 \
    0.0007-1 0.007-1 0.07-1; do
  fedpart run simulations/configs/quickstart.yaml --engine local --out runs/rates/$rate/$seed --set rotated=false \
    hyperparameters.affine=null samples=1 local.batch_size=1000 execution=fused rounds=80 seed=$seed data_seed=$seed \
    server.learning_rate=${rate%-*} server.hypergradient=${rate#*-}
done; done  # at commit cf5b8ad; since then hypergradient is an argument of AdamSettings alone
python docs/images/server_rates.py runs/rates
"""  # noqa: E501

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SHOWN = {
    "0.007-0": "#8a8a8a",
    "0.0007-0": "#9ecae1",
    "0.0007-0.3": "#2ca02c",
    "0.0007-1": "#1f6fb4",
    "0.07-0": "#f4b183",
    "0.07-1": "#c44e52",
}
LAST = 5  # evaluations

runs = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    seeds = sorted(folder.iterdir())
    found = [[json.loads(line) for line in (one / "metrics.jsonl").read_text().splitlines()] for one in seeds]
    evaluated = [[line for line in lines if "val_accuracy" in line] for lines in found]
    accuracy = 100 * np.array([[line["val_accuracy"] for line in lines] for lines in evaluated])
    runs[folder.name] = found, [line["round"] for line in evaluated[0]], accuracy
    test = [100 * json.loads((one / "summary.json").read_text())["test_accuracy"] for one in seeds]
    print(folder.name, end=" ")
    for name, of_seeds in ("validation", accuracy[:, -LAST:].mean(1)), ("test", np.array(test)):
        error = of_seeds.std(ddof=1) / len(of_seeds) ** 0.5
        print(f"| {name} {of_seeds.mean():.1f} +- {error:.1f} {np.round(of_seeds, 1)}", end=" ")
    rates = [lines[-1].get("server_rates", [])[:-1] for lines in found]
    print("| last rates", np.round(rates, 4).tolist())

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained", dpi=110)
for name, colour in SHOWN.items():
    found, rounds, accuracy = runs[name]
    rate, beta = name.split("-")
    label = f"from {rate}, hypergradient {beta}" if float(beta) else f"{rate}, fixed"
    mean, error = accuracy.mean(0), accuracy.std(0, ddof=1) / len(accuracy) ** 0.5
    left.plot(rounds, mean, color=colour, label=label)
    left.fill_between(rounds, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
    if not float(beta):
        right.axhline(float(rate), color=colour, linestyle="--")
        continue
    for lines in found:
        rates = np.array([line["server_rates"][:-1] for line in lines])
        for j, style in enumerate(("-", "--", ":")):
            right.plot(
                [line["round"] for line in lines], rates[:, j], color=colour, linestyle=style, linewidth=1
            )
for style, label in ("-", "w_1"), ("--", "w_2"), (":", "w_3"):
    right.plot([], [], color="#444444", linestyle=style, linewidth=1, label=f"{label}, a line a seed")
left.set(
    xlabel="round", ylabel="validation accuracy [%]", ylim=(0, 100), title="Accuracy, mean of three seeds"
)
right.set(xlabel="round", ylabel="the server's learning rate", yscale="log", title="Learning rates")
for axes in (left, right):
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_suffix(".png"))
