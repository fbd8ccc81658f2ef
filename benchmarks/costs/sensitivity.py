"""How much the choice of C, of the chunks and of the partitions matters: the paper's App. F.1, and F.2.

For C = 2, 3, 4 the data and the parameters are each given mostly to the first chunk (8 : 1 : ...), evenly, or
mostly to the last. With --retrain a plain network is trained with the psi that each run has found (F.2).
Finished runs are not run again.

    python benchmarks/costs/sensitivity.py --out runs/sensitivity --figure docs/images/sensitivity.png
    python benchmarks/costs/sensitivity.py --config rotmnist_affine --iterations 3000 --samples 4 --retrain
"""

from __future__ import annotations

import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.script import parser, tell
from simulations.config.load import TrainingConfig
from simulations.config.shipped import CONFIGS
from simulations.config.yaml_files import read_extended
from simulations.folders.cell import Cell
from simulations.folders.run_directory import read_summary
from simulations.results.pictures.figures import canvas, dress_bar
from simulations.running.retrain import retraining_config
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


def retrained(cell: Cell) -> Cell:
    """A plain network with the psi of a finished run."""
    folder = cell.folder.with_name(f"{cell.folder.name}-retrained")
    return Cell(f"{cell.name}, retrained", retraining_config(cell.folder, []), folder)


def summarise(cells: list[Cell], again: list[Cell]) -> list[dict[str, Any]]:
    """Mean test accuracies [%] and learned rotation [degrees] of every configuration."""
    rows, anew = [], _summaries(again)
    for key, done in _summaries(cells).items():
        if done:
            rotation = statistics.fmean(summary["psi"]["affine.angle_max [deg]"] for summary in done)
            chunks, data, weights = key.split("-")
            rows.append(
                {"chunks": int(chunks), "data": data, "parameters": weights}
                | _accuracy("test_accuracy", "spread", done)
                | {"rotation": round(rotation, 1), "seeds": len(done)}
                | _accuracy("retrained", "retrained_spread", anew.get(key, []))
            )
    return rows


def _summaries(cells: list[Cell]) -> dict[str, list[dict[str, Any]]]:
    return gathered(
        cells,
        lambda cell: "-".join(cell.folder.name.split("-")[:3]),
        lambda cell: read_summary(cell.folder, cell.config),
    )


def _accuracy(name: str, spread: str, done: list[dict[str, Any]]) -> dict[str, float]:
    """Mean and spread of the test accuracy; nothing of no runs."""
    found = [100 * summary["test_accuracy"] for summary in done]
    if not found:
        return {}
    return {name: round(statistics.fmean(found), 2), spread: round(max(found) - min(found), 2)}


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
                if "retrained" in row:
                    text += f"\nanew {row['retrained']:.1f}%"
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


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--out", type=Path, default=Path("runs/sensitivity"))
    asked.add_argument("--figure", type=Path, help="where the picture goes; in --out if not given")
    asked.add_argument("--config", default="digits_affine", help="a shipped configuration of fedpart train")
    asked.add_argument("--data-dir", help="in place of the configuration's data_dir")
    asked.add_argument("--retrain", action="store_true", help="train plain networks with what was found")
    asked.add_argument("--seeds", type=int, default=2)
    asked.add_argument("--iterations", type=int, default=1000)
    asked.add_argument("--samples", type=int, default=2)
    given = asked.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    settings, _ = read_extended(CONFIGS / f"{given.config}.yaml")
    settings |= {"iterations": given.iterations, "samples": given.samples}
    if given.data_dir:
        settings["data_dir"] = given.data_dir
    cells, again = plan(given.out, settings, given.seeds), list[Cell]()
    runner = CellRunner()
    runner.complete(cells)
    if given.retrain:
        again = [retrained(cell) for cell in cells if cell.finished()]
        runner.complete(again)
    rows = summarise(cells, again)
    (given.out / "sensitivity.json").write_text(json.dumps(rows, indent=2) + "\n")
    draw(rows, given.figure or given.out / "sensitivity.png")
    for row in rows:
        tell(**row)


if __name__ == "__main__":
    main()
