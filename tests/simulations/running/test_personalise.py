"""fedpart personalise: the network of a finished run, fine-tuned on its clients' examples."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import fedpart, refused
from safetensors.torch import load_file, load_model
from tiny import tiny, tiny_training
from torch import nn

from fedpart import personalise
from fedpart.engines.batches import divided
from simulations.building.experiment import build
from simulations.building.task import load_saved
from simulations.results.personal import ClientGain, Gains
from simulations.running.personalise import Tuning, personalise_run
from simulations.running.run import run_experiment

CONFIG = tiny(rounds=2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("personalise") / "found"
    run_experiment(CONFIG, folder)
    return folder


@pytest.fixture
def found(finished, in_a_folder_of_its_own):
    return Path(shutil.copytree(finished, "found"))


def content(folder="found"):
    return json.loads(Path(folder, "personal.json").read_text())


def test_the_command_is_the_library_on_the_shards_of_the_run(found):
    done = fedpart("personalise", found, "--epochs", "2", "--holdout", "0.3", "--save", "nets")
    assert done.exit_code == 0, done.output
    experiment = build(CONFIG)
    federation = experiment.start()
    federation.load(found / "checkpoint.pt")
    written = {row["client"]: row for row in content()["clients"]}
    shards = {client: shard for client, shard in enumerate(experiment.shards) if len(shard) > 1}
    assert written.keys() == shards.keys()
    for client, shard in shards.items():
        one = personalise(federation, shard, client=client, held_out=0.3, epochs=2)
        row = written[client]
        assert (row["before"], row["after"]) == (one.before, one.after)
        assert (row["examples"], row["held_out"]) == (one.examples, one.held_out)
        assert row["chunk"] == experiment.protocol.chunk(client)
        saved = federation.module()
        load_model(saved, f"nets/client-{client}.safetensors")
        assert all(map(torch.equal, saved.state_dict().values(), one.module.state_dict().values()))
    assert content()["settings"]["holdout"] == 0.3
    assert "The run has trained on the shards" in done.output


def test_the_same_command_gives_the_same_bytes(found):
    for out in ("a", "b"):
        done = fedpart("personalise", found, "--clients", "3", "--out", out, "--save", f"{out}/nets")
        assert done.exit_code == 0, done.output
    for file in ("personal.json", "nets/client-0.safetensors"):
        assert Path("a", file).read_bytes() == Path("b", file).read_bytes()
    assert not (found / "personal.json").exists()
    assert [row["client"] for row in content("a")["clients"]] == [0, 1, 2]


def test_only_what_is_asked_for_moves(found):
    before = load_file(found / "state.safetensors")
    two = ("--client", "4", "--client", "2")
    done = fedpart("personalise", found, *two, "--layers", "classes.*", "--save", "nets")
    assert done.exit_code == 0, done.output
    assert {path.name for path in Path("nets").iterdir()} == {f"client-{k}.safetensors" for k in (2, 4)}
    after = load_file("nets/client-4.safetensors")
    kinds = {name: "psi" if f"psi/{name}" in before else "w" for name in after}
    assert set(kinds.values()) == {"psi", "w"}
    moved = {name for name, kind in kinds.items() if not torch.equal(after[name], before[f"{kind}/{name}"])}
    assert moved == {"classes.weight", "classes.bias"}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fedavg"},
        {"method": "augerino"},
        {"method": "fedex"},
        {"scheme": "node", "defaults": "zeros"},
        {"model": f"{__name__}:normalised"},
    ],
)
def test_weights_and_psi_of_any_federated_run_are_read(changes, tmp_path):
    config = tiny(**{"rounds": 1, "samples": 1, "model": "digits_cnn", **changes})
    run_experiment(config, tmp_path / "found")
    experiment = build(config)
    trained, read = experiment.start(), experiment.start()
    trained.load(tmp_path / "found" / "checkpoint.pt")
    load_saved(read, tmp_path / "found")
    assert all(map(torch.equal, trained.tensors().values(), read.tensors().values()))
    assert torch.equal(trained.psi, read.psi)
    gains = personalise_run(tmp_path / "found", Tuning(clients=[1], epochs=1))
    assert [one.client for one in gains.clients] == [1]


def normalised(num_classes, input_shape):
    """Of its two layers' scales and biases every partition has a copy."""
    features = math.prod(input_shape)
    layers = (nn.LayerNorm(features), nn.Linear(features, 8), nn.LayerNorm(8), nn.Linear(8, num_classes))
    return nn.Sequential(nn.Flatten(), *layers)


