"""Draws docs/images/centres.png: where psi's gradient points while free centres of affine ranges drift.

for seed in 0 1 2; do python docs/images/centres.py runs/centres $seed; done
python docs/images/centres.py runs/centres

With a seed it runs the default experiment's problem on upright digits, the ranges as centres and half-widths. Of every round's psi gradient, as the server averages it, it keeps the part along the centres' drift, the parts across it (six
directions), and the part along the change of the half-widths. Drifts are those of the first half, so that the second half
has had no say in the directions.
"""  # noqa: E501

import sys
from pathlib import Path

import matplotlib
import numpy as np

from fedpart.engines import LocalEngine
from fedpart.training.result import remarks_on
from simulations.building.experiment import build
from simulations.config.load import load_config

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROUNDS, WINDOW = 100, 25
SETTINGS = [
    "rotated=false", "hyperparameters.affine={family: centred, initial: 0.05}", "engine=local",
    "execution=fused", "local.batch_size=1000", "server_psi.learning_rate=0.01", f"rounds={ROUNDS}",
]  # fmt: skip
SHOWN = {"along the drift": "#c44e52", "across the drift": "#8a8a8a", "along the half-widths": "#1f6fb4"}


def observe(file: Path, seed: int) -> None:
    """Write descent directions [rounds, 2, 7] (NaN: none), ranges [rounds + 1, 2, 7] and the accuracy."""
    config = load_config(
        "simulations/configs/quickstart.yaml", [*SETTINGS, f"seed={seed}", f"data_seed={seed}"]
    )
    experiment = build(config)
    federation, method = experiment.start(), experiment.protocol.method
    gradients, combine = [], method.combine

    def watched(state, total) -> None:
        found = np.full(14, np.nan) if total.psi is None else (-total.psi[:14] / total.psi_weight).numpy()
        gradients.append(found.reshape(2, 7))
        combine(state, total)

    method.combine = watched
    ranges = [federation.psi[:14].numpy().reshape(2, 7).copy()]
    assert federation.task.psi_names[0] == "affine.range"
    with LocalEngine(federation, experiment.shards, 1, "fused", 1) as engine:
        engine.run(ROUNDS, lambda _: ranges.append(federation.psi[:14].numpy().reshape(2, 7).copy()))
    print(*remarks_on(federation))
    accuracy = federation.validated(experiment.validation)["val_accuracy"]
    np.savez(file, gradients=np.array(gradients), ranges=np.array(ranges), accuracy=accuracy)


def parts(gradients: np.ndarray, ranges: np.ndarray) -> dict[str, np.ndarray]:
    """Of every round's descent direction its parts, [rounds, directions]."""
    centre, half = ranges[ROUNDS // 2] - ranges[0]
    basis = np.linalg.svd(centre[None])[2]  # the first row is the drift's direction, up to its sign
    basis[0] *= np.sign(basis[0] @ centre)
    centres = gradients[:, 0] @ basis.T
    widths = gradients[:, 1] @ half / np.linalg.norm(half)
    return dict(zip(SHOWN, (centres[:, :1], centres[:, 1:], widths[:, None]), strict=True))


def ratio(part: np.ndarray) -> np.ndarray:
    """Mean over its standard error, [directions], of the rounds that have a gradient."""
    known = part[~np.isnan(part[:, 0])]
    return known.mean(0) / known.std(0, ddof=1) * len(known) ** 0.5


def size(values: np.ndarray) -> np.ndarray:
    """Of one direction itself, of several the root of the mean square."""
    return values[..., 0] if values.shape[-1] == 1 else np.sqrt((values**2).mean(-1))


folder = Path(sys.argv[1])
if len(sys.argv) > 2:
    folder.mkdir(parents=True, exist_ok=True)
    observe(folder / f"{sys.argv[2]}.npz", int(sys.argv[2]))
    sys.exit()
files = sorted(folder.glob("*.npz"))
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained", dpi=110)
for file in files:
    gradients, ranges, accuracy = np.load(file).values()
    moved = ranges[[ROUNDS // 2, -1], 0] - ranges[0, 0]
    half, whole = np.linalg.norm(moved, axis=1)
    print(f"seed {file.stem}: accuracy {accuracy:.3f}; drift by half {half:.3f}, "
          f"by the end along it {moved[1] @ moved[0] / half:.3f}, in all {whole:.3f}; "
          f"half-widths at most {abs(ranges[-1, 1]).max():.2f} at the end")  # fmt: skip
    for name, part in parts(gradients, ranges).items():
        halves = [float(size(ratio(one))) for one in np.array_split(part, 2)]
        print(f"  {name}: mean over its standard error {halves[0]:+.1f}, then {halves[1]:+.1f}")
        label = f"{name}{' (rms of six)' if part.shape[1] > 1 else ''}" if file == files[0] else None
        left.plot(size(np.nancumsum(part, axis=0)), color=SHOWN[name], linewidth=1, label=label)
        ratios = [float(size(ratio(part[end - WINDOW : end]))) for end in range(WINDOW, ROUNDS + 1)]
        right.plot(range(WINDOW, ROUNDS + 1), ratios, color=SHOWN[name], linewidth=1, label=label)
for axes in (left, right):
    axes.axvline(ROUNDS / 2, color="#444444", linestyle=":", linewidth=1)
    axes.axhline(0, color="#444444", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
left.set(xlabel="round", ylabel="sum of minus psi's gradient [nats]", title="Sums, a line a seed")
right.set(xlabel="round", ylabel="mean / its standard error", title=f"Signal to noise, {WINDOW} rounds")
left.set_ylim(top=1.4 * left.get_ylim()[1])
left.legend(fontsize=8, frameon=False, loc="upper left")
figure.savefig(Path(__file__).with_suffix(".png"))
