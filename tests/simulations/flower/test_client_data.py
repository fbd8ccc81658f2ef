"""A client's data in a file: the bits that would be built, while what they are made from is as it was."""

import fcntl
import os
from pathlib import Path

import pytest
import torch
from image_files import image, write_class_folders
from tiny import tiny

import simulations.flower.client_data
from fedpart.data import SPLITS, load_splits
from simulations.building.experiment import build
from simulations.flower.client_data import FILE, ClientExperiment
from simulations.flower.config import build_experiment, deployed_run_config, run_config_of

CLIENT = 3
WAYS = {
    "by label": {},
    "by angle": {"rotated": True, "split": {"recipe": "per_client", "alpha": 0.5, "by": "angle"}},
    "normalised": {"normalise": {"mean": [0.1], "std": [0.3]}},
    "own evaluation": {"evaluation": "clients", "evaluation_share": None, "split": {"recipe": "per_label"}},
}


def assert_same(shard, expected):
    for name in ("inputs", "targets", "groups"):
        mine, theirs = getattr(shard, name), getattr(expected, name)
        assert (mine is None) == (theirs is None)
        assert mine is None or (mine.dtype == theirs.dtype and torch.equal(mine, theirs))
    assert (shard.evaluation is None) == (expected.evaluation is None)
    if shard.evaluation is not None:
        assert_same(shard.evaluation, expected.evaluation)


@pytest.fixture
def builds(monkeypatch):
    """Grows whenever data are built."""
    calls = []

    def counted(config):
        calls.append(config)
        return build(config)

    monkeypatch.setattr(simulations.flower.client_data, "build", counted)
    return calls


@pytest.mark.parametrize("split", WAYS)
def test_what_is_read_is_what_would_be_built(tmp_path, builds, split):
    config = tiny(**WAYS[split])
    expected = build(config)
    for times in (1, 1, 1):
        found = ClientExperiment(config, tmp_path / "kept")
        assert found.protocol.fingerprint == expected.protocol.fingerprint
        assert_same(found.shards[CLIENT], expected.shards[CLIENT])
        assert len(builds) == times
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    another = ClientExperiment(
        config, tmp_path / "kept"
    )  # the one file is for the last client that was asked for
    assert_same(another.shards[CLIENT + 1], expected.shards[CLIENT + 1])
    assert_same(ClientExperiment(config, tmp_path / "kept").shards[CLIENT + 1], expected.shards[CLIENT + 1])
    assert len(builds) == 2
    with pytest.raises(IndexError):
        ClientExperiment(config, tmp_path / "kept").shards[99]


@pytest.mark.parametrize(
    "change",
    [
        {"data_seed": 1},
        {"clients": 7},
        {"training_points": 61},
        {"rotated": True},
        {"rotated": True, "max_angle": 90},
        {"normalise": {"mean": [0.1], "std": [0.3]}},
        {"split": {"alpha": 2.0}},
        {"split": {"alpha": 1.0, "recipe": "iid"}},
        {"data": "input_selection", "model": "mlp", "hyperparameters": {"affine": None}},
    ],
)
def test_another_configuration_is_built(tmp_path, builds, change):
    ClientExperiment(tiny(), tmp_path).shards[CLIENT]
    config = tiny(**change)
    assert_same(ClientExperiment(config, tmp_path).shards[CLIENT], build(config).shards[CLIENT])
    assert len(builds) == 2


def test_what_does_not_decide_the_data_does_not_build_them(tmp_path, builds):
    ClientExperiment(tiny(), tmp_path).shards[CLIENT]
    config = tiny(seed=5, method="fedavg", rounds=9, cohort=2)
    found = ClientExperiment(config, tmp_path)
    found.shards[CLIENT]
    assert found.protocol.fingerprint == build(config).protocol.fingerprint
    assert len(builds) == 1


def test_other_files_are_read_again(tmp_path, builds):
    images, kept = tmp_path / "images", tmp_path / "kept"
    write_class_folders(images, 12, odd=False)
    options = {"data": "image_folder", "data_dir": str(images), "data_options": {"validation": 4, "test": 4}}
    points = {"training_points": 24, "validation_points": None, "test_points": None}
    config = tiny(**options, **points)

    def check(expected_builds):
        assert_same(ClientExperiment(config, kept).shards[CLIENT], build(config).shards[CLIENT])
        assert len(builds) == expected_builds

    check(1)
    check(1)
    for count, file in enumerate(sorted(images.rglob("*.png"))[::12], start=2):
        image((0, 0, 0), 16, 16).save(file)
        check(count)
    time = file.stat()
    os.utime(file, ns=(time.st_atime_ns, time.st_mtime_ns + 1))
    check(5)
    image((9, 9, 9), 16, 16).save(images / "red" / "one_more.png")
    check(6)
    check(6)
    (images / "red" / "one_more.png").unlink()
    check(7)


