"""Every shipped configuration runs: two rounds, or some iterations, on few images.

Data sets are the real ones where they are, and stand-ins of the same shape, with a warning, elsewhere.
"""

import functools
import json
import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from hub import written
from places import CONFIGS, DATA, EXPERIMENTS
from safetensors.torch import load_file

from fedpart import AffineAugmentation
from fedpart.data import Dataset, Splits, load_splits
from fedpart.kernels.convolution import on_vectors
from simulations.building import data as building
from simulations.config.load import ExperimentConfig, TrainingConfig, kind_of, load_config
from simulations.config.yaml_files import read_extended
from simulations.folders.run_directory import read_metrics, saved_config
from simulations.pretraining.resnet import pretrain_resnet
from simulations.pretraining.text import pretrain_text
from simulations.running.run import run_experiment
from simulations.sweeps.select import run_selection

SIZES = "_1250", "_5000"  # of Table 4; on few images each is its "_full"
FILES = [path for path in EXPERIMENTS if path.parent.name != "shared" and not path.stem.endswith(SIZES)]
SMALL = ["samples=1", "training_points=32", "validation_points=16", "test_points=16"]


@functools.cache
def splits_of(name, options):
    """The data set, once for all configurations."""
    if name.startswith("hf:"):
        datasets = pytest.importorskip("datasets")
        with pytest.MonkeyPatch.context() as patch:
            info = SimpleNamespace(download_size=None, dataset_size=1000)
            table = datasets.DatasetDict({"train": written(200, writers=4)})
            patch.setattr(datasets, "load_dataset", lambda *_, **__: table)
            patch.setattr(datasets, "load_dataset_builder", lambda *_, **__: SimpleNamespace(info=info))
            return load_splits(name, **{**json.loads(options), "examples": 200})
    pattern = {"mnist": "MNIST/raw", "cifar10": "cifar*10*"}.get(name)
    if pattern is None or list(DATA.glob(pattern)):
        return load_splits(name, str(DATA), **json.loads(options))
    warnings.warn(f"{name} is not in {DATA} (set FEDPART_DATA_DIR): a stand-in is used.", stacklevel=2)
    if name == "mnist":
        return load_splits("digits", **json.loads(options))
    images = torch.rand(200, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    part = Dataset(images, torch.arange(200) % 10)
    return Splits(part, part, part, num_classes=10)


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch):
    def load(name, data_dir, *, data_seed, **options):
        return splits_of(name, json.dumps(options))

    monkeypatch.setattr(building.data, "load_splits", load)


def weights_of(model, folder):
    """What the model starts from, after a step of pretraining."""
    if model == "frozen_resnet":
        digits = load_splits("digits", classes=[0, 1])
        few = Splits(digits.train.subset(range(8)), digits.validation, digits.test, 2)
        torch.save(pretrain_resnet(few, batch_size=8).state_dict(), folder / "resnet.pt")
        return folder / "resnet.pt"
    pretrain_text(steps=1, batch_size=2, texts=2).save_pretrained(folder / "text")
    return folder / "text"


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS).with_suffix("")))
def test_it_runs(path, tmp_path, monkeypatch):
    data, _ = read_extended(path)
    if path.stem == "mnist_ensemble":  # kernels of three widths take long to compile
        monkeypatch.setattr(on_vectors, "computes", lambda *_: False)
    if data.get("model") == "resnet9":
        settings = [*SMALL, "model_options={width: 32}"]  # of 64: a quarter of the parameters
    elif path.stem == "cifar_ensemble":  # of depth 22, and four times
        settings = [*SMALL, "model_options.members=[{model: wrn, depth: 10, width: 1, times: 2}]"]
    elif "weights" in data.get("model_options", {}):
        settings = [*SMALL, f"model_options.weights={weights_of(data['model'], tmp_path)}"]
    else:
        settings = SMALL
    if data.get("data_options", {}).get("validation") == 0:  # nothing is held out
        settings = [*settings, "validation_points=null"]
    if kind_of(data) is ExperimentConfig:
        few = ["rounds=2", "clients=4", "cohort=2", "evaluate_every=1", "engine=local"]
        config = load_config(path, [*settings, *few])
        summary = run_experiment(config, tmp_path / "run")
        assert summary["rounds"] == len(read_metrics(tmp_path / "run")) == 2
    else:
        few = ["iterations=4", "batch_size=8", "evaluate_every=2"]
        config = load_config(path, [*settings, *few], TrainingConfig)
        if config.select is not None:
            run_selection(config, tmp_path / "selection")
            assert (tmp_path / "selection" / "summary.json").exists()
            return
        summary = run_experiment(config, tmp_path / "run")
    assert saved_config(tmp_path / "run").precision in ("fp32", "bf16")  # auto has been settled
    assert 0 <= summary["test_accuracy"] <= 1
    assert all(math.isfinite(value) for value in summary["psi"].values())


