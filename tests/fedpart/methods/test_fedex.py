"""FedEx: the published step on theta, what a client holds out, and one engine for all."""

import json
import math
import re

import numpy as np
import pytest
import torch
from parity import assert_parity
from problems import AtRound, after, chain_net, settings, shard, shards
from tiny import tiny
from torch import nn

from fedpart import ConcreteDropout, Dataset, Federation, LocalSettings, Protocol, Task, federate
from fedpart.engines import LocalEngine
from fedpart.engines.batches import count_held_out, divided
from fedpart.engines.executor import Executor
from fedpart.randomness.streams import generator
from fedpart.task.held_out import HeldOutScore as Score
from fedpart.updates.stages.clip import ClipSettings
from simulations.running.run import run_experiment

SIZES = [10, 7, 1, 12, 5, 2, 20, 9]
RATES = [0.05, 0.1, 0.3]


def task(**options):
    return Task(chain_net(), samples=2, **options)


def protocol(of=None, sizes=SIZES, rates=RATES, changes=None, **options):
    options = {"arms": {"dropout": rates}, **options}
    chosen = settings(len(sizes), method="fedex", method_options=options, **(changes or {}))
    return Protocol(of or task(), chosen)


def trained(rounds, data=None, execution="loop", of=None, **options):
    data = data or shards(SIZES)
    return after(rounds, Federation(of or protocol(sizes=data, **options)), data, execution=execution)


def arms(federation):
    return {k: v for k, v in federation.psi_tensors().items() if k.startswith("arms.")}


def theta(federation):
    return arms(federation)["arms.log_probabilities"].double().exp().numpy()


@pytest.mark.parametrize("schedule", ["aggressive", "adaptive", "auto", "constant", "scale"])
@pytest.mark.parametrize("difference", [False, True])
def test_the_step_is_the_published_one(schedule, difference):
    """Against the formula on clients' scores, which knows nothing of sums, psi or float32."""
    run = protocol(schedule=schedule, difference=difference, discount=0.7, cutoff=0.0)
    method, psi, rng = run.method, run.task.psi_space.initial(), np.random.default_rng(0)
    z, trace, gathered = np.full(3, -math.log(3)), [], 0.0
    for round in range(1, 6):
        found, tried = torch.zeros_like(psi), []
        for client in run.cohort(round):
            n, old, new = (int(v) for v in rng.integers(1, 9, 3))
            before, after = (Score(n, 0.0, n - wrong) for wrong in (old, new))
            view = run.view(client, round, psi)
            found += method.feedback(view, before, after)
            tried.append((method.drawn(view)[0], n, (new - old if difference else new) / n))
        probabilities = np.exp(z)
        discounts = 0.7 ** np.arange(len(trace))[::-1]
        baseline = np.dot(trace, discounts) / discounts.sum() if trace else 0.0
        whole = sum(n for _, n, _ in tried)
        gradient = np.zeros(3)
        for arm, n, score in tried:
            gradient[arm] += n / whole * (score - baseline) / probabilities[arm]
        trace.append(sum(n / whole * score for _, n, score in tried))
        largest = np.abs(gradient).max()
        gathered += {"adaptive": largest**2, "auto": 1.0}.get(schedule, 0.0)
        fixed = {"aggressive": largest, "constant": 1.0, "scale": 1 / math.sqrt(2 * math.log(3))}
        scale = fixed.get(schedule, math.sqrt(gathered))
        z = z - math.sqrt(2 * math.log(3)) / scale * gradient
        z -= np.log(np.exp(z).sum())
        psi = method.stepped(run.task, psi, found)
        now = run.task.psi_tensors(psi)
        np.testing.assert_allclose(now["arms.log_probabilities"].numpy(), z, rtol=2e-5, atol=2e-5)
        summed = np.dot(trace, 0.7 ** np.arange(round)[::-1])
        assert now["arms.baseline"][0].item() == pytest.approx(summed, rel=1e-5)


def test_arms_are_drawn_by_theta_from_a_stream_of_client_and_round():
    """Server and clients draw them apart from one another."""
    run = protocol(rates=[0.1, 0.2])
    federation = Federation(run)
    arms(federation)["arms.log_probabilities"].copy_(torch.tensor([0.8, 0.2]).log())
    psi = federation.psi
    drawn = [run.method.drawn(run.view(c, round, psi))[0] for c in range(8) for round in range(125)]
    assert np.mean(drawn) == pytest.approx(0.2, abs=0.03)
    run = protocol(arms={"dropout": RATES, "epochs": [1, 2]})
    psi = run.task.psi_space.initial()
    for client, round in ((0, 1), (3, 1), (3, 2)):
        rng = generator(run.settings.seed, "arm", client, round)
        expected = [int(rng.choice(n, p=np.full(n, 1 / n))) for n in (3, 2)]
        assert run.method.drawn(run.view(client, round, psi)) == expected