@pytest.mark.parametrize("part", ["_version", "_code", "_files"])
def test_other_code_and_versions_build_the_data_and_what_cannot_be_known_keeps_nothing(
    tmp_path, builds, monkeypatch, part
):
    ClientExperiment(tiny(), tmp_path / "kept").shards[CLIENT]
    (tmp_path / "new.py").touch()
    if part == "_version":
        monkeypatch.setattr(simulations.flower.client_data, "_version", "{} 99".format)
    elif part == "_code":
        monkeypatch.setattr(simulations.flower.client_data, "_CODE", (tmp_path,))
    else:  # more files than can be looked at
        monkeypatch.setattr(simulations.flower.client_data, "_MOST_FILES", -1)
    for times in (2, 3 if part == "_files" else 2):
        ClientExperiment(tiny(), tmp_path / "kept").shards[CLIENT]
        assert len(builds) == times


def own_data(data_dir=None):
    return load_splits("digits", data_dir)


def own_split(groups, clients, alpha, seed):
    return SPLITS.resolve("iid")(groups, clients, alpha, seed)


@pytest.mark.parametrize(
    "own", [{"data": "test_client_data:own_data"}, {"split": {"recipe": "test_client_data:own_split"}}]
)
def test_what_code_of_the_users_own_makes_is_not_kept(tmp_path, builds, own):
    config = tiny(**own)
    for times in (1, 2):
        assert_same(ClientExperiment(config, tmp_path / "kept").shards[CLIENT], build(config).shards[CLIENT])
        assert len(builds) == times
    assert not (tmp_path / "kept").exists()


def test_data_of_hugging_faces_package_are_kept(tmp_path, builds, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "train.csv"
    text = "\n".join(["a,label", *(f"{i},{i % 2}" for i in range(200))])
    file.write_text(text)
    about = {"data": "hf:csv", "data_dir": str(tmp_path / "data"), "model": "mlp", "hyperparameters": {}}
    points = {f"{part}_points": None for part in ("training", "validation", "test")}
    config = tiny(split={"recipe": "iid"}, **about, **points)
    for _ in range(3):
        shard = ClientExperiment(config, tmp_path / "kept").shards[CLIENT]
        assert len(builds) == 1
    assert_same(shard, build(config).shards[CLIENT])
    file.write_text(text + "\n7,1")
    ClientExperiment(config, tmp_path / "kept").shards[CLIENT]
    assert len(builds) == 2


def test_a_damaged_file_is_made_anew(tmp_path, builds):
    config, file = tiny(training_points=18), tmp_path / FILE
    expected = build(config).shards[CLIENT]
    assert_same(ClientExperiment(config, tmp_path).shards[CLIENT], expected)
    whole = file.read_bytes()
    flips = [bytearray(whole) for _ in range(8)]
    for number, flipped in enumerate(flips):
        flipped[number * len(whole) // 8] ^= 0x10
    cut = [whole[:length] for length in (0, 7, 100, len(whole) - 1)]
    other_facts = whole.replace(b'"num_classes":"10"', b'"num_classes":"11"')
    assert other_facts != whole
    for count, damaged in enumerate([*flips, *cut, whole + b"more", b"{}", other_facts], start=2):
        file.write_bytes(damaged)
        for _ in range(2):
            assert_same(ClientExperiment(config, tmp_path).shards[CLIENT], expected)
            assert len(builds) == count
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", FILE]


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path, builds):
    expected = build(tiny()).shards[CLIENT]
    (tmp_path / "file").touch()
    (tmp_path / "taken" / FILE).mkdir(parents=True)
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "taken", Path("/proc/none")):
        assert_same(ClientExperiment(tiny(), folder).shards[CLIENT], expected)
    assert len(builds) == 4


def test_two_processes_do_not_write_at_the_same_time(tmp_path, builds):
    ClientExperiment(tiny(), tmp_path).shards[CLIENT]
    before = (tmp_path / FILE).read_bytes()
    with (tmp_path / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ClientExperiment(tiny(data_seed=1), tmp_path).shards[CLIENT]
        assert (tmp_path / FILE).read_bytes() == before
    ClientExperiment(tiny(data_seed=1), tmp_path).shards[CLIENT]
    assert (tmp_path / FILE).read_bytes() != before


def test_only_deployed_clients_keep_their_data(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    config = tiny()
    build_experiment(run_config_of(config)).shards[CLIENT]
    build_experiment({"config": "simulations/configs/quickstart.yaml", "out": "", "resume": False}).shards[0]
    assert not (tmp_path / "home").exists()
    run_config = deployed_run_config(config, tmp_path / "out", False)
    for _ in range(2):
        shard = build_experiment(run_config).shards[CLIENT]
        assert_same(shard, build(config).shards[CLIENT])
        assert (tmp_path / "home" / "fedpart" / FILE).exists()