@pytest.mark.parametrize("name", ["mnist_1k_rotated", "table4/rotmnist_1250", "quickstart"])
def test_of_rotated_digits_only_the_rotation_starts_wide(name):
    """Families order their components differently, and a list of numbers has no names."""
    affine = load_config(CONFIGS / f"{name}.yaml").hyperparameters.affine
    assert affine is not None and isinstance(affine.initial, list)
    transform = AffineAugmentation(**affine.model_dump())
    assert transform.physical()["angle_max [deg]"] == pytest.approx(math.degrees(max(affine.initial)))
    assert sorted(transform.widths().tolist())[-2] <= 0.2 + 1e-6 < transform.widths().max()


@pytest.mark.slow
def test_table3_with_a_validation_set(tmp_path):
    """Both methods have the same psi: 13 convolutions of 3x3, a shortcut, and norms."""
    path = CONFIGS / "feature_extractor.yaml"
    few = [*SMALL, "iterations=2", "batch_size=8", "evaluate_every=2"]
    config = load_config(path, [*few, "method=validation", "chunks=[0.9,0.1]"], TrainingConfig)
    run_experiment(config, tmp_path / "run")
    saved = load_file(tmp_path / "run" / "state.safetensors")
    assert sum(tensor.numel() for name, tensor in saved.items() if name.startswith("psi/")) == 66_000
    learned = load_config(path, few, TrainingConfig)
    assert (learned.hyperparameters, learned.optimiser) == (config.hyperparameters, config.optimiser)


def test_table4_is_complete():
    """4 data sets x 3 sizes, with the settings of App. J.2."""
    cells = {path.stem: load_config(path) for path in (CONFIGS / "table4").glob("*.yaml")}
    wanted = [f"{rot}{data}_{points}" for rot in ("", "rot") for data in ("mnist", "cifar10")
              for points in ("1250", "5000", "full")]  # fmt: skip
    assert sorted(cells) == sorted(wanted)
    for name, config in cells.items():
        data, _, points = name.removeprefix("rot").partition("_")
        assert (config.data, config.rotated) == (data, name.startswith("rot"))
        assert config.training_points == (None if points == "full" else int(points))
        assert (config.validation_points, config.test_points) == (None, None)
        assert (config.clients, config.samples, config.local.epochs) == (100, 10, 1)
        skew = (config.split.by, config.split.alpha)
        dropout = config.hyperparameters.dropout
        assert dropout is not None and dropout.rate == 0.1
        found = (config.rounds, config.chunks, config.local.learning_rate, config.local.batch_size,
                 config.local.psi_batch, config.server.learning_rate, config.server.eps,
                 config.server_psi.learning_rate, skew)  # fmt: skip
        label = "angle" if config.rotated else "label"
        if data == "mnist":
            paper = (2000, (0.7, 0.2, 0.1), 5e-2, 64, "shard", 1e-3, 1e-8, 3e-3, (label, 0.1))
        else:
            alpha = 0.1 if config.rotated else 1.0
            paper = (5000, (0.9, 0.1), 10**-0.5, 32, 32, 1e-2, 1e-7, 1e-3, (label, alpha))
            assert config.settings().server_psi.eps == 1e-7
        assert found == paper
        size = {"training_points", "published"}
        whole = cells[name.replace(points, "full")]
        assert config.model_dump(exclude=size) == whole.model_dump(exclude=size)
