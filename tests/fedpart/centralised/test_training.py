"""Centralised training: schedule, state per partition, objective, stages, errors."""

import itertools
import math
import signal
from functools import partial

import numpy as np
import pytest
import refusals
import torch
from problems import Gain, augmentation, chain_net, norm_net, shard, smooth_net
from torch import nn

from fedpart import (
    AdamSettings,
    AdamWSettings,
    AffineAugmentation,
    Batch,
    Dataset,
    SGDSettings,
    Task,
    Training,
    TrainingError,
    TrainingSettings,
    fit,
)
from fedpart.randomness.streams import generator

CHUNKS = (0.5, 0.3, 0.2)


def chunks(seed=0, sizes=(20, 12, 8)):
    return [shard(n, 100 * seed + k) for k, n in enumerate(sizes)]


def training(task=None, data=None, **changes):
    return Training(
        task or Task(smooth_net(), samples=1),
        data or chunks(),
        TrainingSettings(**{"iterations": 30, "chunks": CHUNKS, "batch_size": 6, "seed": 3, **changes}),
    )


def run(state):
    while state.completed < state.total:
        state.step()
    return state


OPTIMISERS = [
    {"optimiser": SGDSettings(0.1, momentum=0.9), "weight_decay": 0.01, "schedule": "cosine"},
    {"optimiser": AdamSettings(0.01), "weight_decay": 0.01, "decay_scaling": "square_root"},
    {"optimiser": AdamWSettings(0.01), "weight_decay": 0.1},
]


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "net, replaced, changes",
    [
        (norm_net, 2, {"method": "separate", **OPTIMISERS[0]}),
        (smooth_net, 3, {"method": "separate", **OPTIMISERS[1]}),
        (norm_net, 3, {"method": "partitioned", **OPTIMISERS[0]}),
        (smooth_net, 2, {"method": "partitioned", **OPTIMISERS[1]}),
        (norm_net, 2, {"method": "partitioned", **OPTIMISERS[2]}),
        (partial(chain_net, dropout=False), 2, {"scheme": "node", "defaults": "initial", **OPTIMISERS[1]}),
        (partial(chain_net, dropout=False), 3, {"scheme": "node", "defaults": "zeros", **OPTIMISERS[1]}),
    ],
)
def test_no_bit_of_a_later_chunk_reaches_an_earlier_partition(net, replaced, changes):
    """psi is frozen (psi_every is out of reach), for psi is allowed to carry information."""
    first, second = chunks(), chunks()
    second[replaced - 1] = shard(len(first[replaced - 1]), 999)
    fixed = {"psi_every": 1000, **changes}
    start, a, b = (training(Task(net(), samples=1), data, **fixed) for data in (first, first, second))
    slices = [a.partition.slice(k) for k in (1, 2, 3)]
    run(a), run(b)
    assert [torch.equal(a.w[s], b.w[s]) for s in slices] == [k < replaced for k in (1, 2, 3)]
    assert all(not torch.equal(a.w[s], start.w[s]) for s in slices)


@pytest.mark.parametrize("replaced", [2, 3])
def test_the_data_of_a_late_chunk_reach_psi_in_training(replaced):
    first, second = chunks(), chunks()
    second[replaced - 1] = shard(len(first[replaced - 1]), 999)
    a, b = (run(training(data=data)) for data in (first, second))
    assert not torch.equal(a.psi, b.psi)


def plain_loop(net, data, iterations, batch_size, seed, make, schedule=None):
    """Standard training in torch alone, on the batches that the library draws."""
    optimiser = make(net.parameters())
    first = optimiser.param_groups[0]["lr"]
    for iteration in range(1, iterations + 1):
        if schedule is not None:
            optimiser.param_groups[0]["lr"] = first * schedule(iteration)
        rng = generator(seed, "iteration", iteration)
        rows = torch.from_numpy(rng.integers(0, len(data), batch_size))
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(data.inputs[rows]), data.targets[rows]).backward()
        optimiser.step()
    return net


