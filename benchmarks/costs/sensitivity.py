"""How much the choice of C, of the chunks and of the partitions matters: the paper's App. F.1 on the digits.

For C = 2, 3, 4 the data and the parameters are each given mostly to the first chunk (8 : 1 : ...), evenly, or
mostly to the last. Finished runs are not run again.

    python benchmarks/costs/sensitivity.py --out runs/sensitivity --figure docs/images/sensitivity.png
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from benchmarks.script import parser, tell
from simulations.config.load import TrainingConfig
from simulations.config.yaml_files import read_yaml
from simulations.folders.cell import Cell
from simulations.folders.run_directory import read_summary
from simulations.pictures.figures import DPI
from simulations.sweeps.cell_runner import CellRunner

CONFIG = Path(__file__).parents[2] / "simulations" / "configs" / "digits_affine.yaml"
KINDS = ("first", "even", "last")
SIZES = (2, 3, 4)


def proportions(chunks: int, kind: str) -> list[float]:
    """8 : 1 : ... : 1, all the same, or 1 : ... : 1 : 8."""
    weights = [1.0] * chunks
    if kind != "even":
        weights[0 if kind == "first" else -1] = 8.0
    return [weight / sum(weights) for weight in weights]


def plan(out: Path, seeds: int, overrides: dict[str, int]) -> list[Cell]:
    """A run for every C, kind of chunks, kind of partitions, and seed."""
    cells = []
    for chunks in SIZES:
        for data in KINDS:
            for weights in KINDS:
                for seed in range(seeds):
                    changes = {
                        "chunks": proportions(chunks, data),
                        "parameters": proportions(chunks, weights),
                        "seed": seed,
                    }
                    config = TrainingConfig.from_dict({**read_yaml(CONFIG), **overrides, **changes})
                    name = f"{chunks} chunks, data {data}, parameters {weights}, seed {seed}"
                    cells.append(Cell(name, config, out / f"{chunks}-{data}-{weights}-{seed}"))
    return cells


def summarise(out: Path, cells: list[Cell], seeds: int) -> list[dict[str, object]]:
    """Mean test accuracy [%] and learned rotation [degrees] of every configuration."""
    rows: list[dict[str, object]] = []
    for i in range(0, len(cells), seeds):
        own = cells[i : i + seeds]
        found = [read_summary(cell.folder, cell.config) for cell in own]
        done = [summary for summary in found if summary is not None]
        if not done:
            continue
        chunks, data, weights, _ = own[0].folder.name.split("-")
        accuracy = [100 * summary["test_accuracy"] for summary in done]
        rows.append(
            {
                "chunks": int(chunks),
                "data": data,
                "parameters": weights,
                "test_accuracy": round(statistics.fmean(accuracy), 2),
                "spread": round(max(accuracy) - min(accuracy), 2),
                "rotation": round(
                    statistics.fmean(summary["psi"]["affine.angle_max [deg]"] for summary in done), 1
                ),
                "seeds": len(done),
            }
        )
    (out / "sensitivity.json").write_text(json.dumps(rows, indent=2) + "\n")
    return rows


def draw(rows: list[dict[str, object]], path: Path) -> None:
    """A square per configuration: accuracy as colour, accuracy and learned rotation as text."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), dpi=DPI, layout="constrained")
    figure.suptitle("Rotated digits: test accuracy by how data and parameters are divided", fontsize=14)
    axes = figure.subplots(1, len(SIZES))
    values = [float(str(row["test_accuracy"])) for row in rows]
    for ax, chunks in zip(axes, SIZES, strict=True):
        own = {(row["data"], row["parameters"]): row for row in rows if row["chunks"] == chunks}
        grid = [
            [float(str(own[d, w]["test_accuracy"])) if (d, w) in own else float("nan") for w in KINDS]
            for d in KINDS
        ]
        image = ax.imshow(grid, vmin=min(values), vmax=max(values), cmap="viridis")
        for y, data in enumerate(KINDS):
            for x, weights in enumerate(KINDS):
                row = own.get((data, weights))
                if row is not None:
                    dark = float(str(row["test_accuracy"])) < (min(values) + max(values)) / 2
                    text = f"{row['test_accuracy']:.1f}%\n+-{row['rotation']:.0f} deg"
                    ax.text(
                        x, y, text, ha="center", va="center", fontsize=11, color="white" if dark else "black"
                    )
        ax.set_title(f"{chunks} chunks", fontsize=13)
        ax.set_xticks(range(3), KINDS, fontsize=11)
        ax.set_yticks(range(3), KINDS, fontsize=11)
        ax.set_xlabel("parameters mostly in partition", fontsize=11)
        if ax is axes[0]:
            ax.set_ylabel("data mostly in chunk", fontsize=11)
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("test accuracy [%]", fontsize=11)
    figure.savefig(path)


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--out", type=Path, default=Path("runs/sensitivity"))
    asked.add_argument("--figure", type=Path, help="where the picture goes; in --out if not given")
    asked.add_argument("--seeds", type=int, default=2)
    asked.add_argument("--iterations", type=int, default=1000)
    asked.add_argument("--samples", type=int, default=2)
    given = asked.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    cells = plan(given.out, given.seeds, {"iterations": given.iterations, "samples": given.samples})
    CellRunner().complete(cells)
    rows = summarise(given.out, cells, given.seeds)
    draw(rows, given.figure or given.out / "sensitivity.png")
    for row in rows:
        tell(row)


if __name__ == "__main__":
    main()
