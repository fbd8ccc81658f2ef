"""How much the choice of C, of the chunks and of the partitions matters: the paper's App. F.1.

For C = 2, 3, 4 the data and the parameters are each given mostly to the first chunk (8 : 1 : ...), evenly, or
mostly to the last. Finished runs are not run again; `fedpart retrain` does App. F.2 with each of them.

    python benchmarks/costs/sensitivity.py --out runs/sensitivity --figure docs/images/sensitivity.png
    python benchmarks/costs/sensitivity.py --config rotmnist_affine --iterations 3000 --samples 4
"""

from __future__ import annotations

import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import typer

from benchmarks.script import tell
from simulations.config.load import TrainingConfig
from simulations.config.shipped import CONFIGS
from simulations.config.yaml_files import read_extended
from simulations.folders.cell import Cell
from simulations.folders.run_directory import read_summary
from simulations.results.pictures.figures import canvas, dress_bar
from simulations.sweeps.cell_runner import CellRunner, gathered

KINDS = ("first", "even", "last")
SIZES = (2, 3, 4)


def proportions(chunks: int, kind: str) -> list[float]:
    """8 : 1 : ... : 1, all the same, or 1 : ... : 1 : 8."""
    weights = [1.0] * chunks
    if kind != "even":
        weights[0 if kind == "first" else -1] = 8.0
    return [weight / sum(weights) for weight in weights]


def plan(out: Path, settings: dict[str, Any], seeds: int) -> list[Cell]:
    """What is to be run."""
    cells = []
    for chunks, data, weights, seed in product(SIZES, KINDS, KINDS, range(seeds)):
        shares = {"chunks": proportions(chunks, data), "parameters": proportions(chunks, weights)}
        config = TrainingConfig.from_dict({**settings, **shares, "seed": seed})
        name = f"{chunks} chunks, data {data}, parameters {weights}, seed {seed}"
        cells.append(Cell(name, config, out / f"{chunks}-{data}-{weights}-{seed}"))
    return cells


def summarise(cells: list[Cell]) -> list[dict[str, Any]]:
    """Mean test accuracies [%] and learned rotation [degrees] of every configuration."""
    rows = []
    summaries = gathered(
        cells,
        lambda cell: "-".join(cell.folder.name.split("-")[:3]),
        lambda cell: read_summary(cell.folder, cell.config),
    )
    for key, done in summaries.items():
        if done:
            rotation = statistics.fmean(summary["psi"]["affine.angle_max [deg]"] for summary in done)
            accuracies = [100 * summary["test_accuracy"] for summary in done]
            chunks, data, weights = key.split("-")
            row: dict[str, Any] = {"chunks": int(chunks), "data": data, "parameters": weights}
            row["test_accuracy"] = round(statistics.fmean(accuracies), 2)
            row["spread"] = round(max(accuracies) - min(accuracies), 2)
            rows.append({**row, "rotation": round(rotation, 1), "seeds": len(done)})
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A square per configuration: accuracy as colour, accuracy and learned rotation as text."""
    title = "Test accuracy by how data and parameters are divided"
    figure, axes = canvas(title, len(SIZES), len(SIZES))
    figure.set_size_inches(11, 4.4)
    values = [row["test_accuracy"] for row in rows]
    low, high = min(values), max(values)
    for ax, chunks in zip(axes, SIZES, strict=True):
        grid = np.full((len(KINDS), len(KINDS)), np.nan)
        for row in rows:
            if row["chunks"] == chunks:
                accuracy = row["test_accuracy"]
                y, x = KINDS.index(row["data"]), KINDS.index(row["parameters"])
                grid[y, x] = accuracy
                text = f"{accuracy:.1f}%\n+-{row['rotation']:.0f} deg"
                colour = "white" if accuracy < (low + high) / 2 else "black"
                ax.text(x, y, text, ha="center", va="center", fontsize=11, color=colour)
        image = ax.imshow(grid, vmin=low, vmax=high, cmap="viridis")
        ax.set_title(f"{chunks} chunks", fontsize=13)
        ax.set_xticks(range(3), KINDS, fontsize=11)
        ax.set_yticks(range(3), KINDS, fontsize=11)
        ax.set_xlabel("parameters mostly in partition", fontsize=11)
    axes[0].set_ylabel("data mostly in chunk", fontsize=11)
    dress_bar(figure.colorbar(image, ax=axes, shrink=0.8), "test accuracy [%]")
    figure.savefig(path)


def main(
    out: Path = Path("runs/sensitivity"),
    figure: Path | None = None,
    config: str = "digits_affine",
    data_dir: str | None = None,
    seeds: int = 2,
    iterations: int = 1000,
    samples: int = 2,
) -> None:
    """A shipped configuration of `fedpart train`; the picture goes to --figure, or into --out."""
    out.mkdir(parents=True, exist_ok=True)
    settings, _ = read_extended(CONFIGS / f"{config}.yaml")
    settings |= {"iterations": iterations, "samples": samples}
    if data_dir:
        settings["data_dir"] = data_dir
    cells = plan(out, settings, seeds)
    CellRunner().complete(cells)
    rows = summarise(cells)
    (out / "sensitivity.json").write_text(json.dumps(rows, indent=2) + "\n")
    draw(rows, figure or out / "sensitivity.png")
    for row in rows:
        tell(**row)


if __name__ == "__main__":
    typer.run(main)