def cosine(iteration):
    return 0.1 + 0.9 * (1 + math.cos(math.pi * (iteration - 1) / 30)) / 2


COSINE = {"optimiser": SGDSettings(0.3), "schedule": "cosine", "final_rate": 0.1}
SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


@pytest.mark.parametrize(
    "settings, make, schedule",
    [
        (OPTIMISERS[0], partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01), None),
        ({"optimiser": AdamSettings(0.01)}, partial(ADAM, lr=0.01), None),
        (OPTIMISERS[2], partial(ADAMW, lr=0.01, weight_decay=0.1), None),
        (COSINE, partial(SGD, lr=0.3), cosine),
    ],
    ids=["sgd", "adam", "adamw", "cosine"],
)
def test_one_partition_is_standard_training(settings, make, schedule):
    data, net = shard(30), chain_net(dropout=False)
    if schedule is None:
        settings = {**settings, "schedule": "constant"}
    state = run(training(Task(net), data, method="none", **settings))
    reference = plain_loop(net, state.chunks[0], 30, 6, 3, make, schedule)
    for name, value in reference.named_parameters():
        ours = state.tensors()[name]
        if isinstance(settings["optimiser"], AdamSettings) or schedule:  # fused: rounds otherwise
            torch.testing.assert_close(ours, value.detach(), rtol=1e-5 if schedule else 1e-4, atol=1e-6)
        else:
            assert torch.equal(ours, value)


@pytest.mark.parametrize("scaling, power", [("reciprocal", 1.0), ("square_root", 0.5), ("none", 0.0)])
def test_each_partition_decays_by_its_own_weight_decay(scaling, power):
    """A long way along the decay alone: the loss does not depend on these weights (their inputs are zero)."""
    zeros = [Dataset(torch.zeros_like(c.inputs), c.targets) for c in chunks()]
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3, bias=False))
    fixed = {"optimiser": SGDSettings(0.1), "weight_decay": 0.05, "decay_scaling": scaling}
    state = training(Task(net), zeros, **fixed)
    before = state.w.clone()
    counts = [0, 0, 0]
    for iteration in range(1, 31):
        first, *_ = state.method.steps(state.schedule, iteration, generator(3, "iteration", iteration))
        k = first.job.partition
        counts[k - 1] += 1
        state.step()
    for k, share in ((1, 0.5), (2, 0.8), (3, 1.0)):
        part, shrink = state.partition.slice(k), (1 - 0.1 * 0.05 / share**power) ** counts[k - 1]
        torch.testing.assert_close(state.w[part], before[part] * shrink, rtol=1e-4, atol=1e-7)


def test_partitions_and_chunks_are_drawn_by_their_proportions():
    state = training()
    counts = {"w": np.zeros(3), "psi": np.zeros(3)}
    n = 6000
    for iteration in range(1, n + 1):
        first, second = state.method.steps(state.schedule, iteration, generator(0, "iteration", iteration))
        k = first.job.partition
        assert (first.first, first.last, first.job.subnetwork) == (1, k, k)
        assert second.first == second.last == second.job.subnetwork + 1 and second.job.partition is None
        counts["w"][k - 1] += 1
        counts["psi"][second.first - 1] += 1
    for found, p in ((counts["w"], np.array(CHUNKS)), (counts["psi"], np.array([0, 0.6, 0.4]))):
        assert np.all(np.abs(found / n - p) < 5 * np.sqrt(p * (1 - p) / n) + 1e-12)


