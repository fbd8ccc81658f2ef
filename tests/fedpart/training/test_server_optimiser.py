"""The server's Adam: per partition, torch's own, stepped only in rounds with a contributor."""

import copy
import gc
import math
import pickle
import weakref

import pytest
import torch
from problems import Recorder, augmentation, chain_net, settings, shard, shards, smooth_net

from fedpart import AdamSettings, ClientError, Federation, LocalSettings, Protocol, Task, fit
from fedpart.engines import LocalEngine
from fedpart.federated.cohorts import CohortSum
from fedpart.training.optimisers import SlicedOptimiser
from fedpart.updates.errors import blamed

SLICES = [slice(0, 7), slice(7, 8), slice(8, 29)]


def test_state_is_restored_and_a_slice_never_stepped_has_none():
    vectors = [torch.ones(29), torch.ones(29)]
    first, second = (SlicedOptimiser(vector, SLICES, AdamSettings(0.1)) for vector in vectors)
    for index in (2, 0, 2):
        first.step(index, torch.full((SLICES[index].stop - SLICES[index].start,), 0.5))
    second.step(1, torch.ones(1))  # forgotten when the state is loaded
    assert first.state_dict()[1] == {}
    vectors[1].copy_(vectors[0])
    second.load_state_dict(first.state_dict())
    first.state_dict()[0]["exp_avg"].add_(0)  # the two share no memory
    for index in (1, 2, 0):
        gradient = torch.linspace(-1, 1, SLICES[index].stop - SLICES[index].start)
        first.step(index, gradient.clone())
        second.step(index, gradient.clone())
    assert torch.equal(*vectors)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_a_federation_steps_what_was_trained_and_nothing_else(weighting):
    data = shards([3, 6, 2, 5, 4, 7, 3, 5, 2, 6])
    adams = {"server": AdamSettings(0.01, eps=1e-6), "server_psi": AdamSettings(0.05, betas=(0.5, 0.9))}
    fixed = settings(len(data), cohort=2, chunks=(0.4, 0.3, 0.3), weighting=weighting, **adams)
    federation = Recorder(Protocol(Task(chain_net()), fixed))
    engine, partition = LocalEngine(federation, data), federation.protocol.partition
    w = {j: federation.w[partition.slice(j)].clone() for j in (1, 2, 3)}
    psi = federation.psi.clone()
    adams = {j: torch.optim.Adam([w[j]], lr=0.01, eps=1e-6, fused=True) for j in w}
    adam_psi = torch.optim.Adam([psi], lr=0.05, betas=(0.5, 0.9), fused=True)

    rested = {"w": 0, "psi": 0}
    for _ in range(12):
        before = copy.deepcopy([*federation.optimiser.state_dict(), *federation.optimiser_psi.state_dict()])
        engine.run_round()
        total = federation.totals[-1]
        after = [*federation.optimiser.state_dict(), *federation.optimiser_psi.state_dict()]
        for j, adam in adams.items():
            if j in total["deltas"]:
                w[j].grad = -(total["deltas"][j] / total["weights"][j])
                adam.step()
            else:
                rested["w"] += 1
                assert_same(before[j - 1], after[j - 1])
            assert torch.equal(federation.w[partition.slice(j)], w[j])
        if total["psi"] is not None:
            psi.grad = total["psi"] / total["psi_weight"]
            adam_psi.step()
        else:
            rested["psi"] += 1
            assert_same(before[-1], after[-1])
        assert torch.equal(federation.psi, psi)
    assert rested["w"] >= 3 and rested["psi"] >= 2, "the cohorts leave something out, or nothing is tested"
    before, of_w = copy.deepcopy(after), federation.w.clone()
    federation.step(CohortSum())  # a round without answers
    assert federation.round == 13 and torch.equal(federation.w, of_w) and torch.equal(federation.psi, psi)
    after = [*federation.optimiser.state_dict(), *federation.optimiser_psi.state_dict()]
    for one, other in zip(before, after, strict=True):
        assert_same(one, other)


def assert_same(before, after):
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


SIZES = [4, 7, 3, 9, 5, 6]
RATE, LOCAL, BETA = 0.03, 0.5, 0.2


def two_rounds(local=LOCAL, **changes):
    """A federation whose clients all take one step along the gradient of their whole shard, twice."""
    changes = {"chunks": (0.5, 0.3, 0.2), "server": AdamSettings(RATE), **changes}
    task = Task(smooth_net(), precision="fp64")
    federation = Recorder(Protocol(task, settings(len(SIZES), local=LocalSettings(local), **changes)))
    engine = LocalEngine(federation, shards(SIZES))
    first = engine.run_round()
    state = copy.deepcopy([*federation.optimiser.state_dict(), *federation.optimiser_psi.state_dict()])
    return federation, state, [first, engine.run_round()]


