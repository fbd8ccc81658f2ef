"""Training by an estimate of the marginal likelihood: what iterations and epochs do, and that it learns."""

import pytest
import torch
from evidences import PSI_RATE, numeric, training
from problems import assert_same, augmentation, chain_net, shard
from torch import nn

from fedpart import AdamSettings, AffineAugmentation, SGDSettings, Task, Training, TrainingSettings
from fedpart.data import DATASETS, random_subset, rotated
from fedpart.nn.models import mlp
from fedpart.randomness.noise import NoiseKey
from fedpart.randomness.streams import generator

KINDS = ("kfac", "last_layer")


def own(state):
    return len(state.method.estimate.own)


@pytest.mark.parametrize("kind", KINDS)
def test_psi_is_stepped_at_the_ends_of_epochs_after_the_burn_in(kind):
    state, moved = training(kind, options={"precision_steps": 1}), []
    for _ in range(16):
        before = state.psi.clone()
        state.step()
        change = state.psi != before
        moved.append((bool(change[: own(state)].any()), bool(change[own(state) :].any())))
    assert moved == [(i in (12, 16),) * 2 for i in range(1, 17)]


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_the_prior_takes_so_many_steps_of_adam_and_psi_one(steps, monkeypatch):
    state, parts = training(options={"precision_steps": steps}), []
    step, start = state.optimiser_psi.step, state.psi.clone()

    def note(part, *rest):
        parts.append(part)
        step(part, *rest)

    monkeypatch.setattr(state.optimiser_psi, "step", note)
    for _ in range(12):
        state.step()
    assert parts == [0] * steps + [1]
    change, prior = (state.psi - start).abs(), own(state)
    for part in (change[prior:], *([change[:prior]] if steps == 1 else [])):
        torch.testing.assert_close(part, torch.full_like(part, PSI_RATE), rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_psi_ascends_the_evidence(kind):
    """The signs of its first step are those of finite differences of what reports say."""
    net = nn.Sequential(chain_net())
    state = training(kind, Task(net, transforms=[augmentation()], samples=2, precision="fp64"))
    for _ in range(11):
        state.step()
    start, finish, slopes, prior = state.psi.clone(), state.method.finish, [], own(state)

    def look(model, data):
        def evidence(psi):
            model.psi[prior:] = psi
            return model.method.evidence(model, data)

        slopes.append(numeric(evidence, start[prior:], 1e-6))
        model.psi.copy_(start)
        finish(model, data)

    state.method.finish = look
    state.step()
    assert (slopes[0].abs() > 1e-3).all()
    assert torch.equal(slopes[0].sign(), (state.psi - start)[prior:].sign())


def test_the_prior_is_in_the_loss():
    """A step of SGD is that of plain training, and one along the precisions times the weights over N."""
    data, net = shard(40), chain_net(dropout=False)
    sgd = {"optimiser": SGDSettings(0.1), "batch_size": 10, "seed": 3, "iterations": 20}
    state = training(task=Task(net, samples=1), data=data, **sgd)
    plain = Training(Task(net, samples=1), data, TrainingSettings(method="none", **sgd))
    state.psi.copy_(torch.tensor([1.0, 20.0, 3.0]).log())
    before = {name: value.clone() for name, value in state.tensors().items()}
    state.step()
    plain.step()
    found, expected = state.tensors(), plain.tensors()
    for layer, precision in zip(("0", "4", "6"), (1.0, 20.0, 3.0), strict=True):
        for name in (f"{layer}.weight", f"{layer}.bias"):
            shrunk = expected[name] - 0.1 * precision / 40 * before[name]
            torch.testing.assert_close(found[name], shrunk, rtol=1e-5, atol=1e-7)


def test_psi_s_rate_falls_along_a_cosine_and_a_loop_of_ones_own_ends_epochs_too():
    state = training(options={"burn_in": 1, "final_rate": 0.2}, iterations=24)
    rates = [state.method._rate(epoch) for epoch in range(2, 7)]
    assert rates[0] == 1 and rates[2] == pytest.approx(0.6) and rates[-1] == pytest.approx(0.2)
    assert rates == sorted(rates, reverse=True)
    state, data = training(), shard(10)
    start = state.psi.clone()
    for _ in range(12):
        state.parameter_step(1, data)
    assert not torch.equal(state.psi, start)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(kind, tmp_path):
    def fresh():
        return training(kind, keep_best=True, schedule="cosine", options={"batches": 2})

    whole, reports = fresh(), []
    whole.run(4, reports.append)
    assert len({report.lml for report in reports}) == 5 and whole.best.lml == max(r.lml for r in reports)
    part = fresh()
    for _ in range(14):  # after a step on psi, within an epoch
        part.step()
        if part.completed in (4, 8, 12):
            part._report(None, 0.0)
    part.save(tmp_path / "x.pt")
    again, rest = fresh(), []
    again.load(tmp_path / "x.pt")
    again.run(4, rest.append)
    assert_same(whole, again)
    assert [(r.iteration, r.lml) for r in rest] == [(r.iteration, r.lml) for r in reports[3:]]


def test_batches_and_their_noise_are_named_by_seed_and_iteration():
    """A part of them has the noise that it has among all."""
    state, data = training(), shard(36)
    state.step()
    keys = {start: NoiseKey(3, "evidence", (1, start // 10)) for start in (0, 10, 20, 30)}
    every = list(state.method._draws(state, data)())
    assert [key for _, key in every] == list(keys.values())
    assert torch.equal(torch.cat([batch.inputs for batch, _ in every]), data.inputs)
    places = sorted(generator(3, "evidence batches", 1).permutation([0, 10, 20, 30])[:3].tolist())
    some = list(state.method._draws(state, data, 3)())
    assert [key for _, key in some] == [keys[start] for start in places]
    for start, (batch, _) in zip(places, some, strict=True):
        assert torch.equal(batch.targets, data.targets[start : start + 10])


@pytest.mark.slow
def test_the_range_of_rotated_digits_grows_and_with_it_the_evidence():
    torch.manual_seed(0)
    train = random_subset(rotated(DATASETS["digits"](None).train, 0), 200, 0)
    task = Task(mlp(10, (1, 28, 28), hidden=(16,)), transforms=[AffineAugmentation("lila", 0.05)], samples=4)
    more = {"iterations": 160, "batch_size": 25, "optimiser": AdamSettings(3e-3)}  # 20 epochs
    state = training("kfac", task, train, {"burn_in": 5, "batch": 50, "final_rate": 0.5}, **more)
    reports = []
    state.run(160, reports.append)
    before, after = reports
    assert before.stage == "burnt in" and after.stage == "trained"
    angle = "affine.angle_max [deg]"
    assert before.physical[angle] < 3 and after.physical[angle] > 12
    assert after.lml > before.lml + 50