def test_batches_come_with_replacement_from_the_chunks_of_the_step():
    data = Dataset(torch.arange(40.0).view(40, 1), torch.zeros(40, dtype=torch.int64))
    seen = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain, self.layer = Gain(), nn.Linear(1, 2)

        def forward(self, x):
            seen.append(x.detach().clone())
            return self.layer(self.gain(x / 40))

    state = training(Task(Spy(), samples=1), data, batch_size=64)
    numbers = [chunk.inputs.flatten().tolist() for chunk in state.chunks]
    assert sorted(itertools.chain(*numbers)) == list(range(40)) and [len(n) for n in numbers] == [20, 12, 8]
    for iteration in range(1, 20):
        seen.clear()
        first, second = state.method.steps(state.schedule, iteration, generator(3, "iteration", iteration))
        state.step()
        drawn = [set(seen[place].flatten().tolist()) for place in (0, -1)]
        assert all(len(x) == 64 for x in seen)
        assert drawn[0] <= set(itertools.chain(*numbers[: first.last]))
        assert drawn[1] <= set(numbers[second.last - 1])
        assert len(drawn[0]) < 64  # 64 draws from 40 at most


def test_a_partition_that_is_not_stepped_keeps_its_state_and_psi_every_spares_psi_steps():
    state = training(optimiser=AdamSettings(0.01))
    steps = [0, 0, 0]
    for iteration in range(1, 31):
        first, *_ = state.method.steps(state.schedule, iteration, generator(3, "iteration", iteration))
        k = first.job.partition
        before = [{key: v.clone() for key, v in s.items()} for s in state.optimiser.state_dict()]
        w = state.w.clone()
        state.step()
        steps[k - 1] += 1
        for j, (old, new) in enumerate(zip(before, state.optimiser.state_dict(), strict=True), start=1):
            if j != k:
                assert old.keys() == new.keys() and all(torch.equal(old[key], new[key]) for key in old)
                assert torch.equal(w[state.partition.slice(j)], state.w[state.partition.slice(j)])
    assert [int(s["step"]) for s in state.optimiser.state_dict()] == steps and min(steps) > 0
    state = run(training(psi_every=4))
    assert int(state.optimiser_psi.state_dict()[0]["step"]) == 30 // 4
    short = training(**COSINE, schedule_iterations=10)
    assert short.settings.rate(11) == short.settings.rate(30) == pytest.approx(0.1)


def test_l_ml_is_the_sum_of_the_chunks_under_networks_that_never_saw_them_and_their_noise():
    state = run(training(Task(smooth_net(), samples=1)))
    expected = 0.0
    for k in (2, 3):
        w = state.partition.materialise(state.w, k - 1)
        chunk = state.chunks[k - 1]
        out = state.task.outputs(w, state.psi, chunk.inputs, None, dropout=False)  # no noise in this network
        expected -= nn.functional.cross_entropy(out, chunk.targets, reduction="sum").item()
    assert state.log_marginal_likelihood() == pytest.approx(expected, rel=1e-5)
    state = training(Task(chain_net(dropout=True), samples=1))
    assert state.log_marginal_likelihood() == state.log_marginal_likelihood()
    scores = [state.evaluate(state.examples(k, k), k - 1)["nll"] * n for k, n in ((2, 12), (3, 8))]
    assert state.log_marginal_likelihood() != pytest.approx(-sum(scores), rel=1e-6)


def test_the_psi_step_descends_the_loss_of_the_chunk_and_every_step_has_noise_of_its_own():
    state = training(optimiser_psi=SGDSettings(0.05))
    chunk = state.chunks[2]
    batch = Batch(chunk.inputs, chunk.targets)
    losses = [state.psi_step(3, batch) for _ in range(20)]
    assert losses[-1] < losses[0] - 1e-4
    assert torch.equal(state.w, training().w)
    # Hardly training: the same batch would give the same loss under the same noise.
    still = {"optimiser": SGDSettings(1e-30), "optimiser_psi": SGDSettings(1e-30)}
    state = training(Task(chain_net(dropout=True), samples=1), **still)
    batch = Batch(state.chunks[1].inputs, state.chunks[1].targets)
    losses = [state.parameter_step(1, batch), *(state.psi_step(2, batch) for _ in range(3))]
    losses += [state.parameter_step(1, batch)]
    assert len(set(losses)) == 5


