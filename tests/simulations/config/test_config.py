"""Configurations: a complete resolved form, what a file extends, shipped files, the terms of the library."""

import json
import math
import sys
from pathlib import Path

import pytest
import yaml
from places import EXPERIMENTS

from fedpart import (
    AdamSettings,
    AdamWSettings,
    FederationSettings,
    LocalSettings,
    SGDSettings,
    TrainingSettings,
)
from simulations.config.keys import keys_of
from simulations.config.load import ExperimentConfig, TrainingConfig, kind_of, load_config
from simulations.config.sections import LocalSection
from simulations.config.yaml_files import CONFIGS, read_extended


def test_settings_are_yaml_and_reach_into_sections(tmp_path, monkeypatch):
    path = tmp_path / "my.yaml"
    path.write_text("hyperparameters: {affine: null}\nserver: {eps: 1e-7}\n")
    monkeypatch.chdir(tmp_path)
    config = load_config(
        path,
        ["chunks=[0.9, 0.1]", "server.learning_rate=1e-2", "hyperparameters.affine.family=augerino",
         "method_options.augerino.safe=false", "training_points=null", "data_dir=folder", "psi_from=found",
         "devices=trace.csv"],
    )  # fmt: skip
    assert config.chunks == (0.9, 0.1)
    assert (config.server.learning_rate, config.server.eps) == (0.01, 1e-7)
    assert config.settings().server_psi == AdamSettings(3e-3, eps=1e-7)  # psi's own rate, the server's eps
    assert config.hyperparameters.affine is not None
    assert config.hyperparameters.affine.family == "augerino"
    assert config.method_options == {"augerino": {"safe": False}}
    found = [config.data_dir, config.psi_from, config.devices]  # from other folders too
    assert found == [str(tmp_path / name) for name in ("folder", "found", "trace.csv")]
    path.write_text("")
    assert load_config(path) == ExperimentConfig()
    assert config.settings().method_options == {}  # those of the method that runs


def test_numbers_without_a_point_are_numbers(tmp_path):
    """YAML 1.1 has 1e-3 for text, which a method's options would take as such."""
    path = tmp_path / "a.yaml"
    path.write_text("method: augerino\nmethod_options: {augerino: {weight: 1e-3, limit: 1E1}}\n")
    options = load_config(path, ["server.learning_rate=2e-2"])
    assert options.method_options["augerino"] == {"weight": 0.001, "limit": 10.0}
    assert options.server.learning_rate == 0.02
    path.write_text("model_options: {name: e5, other: 1e, hex: 12e3f}\n")
    assert load_config(path).model_options == {"name": "e5", "other": "1e", "hex": "12e3f"}


def test_null_is_a_value_where_a_key_has_another_default():
    own = ExperimentConfig.from_dict({"evaluation": "clients", "evaluation_share": None}).settings()
    assert own.evaluation_share is None
    assert ExperimentConfig().processes == 1
    assert ExperimentConfig.from_dict({"engine": "ray"}).processes is None


def test_numbered_keys_survive_the_run_config_of_flower():
    capped = ExperimentConfig.from_dict({"caps": {3: 0.6, 1: 0.4}})
    again = ExperimentConfig.from_dict(json.loads(json.dumps(capped.resolved())))
    assert again == capped and again.settings().caps == {1: 0.4, 3: 0.6}


def test_a_file_is_laid_over_the_one_that_it_extends(tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "all.yaml").write_text(
        "rounds: 7\nchunks: [0.5, 0.3, 0.2]\nserver: {eps: 1e-7, learning_rate: 0.1}\n"
        "hyperparameters: {affine: {family: lila, initial: 0.1}}\n"
    )
    (tmp_path / "shared" / "mine.yaml").write_text("extends: all.yaml\nserver: {learning_rate: 0.2}\n")
    (tmp_path / "cell.yaml").write_text(
        "extends: shared/mine.yaml\nchunks: [0.9, 0.1]\n"
        "hyperparameters: {dropout: null, affine: {initial: 0.3}}\n"
    )
    monkeypatch.chdir(tmp_path / "shared")
    config = load_config(tmp_path / "cell.yaml", ["rounds=8"])
    assert (config.rounds, config.chunks) == (8, (0.9, 0.1))
    assert (config.server.eps, config.server.learning_rate) == (1e-7, 0.2)
    affine = config.hyperparameters.affine
    assert affine is not None and (affine.family, affine.initial) == ("lila", 0.3)
    assert config.hyperparameters.dropout is None
    assert "extends" not in config.resolved()