def test_psis_rates_grow_by_how_far_two_rounds_gradients_agree():
    """After one step, Adam's moments are the first gradient and its square."""
    federation, _, _ = two_rounds(server_psi=AdamSettings(RATE, hypergradient=BETA))
    first, second = (total["psi"] / total["psi_weight"] for total in federation.totals)
    agree = (second / first).clamp(-1, 1).nan_to_num(0.0)
    learned = federation.optimiser_psi.state_dict()[0]["log_rate"]
    torch.testing.assert_close(learned, BETA * agree, rtol=1e-6, atol=1e-12)
    assert agree.abs().max() > 0


def test_components_of_psi_have_rates_of_their_own_that_grow_where_gradients_agree():
    """One component has a gradient that stays, one noise, one that a step too long turns round, one none."""
    noise = torch.randn(400, generator=torch.Generator().manual_seed(0)).double()
    psi = torch.zeros(4).double()
    fixed = psi.clone()
    sliced = SlicedOptimiser(psi, [slice(None)], AdamSettings(0.1, hypergradient=0.02))
    adam = SlicedOptimiser(fixed, [slice(None)], AdamSettings(0.1))
    for i, random in enumerate(noise):
        gradient = torch.tensor([1e-6, random, 1.0 if i % 2 else -1.0, 0.0]).double()
        before = torch.stack([psi, fixed])
        sliced.step(0, gradient)
        adam.step(0, gradient)
        learned = sliced.state_dict()[0].get("log_rate", torch.zeros(4)).exp()
        torch.testing.assert_close(psi - before[0], (fixed - before[1]) * learned, rtol=1e-6, atol=1e-9)
    stays, random, turns, none = sliced.state_dict()[0]["log_rate"].tolist()
    assert stays == pytest.approx(math.log(30)), "399 times 0.02 is more than a rate may grow"
    assert abs(random) < 1 and turns < -0.3 and none == 0
    with pytest.raises(ValueError, match="in the place of one"):  # a checkpoint with one rate for all
        sliced.load_state_dict([{**adam.state_dict()[0], "log_rate": torch.zeros(()).double()}])


def test_a_centralised_run_that_is_resumed_goes_on_with_psis_rates(tmp_path):
    def run(iterations, **keywords):
        psi = AdamSettings(RATE, hypergradient=BETA)
        task = Task(chain_net(), transforms=[augmentation()], samples=1)
        fixed = {"batch_size": 4, "chunks": (0.5, 0.5)}
        return fit(task, shard(12), iterations=iterations, optimiser_psi=psi, **fixed, **keywords)

    whole, path = run(6), tmp_path / "run.pt"
    run(3, checkpoint=path)
    resumed = run(6, checkpoint=path, resume=True)
    assert torch.equal(resumed.state.psi, whole.state.psi)
    rates = whole.state.optimiser_psi.state_dict()[0]["log_rate"]
    assert rates.shape == whole.state.psi.shape and len(set(rates.tolist())) > 1


def test_two_rounds_cannot_tell_the_clients_rate():
    """Adam undoes a factor on all changes, so where clients take one step their rate changes nothing."""
    adam = AdamSettings(RATE, eps=1e-300)
    one, ten = (two_rounds(local, server=adam)[0] for local in (LOCAL, 10 * LOCAL))
    torch.testing.assert_close(one.w, ten.w, rtol=0, atol=1e-13)
    assert (one.totals[1]["deltas"][3] * 10).allclose(ten.totals[1]["deltas"][3])


def test_what_is_no_longer_used_is_freed_at_once():
    """The collector comes when it wants; until then a GPU would be full."""

    def fails():
        numbers = torch.zeros(3)
        seen.append(weakref.ref(numbers))
        raise ClientError("its loss is nan")

    seen, vector = [], torch.zeros(3)
    optimiser = SlicedOptimiser(vector, [slice(None)], AdamSettings(0.1))
    optimiser.step(0, torch.ones(3))
    seen.append(weakref.ref(optimiser))
    gc.disable()
    try:
        del optimiser
        with pytest.raises(ClientError), blamed(1, 1):
            fails()
        assert [kept() for kept in seen] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("download", [None, "bf16"])
def test_a_federation_is_pickled(download):
    federation = Federation(Protocol(Task(chain_net(), samples=1), settings(4, download=download)))
    start, again = (state.start(1) for state in (federation, pickle.loads(pickle.dumps(federation))))
    assert torch.equal(start.w, again.w) and torch.equal(start.w, federation.w) == (download is None)