def test_separate_networks_are_trained_alone():
    """Network k is what standard training on chunks 1..k gives, for the same draws, but for the last bits:
    Adam vectorises from where a network starts in memory."""
    data = chunks()
    state = run(training(Task(chain_net(dropout=False)), data, method="separate", iterations=12))
    ours = [state.tensors(k) for k in (1, 2, 3)]
    nets = [chain_net(dropout=False) for _ in range(3)]
    adams = [torch.optim.Adam(net.parameters(), 1e-3) for net in nets]
    whole = Dataset(torch.cat([c.inputs for c in data]), torch.cat([c.targets for c in data]))
    for iteration in range(1, 13):
        rng = generator(3, "iteration", iteration)
        for k, n in enumerate((20, 32, 40)):
            rows = torch.from_numpy(rng.integers(0, n, 6))
            adams[k].zero_grad()
            nn.functional.cross_entropy(nets[k](whole.inputs[rows]), whole.targets[rows]).backward()
            adams[k].step()
    for k, net in enumerate(nets):
        for name, value in net.named_parameters():
            torch.testing.assert_close(ours[k][name], value.detach(), rtol=0, atol=2e-6)


def test_validation_data_train_psi_alone_and_training_data_do_not_until_finetuning():
    first, other = chunks(sizes=(20, 20)), shard(20, 77)
    training_set, held_out = [other, first[1]], [first[0], other]
    fixed = {"method": "validation", "chunks": (0.5, 0.5)}
    a, b = (run(training(data=data, psi_every=1000, **fixed)) for data in (first, held_out))
    assert torch.equal(a.w, b.w)
    still = {"psi_every": 1, "optimiser": SGDSettings(1e-30), **fixed}
    a, b, c = (run(training(data=data, **still)) for data in (first, held_out, training_set))
    assert not torch.equal(a.psi, b.psi) and torch.equal(a.psi, c.psi)
    assert not torch.equal(a.psi, training(data=first, **still).psi)


def test_finetuning_trains_on_both_parts_with_psi_fixed():
    two, options = chunks(sizes=(20, 20)), {"finetune_epochs": 2.0}
    state = training(data=two, method="validation", chunks=(0.5, 0.5), method_options=options)
    assert state.stages == (("optimised", 30), ("finetuned", 30 + math.ceil(2 * 40 / 6)))
    reports = []
    state.run(20, reports.append)
    ends = [(r.iteration, r.stage) for r in reports]
    assert ends == [(20, None), (30, "optimised"), (40, None), (44, "finetuned")]
    assert reports[1].psi == reports[-1].psi != reports[0].psi
    last = state.method.steps(state.schedule, 31, np.random.default_rng(0))
    assert len(last) == 1 and (last[0].first, last[0].last) == (1, 2)


def test_the_finetuning_learning_rate_is_its_own():
    moved = []
    for rate in (None, 0.02):
        own = {"finetune_epochs": 0.15, "finetune_learning_rate": rate}
        fixed = {"method": "validation", "chunks": (0.5, 0.5), "iterations": 1, "optimiser": SGDSettings(0.1)}
        state = training(data=chunks(sizes=(20, 20)), method_options=own, **fixed)
        state.step()
        before = state.w.clone()
        state.step()
        moved.append(state.w - before)
    torch.testing.assert_close(moved[1], 0.2 * moved[0], rtol=1e-4, atol=1e-7)


