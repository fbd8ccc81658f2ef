"""Draws docs/images/lml.png, L_ML per example beside validation, and prints their Spearman correlations.

fedpart run simulations/configs/quickstart.yaml --engine local --out runs/lml --set clients=100 rounds=600 evaluate_every=2
python docs/images/lml.py runs/lml
"""  # noqa: E501

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np
from scipy.stats import spearmanr

matplotlib.use("Agg")
from matplotlib import pyplot as plt

AVERAGED = 10  # rounds

lines = [json.loads(line) for line in (Path(sys.argv[1]) / "metrics.jsonl").read_text().splitlines()]
found = [(line["round"], line["lml"]) for line in lines if line["lml"] is not None]
rounds, lml = map(np.array, zip(*found, strict=True))
mean = np.array([lml[max(0, end - AVERAGED) : end].mean() for end in range(1, len(lml) + 1)])
validation = {line["round"]: -line["val_nll"] for line in lines if line.get("val_nll") is not None}
both = np.isin(rounds, list(validation))
likelihood = np.array([validation[number] for number in rounds[both]])
for first in (1, rounds[-1] // 2):
    late = rounds[both] >= first
    raw, averaged = (spearmanr(one[both][late], likelihood[late]).statistic for one in (lml, mean))
    print(f"from round {first}: {raw:.2f} of one round, {averaged:.2f} of {AVERAGED} ({late.sum()} rounds)")

figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
axes[0].plot(rounds, lml, color="#009E73", lw=0.7, alpha=0.4, label="L_ML per example, one round")
axes[0].plot(rounds, mean, color="#009E73", lw=2, label=f"mean of {AVERAGED} rounds")
axes[0].plot(rounds[both], likelihood, color="#0072B2", lw=1.5, label="validation data")
axes[0].set(xlabel="round", ylabel="log-likelihood [nats per example]", title="What is known without data")
axes[0].legend(frameon=False)
shown = axes[1].scatter(mean[both], likelihood, c=rounds[both], s=12, cmap="viridis")
axes[1].set(xlabel=f"L_ML per example, mean of {AVERAGED} rounds", ylabel="validation log-likelihood")
axes[1].set_title("An evaluation each")
figure.colorbar(shown, ax=axes[1], label="round")
for ax in axes:
    ax.grid(alpha=0.3)
figure.savefig(Path(__file__).with_name("lml.png"), dpi=110)