@pytest.mark.parametrize("share", [0.3, None])
def test_what_the_run_has_kept_for_evaluations_is_scored_and_no_other_share(share, tmp_path):
    run_experiment(tiny(rounds=1, evaluation="clients", evaluation_share=share), tmp_path / "found")
    refused(fedpart("personalise", tmp_path / "found", "--holdout", "0.7"), "--holdout 0.7", "leave it out")
    done = fedpart("personalise", tmp_path / "found", "--clients", "2", "--epochs", "1")
    assert done.exit_code == 0, done.output
    assert content(str(tmp_path / "found"))["settings"]["holdout"] is None


def test_what_cannot_be_personalised_is_refused(found):
    Path("taken").touch()
    for words, *says in (
        ("--client 6", "numbered 0 to 5, and no client 6"),
        ("--clients 7", "numbered 0 to 5, and no client 6"),
        ("--clients 2 --client 1", "not both"),
        ("--holdout 1", "--holdout is a share between 0 and 1"),
        ("--learning-rate 0", "learning_rate is above 0, got 0.0"),
        ("--layers head.*", "matches the layers 'head.*'"),
        ("--set local.epochs=2", "changes what the run"),
        ("--set device=quantum", "'quantum' cannot be used"),
        ("--save taken", "taken"),
        ("--clients 1 --out taken", "taken", "--out"),
    ):
        refused(fedpart("personalise", found, *words.split()), *says)
    refused(fedpart("personalise", found, "--learning-rate", "1e30"), "lower the learning rate", status=1)
    refused(fedpart("personalise", "nowhere"), "holds no run")
    run_experiment(tiny_training(iterations=2), "centralised")
    refused(fedpart("personalise", "centralised"), "trained in one place", "name a federated run")
    (found / "state.safetensors").write_bytes(b"torn")
    refused(fedpart("personalise", found), "state.safetensors cannot be read")
    (found / "state.safetensors").unlink()
    refused(fedpart("personalise", found), "is not finished", "fedpart run --resume found")
    assert not (found / "personal.json").exists()


def gain(client, held_out, before, after):
    scores = {"nll": 1.0, "accuracy": before}, {"nll": 0.5, "accuracy": after}
    return ClientGain(client, 1, 9, held_out, *scores)


def test_means_are_over_examples_and_shares_over_clients():
    """The mean is what one count of all held-out examples gives."""
    clients = [gain(0, 8, 0.5, 0.75), gain(1, 2, 1.0, 0.5), gain(2, 4, 0.25, 0.25), gain(3, 2, 0.0, 0.5)]
    gains = Gains(clients, [4], {}, "note")
    assert gains.mean("before", "accuracy") == (4 + 2 + 1 + 0) / 16
    assert gains.mean("gain", "accuracy") == (6 + 1 + 1 + 1) / 16 - (4 + 2 + 1 + 0) / 16
    assert gains.mean("gain", "nll") == 0.5, "less loss is a gain"
    assert (gains.share(1), gains.share(-1)) == (0.5, 0.25)
    regression = [replace(one, before={"nll": 1.0}, after={"nll": 2.0}) for one in clients]
    assert Gains(regression, [], {}, "").share(-1) == 1
    assert Gains(regression, [], {}, "").table()


def test_a_run_that_held_examples_out_is_scored_on_these(tmp_path):
    config = tiny(rounds=1, evaluation="clients", evaluation_share=0.4)
    run_experiment(config, tmp_path / "run")
    gains = personalise_run(tmp_path / "run", Tuning(epochs=1))
    experiment = build(config)
    assert "has not trained on" in gains.note
    for one in gains.clients:
        places = divided(experiment.protocol, one.client, len(experiment.shards[one.client]))
        assert (one.examples, one.held_out) == (len(places.learned), len(places.evaluation))