def test_a_file_is_laid_over_several_and_over_shipped_ones(tmp_path):
    (tmp_path / "mine.yaml").write_text("rounds: 7\nserver_psi: {learning_rate: 0.5}\nsamples: 2\n")
    file = tmp_path / "cell.yaml"
    file.write_text("extends: [quickstart.yaml, mine.yaml, recommended.yaml]\nsamples: 5\n")
    config, plain = load_config(file), load_config(CONFIGS / "quickstart.yaml")
    psi = config.settings().server_psi
    assert (config.rounds, config.samples, psi.learning_rate) == (7, 5, 0.5)
    assert config.stratified and psi.hypergradient > 0 and config.local == plain.local
    assert not plain.stratified and plain.settings().server_psi.hypergradient == 0
    for name in ("one", "two"):  # of one base, which is no circle
        (tmp_path / f"{name}.yaml").write_text(f"extends: mine.yaml\nseed: {len(name)}\n")
    file.write_text("extends: [quickstart.yaml, one.yaml, two.yaml]\n")
    assert load_config(file).rounds == 7


def test_a_file_beside_the_configuration_is_found_from_anywhere(tmp_path, monkeypatch):
    """In place of one of that name in the current folder, and in whatever process has the keys alone."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    code = "def build(num_classes, input_shape):\n    pass\n"
    for folder in ("mine", "base", "here"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mine" / "netbeside.py").write_text(code)
    (tmp_path / "base" / "netbase.py").write_text(code)
    (tmp_path / "base" / "all.yaml").write_text("model: netbase:build\n")
    (tmp_path / "mine" / "my.yaml").write_text("extends: ../base/all.yaml\nmodel: netbeside:build\n")
    monkeypatch.chdir(tmp_path / "here")
    config = load_config(Path("../mine/my.yaml"))
    assert config.code_dir == str(tmp_path / "mine")
    assert load_config(Path("../mine/my.yaml"), ["model=digits_cnn"]).code_dir is None  # names nothing there
    extended = load_config(Path("../mine/my.yaml"), ["model=netbase:build"])  # beside a file that it extends
    assert extended.code_dir == str(tmp_path / "base")

    monkeypatch.setattr(sys, "path", [place for place in sys.path if str(tmp_path) not in place])
    monkeypatch.delitem(sys.modules, "netbeside")
    assert ExperimentConfig.from_dict(config.resolved()) == config


def test_short_forms_of_transforms():
    short = ExperimentConfig.from_dict({"hyperparameters": "my_package.blur:Blur"}).hyperparameters
    assert short.affine is None
    assert [entry.use for entry in short.transforms] == ["my_package.blur:Blur"]
    built_in = ExperimentConfig.from_dict({"hyperparameters": ["colour", "cutout"]}).hyperparameters
    assert [entry.use for entry in built_in.transforms] == ["colour", "cutout"]
    listed = ExperimentConfig.from_dict({"hyperparameters": {"transforms": ["a:B", {"use": "c:D"}]}})
    assert [entry.use for entry in listed.hyperparameters.transforms] == ["a:B", "c:D"]
    assert listed.hyperparameters.affine is None


def test_only_the_hyperparameters_that_are_written_are_on(tmp_path):
    def on(text, *overrides):
        (tmp_path / "my.yaml").write_text(text)
        found = load_config(tmp_path / "my.yaml", overrides).hyperparameters
        return {kind for kind, value in found.model_dump().items() if value}

    assert on("rounds: 2") == {"affine", "dropout"}  # what a configuration has that says nothing of it
    assert on("hyperparameters: {}") == set()
    assert on("hyperparameters: {dropout: {}}") == {"dropout"}
    assert on("hyperparameters: {affine: {family: minmax}}") == {"affine"}
    assert on("hyperparameters: {mask: {}, learn_dropout: true}") == {"mask", "learn_dropout"}
    assert on("hyperparameters: {affine: null, dropout: {}}") == {"dropout"}
    # A setting changes one key, and leaves on what is on.
    one = "hyperparameters.affine.family=minmax"
    assert on("rounds: 2", one) == {"affine", "dropout"}
    assert on("rounds: 2", "hyperparameters.affine=null") == {"dropout"}
    assert on("hyperparameters: {dropout: {rate: 0.3}}", one) == {"affine", "dropout"}
    assert on("hyperparameters: {}", one) == {"affine"}
    assert on("rounds: 2", "hyperparameters={}") == set()
    # In a file as in one that it extends, what one of both writes is on.
    (tmp_path / "base.yaml").write_text("rounds: 2")
    assert on("extends: base.yaml\nhyperparameters: {dropout: {}}") == {"dropout"}
    (tmp_path / "base.yaml").write_text("hyperparameters: {affine: {}}")
    assert on("extends: base.yaml\nhyperparameters: {dropout: {}}") == {"affine", "dropout"}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_shipped_configurations_load_and_survive_the_round_trip(path):
    kind = kind_of(read_extended(path)[0])
    config = load_config(path, kind=kind)
    text = yaml.safe_dump(config.resolved())
    again = kind.from_dict(yaml.safe_load(text))
    assert again == config
    assert again.hash() == config.hash()
    assert set(config.resolved()) == set(kind.model_fields)
    assert math.isclose(sum(config.chunks), 1)


def test_hashes_tell_what_decides_the_result_and_nothing_else():
    base = ExperimentConfig()

    def hashes(**changes):
        other = ExperimentConfig.from_dict({**base.resolved(), **changes})
        return other.hash() == base.hash(), other.identity() == base.identity()

    assert hashes(engine="ray", workers=2, data_dir="/elsewhere", checkpoint_every=3) == (True, True)
    assert hashes(device="cuda", on_client_error="skip", min_replies=2) == (True, True)
    assert hashes(rounds=3) == (False, True)
    assert hashes(seed=3) == (False, True)  # the protocol knows the seed by itself
    assert hashes(data_seed=3) == (False, False)
    assert hashes(training_points=300) == (False, False)
    assert hashes(likelihood_options={"temperature": 2.0}) == (False, False)
    assert hashes(likelihood="multilabel") == (False, False)
    selecting = TrainingConfig.from_dict({"select": {"values": [1, 2]}})
    assert selecting.hash() == TrainingConfig().hash() != TrainingConfig.from_dict({"iterations": 3}).hash()
    with pytest.raises(ValueError, match="frozen"):  # or a hash would tell of what is no more
        base.rounds = 3


def test_what_decides_the_course_of_a_run_is_told_apart_from_what_decides_nothing():
    course = {"device", "engine", "min_replies", "on_client_error", "execution"}
    nothing = {
        *("beside", "checkpoint_every", "code_dir", "data_dir", "loggers", "node_timeout", "published"),
        *("round_timeout", "search", "workers"),
    }
    config = ExperimentConfig()
    assert config.deciding("course").keys() == course
    assert config.deciding("nothing").keys() == nothing
    assert config.deciding("numbers").keys() == config.resolved().keys() - course - nothing
    assert TrainingConfig().deciding("nothing").keys() == {
        *("checkpoint_every", "code_dir", "data_dir", "loggers", "search", "select")
    }


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (ExperimentConfig, FederationSettings),
        (TrainingConfig, TrainingSettings),
        (LocalSection, LocalSettings),
    ],
)
def test_a_setting_is_the_same_in_yaml_and_python(config, settings):
    """Default, range, meaning and what it decides; apart from what YAML groups in another way."""
    grouped = {
        "method_options",
        "optimiser",
        "optimiser_psi",
        "on_client_error",
        "server",
        "server_psi",
        "local",
    }
    fields = keys_of(settings)
    shared = fields.keys() & config.model_fields.keys() - grouped
    assert len(shared) >= 6
    for name in shared:
        here, there = config.model_fields[name], fields[name]
        assert (here.default, here.metadata, here.description) == (
            *(there.default, there.metadata, there.description),
        ), name
        assert here.json_schema_extra == there.json_schema_extra, name
    assert config().settings() == settings()


def test_optimisers_in_the_librarys_terms():
    config = TrainingConfig.from_dict(
        {
            "optimiser": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
            "optimiser_psi": {"learning_rate": 0.2},
            "schedule": "cosine",
            "schedule_iterations": 7,
            "method_options": {"augerino": {"safe": False}, "partitioned": {}},
        }
    )
    settings = config.settings()
    assert settings.optimiser == SGDSettings(0.1, 0.9)
    assert settings.optimiser_psi == AdamSettings(0.2)
    assert (settings.weight_decay, settings.decay_scaling) == (1e-4, "reciprocal")
    assert (settings.schedule, settings.schedule_iterations) == ("cosine", 7)
    assert settings.method_options == {}  # those of the method that runs
    assert TrainingConfig().settings().optimiser == AdamSettings(1e-3)
    adamw = TrainingConfig.from_dict({"optimiser": {"name": "adamw"}}).settings()
    assert adamw.optimiser == AdamWSettings(1e-3)
    assert TrainingConfig().settings().chunks == (0.8, 0.1, 0.1)