def test_below_the_cutoff_everybody_takes_the_likeliest_rate_and_theta_stays():
    run = protocol(cutoff=0.5)
    federation = Federation(run)
    log_theta = arms(federation)["arms.log_probabilities"]
    log_theta.copy_(torch.tensor([0.05, 0.9, 0.05]).log())  # entropy 0.39
    before = log_theta.clone()
    assert {run.method.drawn(run.view(0, round, federation.psi))[0] for round in range(200)} == {1}
    LocalEngine(federation, shards(SIZES)).run_round()
    assert torch.equal(log_theta, before)
    assert federation.task.physical(federation.psi)["3.rate [%]"] == pytest.approx(10)


def test_with_a_single_arm_it_is_fedavg_under_its_settings():
    arm = {"learning_rate": 0.2, "momentum": 0.4, "weight_decay": 0.1, "epochs": 2, "batch_size": 3}
    data = shards(SIZES)
    federation, _ = trained(3, data, arms=[{**arm, "dropout": 0.3}])
    kept = [data[c].subset(divided(federation.protocol, c, n)[0]) for c, n in enumerate(SIZES)]
    network = chain_net()
    network[3].logit.data.fill_(math.log(0.3 / 0.7))
    changes = {"cohort": len(SIZES), "seed": 3, "local": LocalSettings(**arm)}
    plain = federate(Task(network, samples=2), kept, rounds=3, method="fedavg", **changes)
    assert torch.equal(federation.w, plain.state.w)


def test_every_key_has_a_distribution_of_its_own():
    grids = {"learning_rate": [0.01, 0.1, 1.0], "epochs": [1, 2], "dropout": [0.1, 0.5]}
    federation, reports = trained(2, arms=grids)
    method, view = federation.protocol.method, federation.protocol.view(2, 3, federation.psi)
    for grid in np.split(theta(federation), [3, 5]):
        assert grid.sum() == pytest.approx(1, rel=1e-6) and not np.allclose(grid, 1 / len(grid))
    chosen = dict(zip(grids, method.drawn(view), strict=True))
    own = method.local_settings(view)
    assert own.learning_rate == grids["learning_rate"][chosen["learning_rate"]]
    assert own.epochs == grids["epochs"][chosen["epochs"]]
    assert "arms.probability[learning_rate=0.01] [%]" in reports[-1].physical


def test_arms_around_the_runs_own_settings():
    """Within eps of the range, on its scale; the first is the run's own; whole numbers stay whole."""
    local = LocalSettings(learning_rate=0.05, momentum=0.9, epochs=2, batch_size=16)
    run = protocol(arms=20, eps=0.2, changes={"local": local})
    view = run.view(0, 1, run.task.psi_space.initial())
    found = []
    for arm in range(20):
        run.method.drawn = lambda _, arm=arm: [arm]
        found.append(run.method.local_settings(view))
    assert found[0] == local and len(set(found)) == 20
    spread = [math.log10(own.learning_rate / 0.05) for own in found]
    assert max(map(abs, spread)) <= 0.2 * 4 + 1e-9 and max(spread) > 0.2 > -0.2 > min(spread)
    assert all(0.9 - 0.2 * 0.99 - 1e-9 <= own.momentum <= 0.99 for own in found)
    assert {own.epochs for own in found} == {1, 2, 3}  # +-ceil(0.2 * 4)
    assert {own.batch_size for own in found} == {8, 16, 32}  # as many doublings
    assert protocol(arms=20, eps=0.2, arms_seed=1).method.grids != run.method.grids
    keys = [("epochs", [1, 5]), ("momentum", [0.0, 0.9])]
    one, other = (protocol(arms=3, space=dict(order)) for order in (keys, keys[::-1]))
    assert one.fingerprint == other.fingerprint and one.method.grids == other.method.grids


def test_no_held_out_example_is_trained_on():
    data, changed = shards(SIZES), shards(SIZES)
    run = protocol(score="loss", changes={"local": LocalSettings(learning_rate=0.3, batch_size=4)})
    for client, mine in enumerate(changed):
        held = divided(run, client, len(mine)).feedback
        mine.inputs[held], mine.targets[held] = 1 - mine.inputs[held], (mine.targets[held] + 1) % 3
    one, other = trained(1, data, of=run)[0], trained(1, changed, of=run)[0]
    assert torch.equal(one.w, other.w)
    assert not torch.equal(one.psi, other.psi)


