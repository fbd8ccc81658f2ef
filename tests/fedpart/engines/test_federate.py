"""federate(): a whole run in one call."""

import tracemalloc
from functools import partial

import pytest
import torch
from problems import (
    CLASSES,
    SIZE,
    Lazy,
    assert_same,
    augmentation,
    chain_net,
    norm_net,
    shard,
    shards,
    upload_numbers,
)
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from fedpart import (
    AdamSettings,
    Dataset,
    Federation,
    FederationSettings,
    LocalSettings,
    Protocol,
    Task,
    federate,
)
from fedpart.engines import LocalEngine

SIZES = [4, 7, 3, 9, 5, 6, 2, 8]
CHUNKS = (0.5, 0.3, 0.2)


def run(task=None, data=None, **changes):
    task = task or Task(chain_net(), transforms=[augmentation()], samples=2)
    return federate(task, data or shards(SIZES), **{"rounds": 3, "chunks": CHUNKS, "cohort": 4, **changes})


def test_it_learns():
    data = [shard(20, seed) for seed in range(8)]
    task, scored = Task(chain_net(dropout=False), samples=1), {"validation": shard(200, 99)}
    scored |= {"evaluate_every": 8, "server": AdamSettings(2e-2)}
    result = federate(task, data, rounds=20, method="fedavg", **scored)
    assert [report.round for report in result.metrics] == list(range(1, 21))
    scored = [report.round for report in result.metrics if report.val_accuracy is not None]
    assert scored == [8, 16, 20], "every 8 rounds, and in the end"
    assert result.metrics[-1].val_accuracy > 0.7 > 1 / CLASSES
    assert result.metrics[-1].val_nll < result.metrics[7].val_nll
    assert result.metrics[-1].train_loss < result.metrics[0].train_loss


def test_reports_count_what_happened():
    seen = []
    result = run(on_round=seen.append, seed=2)
    assert seen == result.metrics
    protocol, state = result.state.protocol, result.state
    for report in seen:
        assert report.cohort == protocol.cohort(report.round)
        numbers = [upload_numbers(protocol, c, protocol.plan(c, report.round)) for c in report.cohort]
        assert 0 <= report.upload_bytes - 4 * sum(numbers) <= 1024 * len(numbers)
        assert 0 <= report.download_bytes - 16 * (len(state.w) + len(state.psi)) <= 4 * 1024
        assert report.val_accuracy is None and report.skipped == []
        assert set(report.psi) == {"affine.range", "3.logit"} and len(report.psi["affine.range"]) == 6
    assert seen[-1].physical == result.psi


@pytest.mark.parametrize("execution", ["loop", "grouped"])
def test_examples_are_those_of_every_gradient(execution):
    """In an epoch of every job that trains, and of psi's gradient the three that are drawn."""
    local = LocalSettings(batch_size=3, epochs=2, psi_batch=3)
    result = run(local=local, execution=execution)
    plan, chunks = result.state.protocol.plan, set()
    for report in result.metrics:
        jobs = [(SIZES[c], job) for c in report.cohort for job in plan(c, report.round)]
        expected = sum(min(n, 3) if job.partition is None else 2 * n for n, job in jobs)
        assert report.examples == expected and 0 < report.client_seconds <= report.seconds
        chunks |= {job.subnetwork for _, job in jobs}
    assert chunks == {1, 2, 3}


@pytest.mark.parametrize("network, method", [(chain_net, "fedavg"), (norm_net, "partitioned")])
def test_the_module_alone_predicts_as_the_task_does_without_transforms(network, method):
    result = run(Task(network(), samples=3), method=method, rounds=4)
    x = shard(40, 5).inputs
    module = result.module()
    assert not module.training and all(p.requires_grad for p in module.parameters())
    with torch.no_grad():
        torch.testing.assert_close(module(x), result.predict(x))
    fresh = network()
    for name, parameter in module.named_parameters():
        learned = method == "partitioned" or not name.endswith("logit")
        assert torch.equal(parameter, fresh.get_parameter(name)) != learned, name
    fresh.load_state_dict(module.state_dict())  # names and shapes are the user's own


def test_predictions_average_over_transforms_and_repeat():
    result = run(rounds=2)
    x = shard(300, 5).inputs  # several batches
    assert result.predict(x).shape == (300, CLASSES)
    assert torch.equal(result.predict(x), result.predict(x))
    with torch.no_grad():
        assert not torch.allclose(result.predict(x), result.module()(x))


def test_double_precision():
    task = Task(chain_net(), transforms=[augmentation()], samples=2, precision="fp64")
    result, single = run(task), run()
    assert result.state.w.dtype == result.state.psi.dtype == torch.float64
    assert result.predict(shard(5).inputs).dtype == torch.float64
    assert all(p.dtype == torch.float64 for p in result.module().parameters())
    torch.testing.assert_close(result.state.w.float(), single.state.w, atol=2e-4, rtol=0)