def test_keep_best_ends_with_the_best_report():
    state = training(keep_best=True, optimiser=AdamSettings(0.05), iterations=60)
    reports, states = [], {}

    def on_report(report):
        reports.append(report)
        states[report.iteration] = (state.w.clone(), state.psi.clone())

    state.run(5, on_report)
    best = max(reports, key=lambda r: r.lml)
    assert best.iteration != 60, "the problem must overfit, or this tests nothing"
    assert state.best.iteration == best.iteration and state.best.lml == best.lml
    assert all(map(torch.equal, (state.w, state.psi), states[best.iteration]))


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "method, options",
    [
        ("validation", OPTIMISERS[0]),
        ("augerino", OPTIMISERS[2]),
        ("none", OPTIMISERS[0]),
        ("separate", OPTIMISERS[0]),
        ("partitioned", OPTIMISERS[2]),
    ],
)
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(method, options, tmp_path):
    def fresh(iterations):
        task = Task(norm_net(), transforms=[augmentation()], samples=2)
        changes = {"method": method, "iterations": iterations, **options}
        changes["keep_best"] = method in ("partitioned", "separate")
        if method == "validation":  # then six of finetuning, interrupted at 7
            changes |= {"chunks": (0.6, 0.4), "method_options": {"finetune_epochs": 0.8}, "iterations": 6}
        return training(task, shard(40), **changes)

    whole, reports = fresh(12), []
    whole.run(4, reports.append)
    part = fresh(12)
    assert whole.total == 12
    for _ in range(7):
        part.step()
        if part.completed in (4, *(stage.end for stage in part.stages)):
            part._report(None, 0.0)
    part.save(tmp_path / "x.pt")
    again, rest = fresh(12), []
    again.load(tmp_path / "x.pt")
    again.run(4, rest.append)
    assert torch.equal(whole.w, again.w) and torch.equal(whole.psi, again.psi)
    assert [(r.iteration, r.train_loss, r.lml) for r in rest] == [
        (r.iteration, r.train_loss, r.lml) for r in reports if r.iteration > 7
    ]


def test_only_what_can_be_prolonged_is(tmp_path):
    """Not what depends on how long it is: a cosine, finetuning after it, early stopping at reports."""
    run(training()).save(tmp_path / "a.pt")
    training(iterations=40).load(tmp_path / "a.pt")
    finetuned = {"method": "validation", "chunks": (0.5, 0.5), "method_options": {"finetune_epochs": 1}}
    for i, options in enumerate(({"schedule": "cosine"}, {"keep_best": True}, finetuned)):
        data = chunks(sizes=(20, 20)) if "method" in options else chunks()
        run(training(data=data, **options)).save(tmp_path / f"{i}.pt")
        with pytest.raises(ValueError, match="iterations was 30, is 40"):
            training(data=data, **options, iterations=40).load(tmp_path / f"{i}.pt")


def test_fit_learns():
    data = shard(60)
    options = {"iterations": 60, "evaluate_every": 20, "chunks": CHUNKS, "batch_size": 16}
    options |= {"optimiser": AdamSettings(0.02), "validation": shard(30, 5)}
    result = fit(Task(smooth_net(), samples=1), (data.inputs, data.targets), **options)
    first, last = result.metrics[0], result.metrics[-1]
    assert last.train_loss < first.train_loss and last.lml > first.lml
    assert last.val_nll < math.log(3) and 0 <= last.val_accuracy <= 1
    assert last.physical == result.psi and result.psi != {}
    net = result.module()
    torch.testing.assert_close(net(data.inputs), result.predict(data.inputs), rtol=1e-4, atol=1e-5)


def test_a_loop_of_ones_own_calls_the_steps():
    data = shard(40)
    state, other = training(data=data), training(data=data)
    for iteration in range(1, 6):
        rng = generator(3, "iteration", iteration)
        first, second = other.method.steps(other.schedule, iteration, rng)
        bounds = (0, 20, 32, 40)
        whole = other.examples(1, 3)
        rows = torch.from_numpy(rng.integers(0, bounds[first.last], 6))
        other.parameter_step(first.last, Batch(whole.inputs[rows], whole.targets[rows]))
        rows = torch.from_numpy(rng.integers(bounds[second.last - 1], bounds[second.last], 6))
        other.psi_step(second.last, Batch(whole.inputs[rows], whole.targets[rows]))
        state.step()
    assert torch.equal(state.w, other.w) and torch.equal(state.psi, other.psi) and other.completed == 5