@pytest.mark.parametrize(("examples", "held"), [(1, 0), (2, 1), (4, 1), (5, 1), (6, 2), (10, 2), (12, 3)])
def test_how_many_are_held_out(examples, held):
    assert count_held_out(0.2, examples) == held
    assert count_held_out(0.0, examples) == 0


def test_a_client_with_one_example_trains_and_has_no_say_in_theta():
    federation, _ = trained(2, shards([1, 1, 1]))
    start = Federation(federation.protocol)
    assert torch.equal(federation.psi, start.psi) and not torch.equal(federation.w, start.w)


def test_a_score_is_that_of_the_trained_network():
    run, one = protocol(rates=[0.1], changes={"local": LocalSettings(learning_rate=0.5)}), shard(30)
    federation, executor, seen = Federation(run), AtRound(Executor(run)), []
    feedback = run.method.feedback
    run.method.feedback = lambda *given: (seen.extend(given[-2:]), feedback(*given))[1]
    executor.begin(1, federation.w, federation.psi)
    update = executor.run(0, one, run.plan(0, 1))
    _, held, _ = divided(run, 0, 30)
    for found, w in zip(seen, (federation.w, federation.w + update.cells[1]), strict=True):
        federation.w.copy_(w)
        expected = federation.evaluate(one.subset(held))
        assert found.examples == 6
        assert found.nll == pytest.approx(6 * expected["nll"], rel=1e-5)
        assert found.errors == round(6 * (1 - expected["accuracy"]))
    assert update.examples == 24


SEVERAL = LocalSettings(0.3, batch_size=4, epochs=2, momentum=0.5)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "local, rows, arms", [(LocalSettings(0.5), 20, {"dropout": RATES}), (SEVERAL, None, 9), (SEVERAL, 20, 9)]
)
def test_grouped_clients_have_the_settings_and_the_scores_of_the_loop(local, rows, arms):
    options = {"arms": arms, "score": "loss", "eps": 0.3}
    method = {"method": "fedex", "method_options": options}
    assert_parity(task(precision="fp64"), 1e-11, rows=rows, local=local, **method)


def test_clipped_weights_leave_the_feedback_as_it_is():
    """The first round's change of theta: clients have trained and been scored before anything is clipped."""
    thetas, weights = [], []
    for changes in ({}, {"clip": ClipSettings(weights=0.01)}):
        federation, _ = trained(1, of=protocol(changes=changes))
        thetas.append(theta(federation))
        weights.append(federation.w)
    assert np.array_equal(*thetas) and not torch.equal(*weights)


def test_a_regression_is_scored_by_its_loss():
    torch.manual_seed(0)
    data = [Dataset(torch.rand(n, 4), torch.rand(n, 2)) for n in SIZES]
    net = nn.Sequential(nn.Linear(4, 8), ConcreteDropout(), nn.Linear(8, 2))
    run = protocol(Task(net, likelihood="gaussian", samples=1), score="loss")
    federation, _ = trained(2, data, of=run)
    assert not np.allclose(theta(federation), 1 / 3)


def test_a_run_lists_theta_by_round_and_is_charged_for_what_it_holds_out(tmp_path):
    method_options = {"fedex": {"arms": {"dropout": [0.025, 0.1, 0.4]}}}
    config = tiny(method="fedex", method_options=method_options, hyperparameters={"dropout": {}}, rounds=3)
    summary = run_experiment(config, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        physical, name = line["psi"]["physical"], r"arms\.probability\[dropout=(2\.5|10|40)%\] \[%\]$"
        chances = [value for key, value in physical.items() if re.match(name, key)]
        assert len(chances) == 3 and sum(chances) == pytest.approx(100, rel=1e-5)
        likeliest = [2.5, 10, 40][int(np.argmax(line["psi"]["raw"]["arms.log_probabilities"]))]
        assert {round(v, 3) for k, v in physical.items() if k.endswith("rate [%]")} == {likeliest}
    assert 0.2 <= summary["held_out_share"] < 0.3
    assert summary["upload_bytes_psi"] == 3 * 3 * 4 * sum(map(len, lines[0]["psi"]["raw"].values()))
    assert summary["upload_ratio_expected"] == 1