def test_regression():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 1))
    data = [Dataset(s.inputs, s.inputs.mean((1, 2, 3))) for s in shards([20] * 6)]
    task = Task(net, likelihood="gaussian", samples=1)
    result = run(task, data, rounds=40, validation=data[0], server=AdamSettings(1e-2))
    last = result.metrics[-1]
    assert last.val_accuracy is None
    assert last.val_nll == pytest.approx(0.5 * 1.8379, abs=0.05), "half of log 2 pi, plus a small error"
    assert result.predict(data[0].inputs).shape == (20, 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_round_in_which_everybody_is_skipped(workers):
    data = [Dataset(s.inputs, s.targets + CLASSES) for s in shards(SIZES)]
    result = run(data=data, on_client_error="skip", workers=workers)
    assert [len(report.skipped) for report in result.metrics] == [4, 4, 4]
    assert {(report.train_loss, report.upload_bytes) for report in result.metrics} == {(None, 0)}
    assert torch.equal(result.state.w, Federation(result.state.protocol).w)


def test_a_test_set_is_scored_once_at_the_end():
    test = shard(30, 7)
    result, other = run(test=(test.inputs, test.targets)), run()
    assert_same(result, other)  # looking changes nothing
    assert {"accuracy": result.test_accuracy, "nll": result.test_nll} == result.state.evaluate(test)
    assert other.test_accuracy is other.test_nll is None
    assert run(test=test, evaluation="none").test_nll is None
    fewer = run(test=test, evaluation_samples=1)
    assert fewer.test_nll == fewer.state.evaluate(test, samples=1)["nll"] != result.test_nll
    assert_same(fewer, result)


def test_a_network_alone_is_a_classification_in_one_sample_and_the_default_cohort_fits_few_clients():
    networks = chain_net(), Task(chain_net(), samples=1)
    assert_same(*(federate(network, shards(SIZES), rounds=2) for network in networks))
    result = federate(Task(chain_net(), samples=1), shards([4, 5, 6]), rounds=1)
    assert result.metrics[0].cohort == [0, 1, 2]


FORMS = [
    lambda data, places: data[places],
    lambda data, places: Subset(data, places),
    lambda data, places: DataLoader(Subset(data, places), batch_size=2, shuffle=True),
    lambda data, places: TensorDataset(*data[places]),
    lambda data, places: tuple(part.numpy() for part in data[places]),
]


def test_examples_may_be_in_what_torch_has_for_them():
    """Each client's, and those that are scored, in another form."""
    pooled = shard(40)
    data, places = TensorDataset(pooled.inputs, pooled.targets), [[*range(c, 40, 8)] for c in range(8)]
    own = [FORMS[c % len(FORMS)](data, places[c]) for c in range(8)]
    result = run(data=own, validation=own[2], test=own[4], rounds=1, cohort=8)
    plain = run(data=[pooled.subset(part) for part in places], rounds=1, cohort=8)
    assert_same(result, plain)
    assert result.metrics[0].val_nll == pytest.approx(plain.state.evaluate(pooled.subset(places[2]))["nll"])
    assert result.test_nll == pytest.approx(plain.state.evaluate(pooled.subset(places[4]))["nll"])


MANY = 30_000


def test_only_shards_of_the_cohort_are_read_which_is_drawn_without_a_list_of_all():
    def read(client):
        data = shard(4, client)
        return data if client % 2 else (data.inputs, data.targets)

    data = Lazy(read, MANY)
    result = federate(Task(chain_net(), transforms=[augmentation()], samples=2), data, rounds=3)
    assert data.asked == [client for report in result.metrics for client in report.cohort]
    assert len(set(data.asked)) == 30 and max(data.asked) > MANY // 2
    chosen = [*result.state.protocol.assignment.first(MANY)]
    assert [chosen.count(k) / MANY for k in (1, 2, 3)] == [0.7, 0.2, 0.1]
    protocol = Protocol(Task(torch.nn.Linear(4, 2)), FederationSettings(clients=MANY))
    tracemalloc.start()
    cohorts = [protocol.cohort(round) for round in range(1, 6)]
    assert tracemalloc.get_traced_memory()[1] < MANY
    tracemalloc.stop()
    assert all(len(set(cohort)) == 10 for cohort in cohorts)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_memory_hardly_depends_on_them(workers):
    def peak(clients):
        tracemalloc.start()
        federation = Federation(Protocol(task, FederationSettings(clients=clients)))
        with LocalEngine(federation, Lazy(partial(shard, 4), clients), workers) as engine:
            engine.run(2)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    task = Task(chain_net(), samples=1)
    peak(100)  # what is imported and cached on first use
    assert peak(MANY) - peak(100) < 20 * MANY, "bytes per registered client, while chunks are drawn"
