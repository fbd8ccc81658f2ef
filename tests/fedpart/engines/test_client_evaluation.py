"""Clients score the network on examples that neither weights nor psi have learned from."""

from dataclasses import replace

import pytest
import torch
from problems import (
    CLASSES,
    after,
    assert_near,
    assert_same,
    augmentation,
    chain_net,
    settings,
    shard,
    shards,
)
from tiny import tiny

from fedpart import Federation, LocalSettings, Protocol, Task, federate
from fedpart.engines.batches import count_held_out, divided, local_batches
from fedpart.task.gradients import Job
from simulations.building.experiment import build
from simulations.folders.run_directory import read_metrics
from simulations.running.run import run_experiment

SIZES = (7, 12, 3, 9, 10, 1, 15, 20)
SCORES = ("client_accuracy", "client_nll", "client_accuracy_worst_decile", "client_accuracy_chunks")
FEDEX = {"method": "fedex", "method_options": {"held_out": 0.3}}


def run(data=None, rounds=3, every=2, **changes):
    """Reports and state; no two examples of a batch are alike, whatever the machine."""
    task = Task(chain_net(), transforms=[augmentation()], samples=2)
    changes = {"chunks": (0.5, 0.3, 0.2), "cohort": 5, "seed": 3, "evaluation": "clients", **changes}
    local = LocalSettings(learning_rate=0.2, batch_size=4, psi_batch=changes.pop("psi_batch", "shard"))
    data = shards(SIZES) if data is None else data
    return federate(task, data, rounds=rounds, evaluate_every=every, local=local, **changes)


def scores(result):
    return [[getattr(report, name) for name in SCORES] for report in result.metrics]


def test_they_are_the_same_whoever_computes_the_cohort():
    task = Task(chain_net(dropout=False), samples=1, precision="fp64")
    options = {"rounds": 3, "evaluation": "clients", "cohort": 5, "local": LocalSettings(0.3, batch_size=32)}
    ways = "loop", "grouped", "fused"
    loop, *others = (federate(task, shards(SIZES), execution=way, **options) for way in ways)
    for other in others:
        assert_near(loop, other, rtol=1e-9, atol=1e-9)
        assert loop.metrics[-1].client_nll == pytest.approx(other.metrics[-1].client_nll)


def test_they_are_those_of_a_sum_by_hand():
    """Without noise: the network's own outputs for the examples that are in no batch."""
    task = Task(chain_net(dropout=False), samples=1)
    result = federate(task, shards(SIZES), rounds=3, evaluation="clients", evaluation_share=0.4, seed=3)
    nll = right = count = 0
    for client, data in enumerate(shards(SIZES)):
        held = divided(result.state.protocol, client, len(data)).evaluation
        out = result.predict(data.inputs[held]) if len(held) else torch.zeros(0, CLASSES)
        nll += torch.nn.functional.cross_entropy(out, data.targets[held], reduction="sum").item()
        right += int((out.argmax(1) == data.targets[held]).sum())
        count += len(held)
    last = result.metrics[-1]
    assert count == sum(count_held_out(0.4, n) for n in SIZES) < sum(SIZES)
    assert last.client_nll == pytest.approx(nll / count, rel=1e-5)
    assert last.client_accuracy == right / count


@pytest.mark.quick(1)
@pytest.mark.parametrize("changes", [{"psi_batch": 4}, {"execution": "grouped"}, FEDEX])
def test_what_is_held_out_reaches_neither_weights_nor_psi(changes):
    whole, data = run(**changes), shards(SIZES)
    for client, mine in enumerate(data):
        held, other = (
            divided(whole.state.protocol, client, len(mine)).evaluation,
            shard(len(mine), 99 + client),
        )
        mine.inputs[held], mine.targets[held] = other.inputs[held], other.targets[held]
    replaced = run(data, **changes)
    assert_same(whole, replaced)
    assert [r.lml for r in whole.metrics] == [r.lml for r in replaced.metrics]
    assert scores(whole) != scores(replaced)


