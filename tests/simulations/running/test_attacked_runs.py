"""Runs with hostile clients: who they are, that their lies arrive, and what defends against them."""

import json

import pytest
import torch
from tiny import tiny

from simulations.attacks import ATTACKS
from simulations.building.experiment import build
from simulations.config.load import load_config
from simulations.config.yaml_files import shipped
from simulations.errors import ConfigError
from simulations.flower.config import read_run_config, run_config_of
from simulations.folders.run_directory import read_metrics
from simulations.running.hostile import hostile_clients
from simulations.running.run import run_experiment

pytestmark = pytest.mark.slow

EVEN = {"weighting": "uniform", "clients": 12, "cohort": 12, "chunks": [0.5, 0.5], "rounds": 2}


def run(folder, **changes):
    return run_experiment(tiny(**{**EVEN, **changes}), folder)


def weights(folder):
    found = torch.load(folder / "checkpoint.pt", weights_only=True)
    return found["w"], found["psi"]


def test_hostile_clients_are_a_share_drawn_by_the_seed():
    protocol = build(tiny(**EVEN)).protocol
    for share, count in ((0.05, 1), (0.25, 3), (0.5, 6)):
        hostile = hostile_clients(protocol, ATTACKS.make("sign", {}), share)
        assert len(hostile) == count and hostile <= set(range(12))
        assert hostile == hostile_clients(protocol, ATTACKS.make("sign", {}), share)
    protocols = (build(tiny(**EVEN, seed=seed)).protocol for seed in range(5))
    assert len({hostile_clients(own, ATTACKS.make("sign", {}), 0.25) for own in protocols}) > 1
    of_psi = hostile_clients(protocol, ATTACKS.make("psi", {}), 0.5)
    assert len(of_psi) == 3 and all(protocol.chunk(client) == 2 for client in of_psi)


def test_an_attack_that_changes_nothing_is_the_run_without_it(tmp_path):
    run(tmp_path / "plain")
    run(tmp_path / "attacked", attack={"kind": "scale", "share": 0.5, "options": {"scale": 1.0}})
    for mine, theirs in zip(weights(tmp_path / "plain"), weights(tmp_path / "attacked"), strict=True):
        assert torch.equal(mine, theirs)


def test_an_attack_that_comes_once_leaves_the_other_rounds_alone(tmp_path):
    """All clients are in every cohort, so the liar takes part in the last round, too."""
    attack = {"kind": "sign", "share": 0.1}
    for name, changes in {
        "first": {"attack": attack | {"once": 1}},
        "second": {"attack": attack | {"once": 2}},
        "beyond": {"attack": attack | {"once": 3}},
        "plain": {},
    }.items():
        run(tmp_path / name, **changes)
    psi = {name: [line["psi"] for line in read_metrics(tmp_path / name)] for name in ("second", "plain")}
    assert psi["second"][0] == psi["plain"][0]
    found = {name: weights(tmp_path / name)[0] for name in ("first", "second", "beyond", "plain")}
    assert torch.equal(found["beyond"], found["plain"])
    assert not torch.equal(found["second"], found["plain"])
    assert not torch.equal(found["second"], found["first"])


def test_each_attacks_once_and_not_again_after_a_resumption(tmp_path):
    changes = {"attack": {"kind": "sign", "share": 0.3, "once": 2}, "cohort": 5, "rounds": 6}
    run(tmp_path / "calm", **changes)
    run(tmp_path / "resumed", **{**changes, "rounds": 4})
    run_experiment(tiny(**{**EVEN, **changes}), tmp_path / "resumed", resume=True)
    run(tmp_path / "always", **{**changes, "attack": changes["attack"] | {"once": None}})
    found = {name: weights(tmp_path / name)[0] for name in ("calm", "resumed", "always")}
    assert torch.equal(found["calm"], found["resumed"]) and not torch.equal(found["calm"], found["always"])


def test_liars_of_any_length_are_outvoted(tmp_path):
    """Where the defence leaves a client out, it is all the same how long its lie is."""
    krum = {"defence": "krum", "defence_options": {"share": 0.1}}
    for name, defence in (("defended", krum), ("plain", {})):
        for scale in (1e6, 1e9):
            attack = {"kind": "sign", "share": 0.08, "options": {"scale": scale}}
            run(tmp_path / f"{name}{scale:g}", attack=attack, **defence)
        one, other = (weights(tmp_path / f"{name}{scale:g}")[0] for scale in (1e6, 1e9))
        assert torch.equal(one, other) == (name == "defended")


def test_what_is_no_number_is_refused_and_the_round_goes_on(tmp_path):
    summary = run(tmp_path / "nan", attack={"kind": "nan", "share": 0.25}, on_client_error="skip")
    assert summary["refused"] == {"not_finite": 6}


def test_wrong_labels_reach_training_alone(tmp_path):
    config = tiny(**EVEN, attack={"kind": "labels", "share": 0.5})
    run_experiment(config, tmp_path / "wrong")
    run(tmp_path / "plain")
    assert not torch.equal(weights(tmp_path / "wrong")[0], weights(tmp_path / "plain")[0])
    honest, told = (torch.cat([shard.targets for shard in build(c).shards]) for c in (tiny(**EVEN), config))
    assert torch.equal(honest, told)


def test_no_flower_app_attacks():
    attacked = {"experiment": json.dumps(tiny(attack={"kind": "sign"}).resolved())}
    with pytest.raises(ConfigError, match="leave attack out, clients here are real"):
        read_run_config(attacked)
    assert read_run_config(run_config_of(tiny())) == tiny()


CENTRED = ["defence=centred", "defence_options={reach: 3}", "clip=adaptive"]


def attacked(folder, *lies):
    """Test accuracy after 20 rounds on upright digits, of 10 clients in cohorts of 5."""
    rounds = ["engine=local", "beside=null", "rounds=20", "samples=1", "evaluate_every=60", "rotated=false"]
    clients = ["clients=10", "cohort=5", "weighting=uniform", "model=mlp", "model_options={hidden: [32]}"]
    config = load_config(shipped()["quickstart"], [*rounds, *clients, *lies])
    return run_experiment(config, folder)["test_accuracy"]


LOUD = ["attack.kind=constant", "attack.share=0.1", "attack.options={value: 900}"]


@pytest.mark.parametrize("lies", [["attack.kind=sign", "attack.share=0.2"], LOUD], ids=["signs", "loud"])
def test_lies_cost_a_defended_run_little(tmp_path, lies):
    """Updates of 2 in 10 clients are ten times as long and turned round; or one sends the most it may."""
    assert attacked(tmp_path / "undefended", *lies) < 0.25
    assert attacked(tmp_path / "defended", *lies, *CENTRED) > 0.6
    if lies is LOUD:  # which usual norms alone make no longer than others
        assert attacked(tmp_path / "clipped", *lies, "clip=adaptive") > 0.6


def test_wrong_labels_of_a_fifth_do_not_ruin_a_run(tmp_path):
    assert attacked(tmp_path / "wrong", "attack.kind=labels", "attack.share=0.2") > 0.6