def test_retraining_starts_from_the_psi_that_was_found():
    task = Task(chain_net(dropout=False), transforms=[AffineAugmentation("minmax", initial=0.3)], samples=2)
    found = run(training(task, shard(40), optimiser_psi=AdamSettings(0.05))).psi
    assert not torch.equal(found, task.psi_space.initial())
    again = run(training(task.with_psi(found), shard(40), method="none", method_options={"augment": True}))
    assert torch.equal(again.psi, found) and again.task.samples == 2
    assert torch.equal(
        task.psi_space.initial(),
        Task(chain_net(), transforms=[AffineAugmentation("minmax", initial=0.3)]).psi_space.initial()[:14],
    )


@pytest.mark.parametrize("safe", [True, False])
def test_augerino_steps_weights_and_widths_at_once(safe):
    """Black images are blind to warps: only the regulariser moves the raw widths r, lambda ||softplus(r)||,
    whose gradient is lambda softplus(r) / ||softplus(r)|| sigmoid(r)."""
    blind = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 3))
    grey = Dataset(torch.zeros(40, 1, 6, 6), torch.zeros(40, dtype=torch.int64))
    task = Task(blind, transforms=[AffineAugmentation("augerino", 0.5)], samples=1)
    options = {"weight": 0.2, "safe": safe}
    once = {"optimiser_psi": SGDSettings(1.0), "iterations": 1}
    state = training(task, grey, method="augerino", method_options=options, **once)
    w, raw = state.w.clone(), torch.full((6,), 0.5)
    loss = state.step()
    width = math.log1p(math.exp(0.5))
    gradient = 0.2 * width / (width * 6**0.5) / (1 + math.exp(-0.5))
    torch.testing.assert_close(state.psi, raw + gradient)
    assert not torch.equal(w, state.w)
    logits = blind[2].bias.detach()
    expected = -logits.log_softmax(0)[0].item() - 0.2 * width * 6**0.5
    assert loss == pytest.approx(expected, rel=1e-5)


def test_augerino_leaves_drop_rates_where_they_are():
    task = Task(chain_net(dropout=True), transforms=[AffineAugmentation("augerino", 0.5)], samples=1)
    state = run(training(task, shard(40), method="augerino", iterations=3))
    start = dict(zip(task.psi_names, task.psi_space.tensors(task.psi_space.initial()).values(), strict=True))
    moved = [name for name, value in state.psi_tensors().items() if not torch.equal(value, start[name])]
    assert len(start) > 1 and moved == ["affine.range"]


def test_fit_takes_a_network_alone_and_a_test_set():
    options = {"iterations": 4, "chunks": CHUNKS, "batch_size": 6, "evaluate_every": 2}
    alone = fit(chain_net(), chunks(), test=shard(20, 9), optimiser={"learning_rate": 0.01}, **options)
    task = fit(Task(chain_net(), samples=1), chunks(), optimiser=AdamSettings(0.01), **options)
    assert torch.equal(alone.state.w, task.state.w)
    scores = {"accuracy": alone.test_accuracy, "nll": alone.test_nll}
    assert scores == alone.state.evaluate(shard(20, 9)) and task.test_nll is None
    with pytest.raises(ValueError, match="outside the 3 classes"):
        fit(chain_net(), chunks(), test=(shard(5).inputs, shard(5).targets + 9), on_report=print, **options)