@pytest.mark.slow
def test_a_run_without_it_learns_from_all_examples_and_a_sample_of_the_clients_is_enough():
    ways = {}, {"evaluation_clients": 2}, {"evaluation": "central"}, {"evaluation": "none"}
    kept, few, central, none = (run(**changes) for changes in ways)
    assert sum(len(divided(kept.state.protocol, i, n).learned) for i, n in enumerate(SIZES)) < sum(SIZES)
    assert_same(none, central)
    assert not torch.equal(kept.state.w, central.state.w)
    assert scores(central) == scores(none) == [[None] * len(SCORES)] * 3
    evaluated = [report.round for report in kept.metrics if report.client_nll is not None]
    assert evaluated == [report.round for report in kept.metrics if report.evaluation_bytes] == [2, 3]
    assert_same(few, kept)
    assert scores(few) != scores(kept)
    assert few.metrics[-1].evaluation_bytes * len(SIZES) == kept.metrics[-1].evaluation_bytes * 2


@pytest.mark.parametrize("changes", [{}, FEDEX])
def test_the_parts_of_a_shard_are_disjoint_and_whole(changes):
    chosen = settings(len(SIZES), evaluation="clients", evaluation_share=0.3, **changes)
    protocol = Protocol(Task(chain_net()), chosen)
    for client in range(len(SIZES)):
        for examples in range(1, 30):
            parts = divided(protocol, client, examples)
            assert sorted(torch.cat(parts).tolist()) == list(range(examples))
            assert len(parts.learned) >= 1 and len(parts.evaluation) == count_held_out(0.3, examples)
            assert (len(parts.feedback) > 0) == (bool(changes) and examples - len(parts.evaluation) > 1)
            for job in (Job(1, 1), Job(1, psi=True)):
                view = protocol.view(client, 4)
                seen = torch.cat(local_batches(protocol, view, view.local, examples, job))
                assert torch.equal(seen.sort().values, parts.learned.sort().values)


def test_a_client_that_fails_in_it_is_left_out_or_ends_the_run():
    data = shards(SIZES)
    chosen = settings(len(SIZES), evaluation="clients", on_client_error="skip")
    federation = Federation(Protocol(Task(chain_net()), chosen))
    held = divided(federation.protocol, 3, SIZES[3]).evaluation
    data[3].targets[held] = CLASSES  # nobody meets these in training
    _, reports = after(2, federation, data, evaluate_every=1)
    assert [report.refused for report in reports] == [{"client_error": 1}] * 2
    assert all(report.skipped == [] and report.client_accuracy is not None for report in reports)


def test_examples_of_their_own_are_scored_and_nothing_is_held_out():
    own = [shard(4 + client, 50 + client) for client in range(len(SIZES))]
    task = Task(chain_net(dropout=False), samples=1)
    data = [replace(one, evaluation=other) for one, other in zip(shards(SIZES), own, strict=True)]
    result = federate(task, data, rounds=3, evaluation="clients", evaluation_share=None, seed=3)
    central = federate(task, data, rounds=3, seed=3)
    assert_same(result, central)
    out = result.predict(torch.cat([one.inputs for one in own]))
    targets = torch.cat([one.targets for one in own])
    last = result.metrics[-1]
    assert last.client_accuracy == int((out.argmax(1) == targets).sum()) / len(targets)
    assert last.client_nll == pytest.approx(torch.nn.functional.cross_entropy(out, targets).item(), rel=1e-5)


@pytest.mark.slow
def test_the_last_rounds_are_evaluated_on_all_validation_data(tmp_path):
    both = {"validation_points": 30, "full_validation_rounds": 2}
    ways = {"few": {"validation_points": 30}, "all": {"validation_points": None}, "both": both}
    runs = {}
    for name, changes in ways.items():
        run_experiment(tiny(rotated=True, evaluate_every=1, rounds=3, **changes), tmp_path / name)
        runs[name] = [line["val_nll"] for line in read_metrics(tmp_path / name)]
    assert runs["both"] == [*runs["few"][:1], *runs["all"][1:]] and len(runs["both"]) == 3
    assert runs["few"][2] != runs["all"][2]


@pytest.mark.parametrize("samples", [(4, 1), (1, 4)])
def test_an_evaluation_with_other_samples_is_that_of_a_task_with_these(samples):
    experiment, other = (build(tiny(samples=s)) for s in samples)
    found = experiment.start().evaluate(experiment.validation, samples=samples[1])
    assert found == pytest.approx(Federation(other.protocol).evaluate(other.validation), abs=1e-6)
    assert torch.equal(experiment.validation.inputs, other.validation.inputs)