def test_chunks_that_are_given_have_their_own_sizes_and_may_be_pairs_of_tensors():
    state = training(data=chunks(sizes=(10, 20, 10)), weight_decay=0.1)
    assert state.shares == (0.25, 0.5, 0.25) and [len(c) for c in state.chunks] == [10, 20, 10]
    assert len(training(data=chunks(), method="none").chunks[0]) == 40  # a single network takes them all
    pairs = [(chunk.inputs, chunk.targets) for chunk in chunks(sizes=(20, 12))]
    options = {"iterations": 5, "batch_size": 6, "seed": 3}
    given = [fit(Task(smooth_net(), samples=1), data, **options) for data in (pairs, chunks(sizes=(20, 12)))]
    assert torch.equal(given[0].state.w, given[1].state.w)
    assert given[0].state.shares == (20 / 32, 12 / 32)
    with pytest.raises(ValueError, match="2 chunks of data for 3 proportions"):
        fit(Task(smooth_net(), samples=1), pairs, chunks=CHUNKS, **options)


def test_steps_of_partitions_that_are_not_there():
    state = training()
    before, data = (state.w.clone(), state.psi.clone()), state.chunks[0]
    batch = Batch(data.inputs, data.targets)
    rows = [("empty", partial(state.parameter_step, 1, Batch(*(t[:0] for t in batch[:2]))), "batch is empty")]
    rows += [(f"w {k}", partial(state.parameter_step, k, batch), f"to 3, got {k}") for k in (0, 4)]
    rows += [(f"psi {k}", partial(state.psi_step, k, batch), f"chunks 2 to 3, got {k}") for k in (1, 4)]
    refusals.check(rows)
    assert torch.equal(before[0], state.w) and torch.equal(before[1], state.psi) and state.completed == 0


def test_batches_of_ones_own_may_be_data_sets_or_pairs():
    chunk = chunks()[1]
    states = []
    for batch in (Batch(chunk.inputs, chunk.targets), chunk, (chunk.inputs, chunk.targets)):
        states.append(training())
        states[-1].parameter_step(2, batch)
        states[-1].psi_step(2, batch)
    assert not torch.equal(states[0].w, training().w)
    for other in states[1:]:
        assert torch.equal(states[0].w, other.w) and torch.equal(states[0].psi, other.psi)


@pytest.mark.slow
def test_an_unsafe_augerino_that_diverges_stops_and_names_the_safe_variant():
    task = Task(chain_net(dropout=False), transforms=[AffineAugmentation("augerino", 0.0)], samples=1)
    options = {"method": "augerino", "iterations": 400, "optimiser_psi": SGDSettings(1.0)}
    unsafe = training(task, shard(40), method_options={"safe": False, "weight": 1.0}, **options)
    with pytest.raises(TrainingError, match=r"has diverged.*the safe one \(safe: true\)"):
        run(unsafe)
    assert unsafe.completed < 400
    safe = run(training(task, shard(40), method_options={"safe": True, "weight": 1.0}, **options))
    assert safe.task.widths(safe.psi).max() < 25  # half of what counts as diverged


def test_ctrl_c_keeps_the_best_and_a_resumed_fit_its_stages(tmp_path):
    """What is saved is the last iteration, so that it goes on; what is returned is the best report's."""

    def run(**more):
        options = {"iterations": 60, "keep_best": True, "batch_size": 6, "seed": 3, "evaluate_every": 5}
        options |= {"optimiser": AdamSettings(0.05), "checkpoint": tmp_path / "fit.pt", "resume": True}
        return fit(Task(smooth_net(), samples=1), chunks(), **options, **more)

    def stop(report):
        if report.iteration == 50:
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background may be deaf to it
    stopped = run(on_report=stop)
    best = max(stopped.metrics, key=lambda report: report.lml)
    assert stopped.state.completed == 50 != best.iteration, "it must overfit, or this tests nothing"
    assert stopped.state.best.iteration == best.iteration
    assert stopped.state.w.equal(stopped.state.best.w) and stopped.state.psi.equal(stopped.state.best.psi)
    whole, again = run(), run()
    assert [report.stage for report in again.metrics] == [report.stage for report in whole.metrics]
    assert again.metrics[-1].stage is not None
