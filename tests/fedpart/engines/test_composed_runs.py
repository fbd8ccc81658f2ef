"""Federated runs whose clients' weights are composed from what networks of several sizes share."""

from functools import partial

import pytest
import sizes
import torch
from problems import assert_same, settings, shard, shards
from sizes import ARCHITECTURES, CHUNKS, EXAMPLES, WIDTHS, net, task
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fedpart import (
    ClipSettings,
    Dataset,
    LocalSettings,
    PrivacySettings,
    Protocol,
    SGDSettings,
    Task,
    personalise,
)
from fedpart.partition.sharing import SHARINGS
from fedpart.updates.stages import Clip, stage_of

BANK, TIGHT = {"kind": "bank", "budget": 1400}, {"kind": "bank", "clusters": [["*"]]}
COUPLED = {"kind": "bank", "budget": 900, "coupled": True}
BASIS = {"kind": "basis", "inputs": 0.5, "kernels": 0.5}
run = partial(sizes.run, sharing=BANK)
KINDS = {"bank": BANK, "tight": TIGHT, "coupled": COUPLED, "basis": BASIS}


@pytest.mark.quick(1)
@pytest.mark.parametrize("sharing", KINDS.values(), ids=KINDS)
def test_two_rounds_of_fedavg_are_those_that_are_written_out(sharing):
    """In float64: a number is averaged over the networks that have it, each through its composed weights."""
    data = shards(EXAMPLES)
    plain = Task(net(dropout=False), samples=1, precision="fp64", sizes=lambda width: net(width, False))
    local = LocalSettings(0.3, batch_size=99)
    found = run(2, plain, data, method="fedavg", server=SGDSettings(1.0), local=local, sharing=sharing)
    protocol = found.state.protocol
    options = {name: value for name, value in sharing.items() if name != "kind"}
    doubles = [net(width, False).double() for width in WIDTHS]
    modules = SHARINGS.make(sharing["kind"], options).compose(doubles, seed=3)
    for round in (1, 2):
        total, weight = {}, {}
        for client in protocol.cohort(round):
            module = modules[protocol.architectures[client]]
            named = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
            inputs, targets = data[client].inputs.double(), data[client].targets
            loss = F.cross_entropy(functional_call(module, named, (inputs,)), targets)
            for name, one in module.shared.items():
                if hasattr(one, "penalty"):
                    rows = named[f"shared.{name}.values"].flatten(1)
                    loss = loss + 10 * (rows @ rows.T - torch.eye(len(rows)).double()).square().mean()
            gradients = torch.autograd.grad(loss, [*named.values()])
            for (name, parameter), gradient in zip(module.named_parameters(), gradients, strict=True):
                assert name in named
                total[parameter] = total.get(parameter, 0) - 0.3 * gradient * len(targets)
                weight[parameter] = weight.get(parameter, 0) + len(targets)
        with torch.no_grad():
            for parameter, change in total.items():
                parameter.add_(change / weight[parameter])
    for index, module in enumerate(modules):
        for name, value in found.state.of_architecture(index).tensors().items():
            expected = dict(module.named_parameters())[name].detach()
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)


def test_psi_is_learned_from_clients_of_every_size():
    """A cohort of one client of the smallest network steps psi, and what it shares; other sizes' own stay."""
    for seed in range(20):
        drawn = settings(10, chunks=CHUNKS, cohort=1, seed=seed, architectures=ARCHITECTURES)
        protocol = Protocol(task(), drawn)
        (client,) = protocol.cohort(1)
        if protocol.chunk(client) > 1 and protocol.architectures[client] == 2:
            break
    before, found = (run(rounds, cohort=1, seed=seed).state for rounds in (0, 1))
    assert not torch.equal(before.psi, found.psi)
    changed = {}
    for index in range(3):
        old, new = (state.of_architecture(index).tensors() for state in (before, found))
        changed[index] = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed[0] and all(name.startswith("shared.") for name in changed[0])
    assert any(name.startswith("network.") for name in changed[2])


def test_a_network_that_is_taken_out_is_plain_and_psi_keeps_its_names():
    protocol = run(0, method="fedavg").state.protocol
    held = sum(parameter.numel() for parameter in protocol.task.module.parameters())
    assert protocol.partition.space.size == held - protocol.task.psi_space.size, "what is shared counts once"
    result, x = run(2), shard(20, 5).inputs
    for index, width in enumerate(WIDTHS):
        state = result.state.of_architecture(index)
        module = state.module()
        shapes = [{n: p.shape for n, p in of.named_parameters()} for of in (module, net(width))]
        assert shapes[0] == shapes[1]
        assert torch.equal(module[5].logit, state.psi_tensors()["5.logit"])
        plain = state.task.plain()
        composed = plain.outputs(state.tensors(), plain.psi_space.initial(), x, None, dropout=False)
        torch.testing.assert_close(module(x), composed, rtol=0, atol=1e-6)


def test_cells_are_clipped_to_the_norms_of_their_partitions_whatever_the_network():
    norms, shared = (0.01, 0.1, 0.2), {"architectures": ARCHITECTURES, "sharing": BANK}
    protocol = Protocol(task(), settings(10, chunks=CHUNKS, clip=ClipSettings(norms, psi=0.1), **shared))
    clips = stage_of(protocol.stages, Clip)
    for j, norm in enumerate(norms, start=1):
        for partition in protocol.partitions:
            assert {clips.bounds[cell].norm for cell in partition.cell_sizes(j)} == {norm}
    private = {"weighting": "uniform", "clip": ClipSettings(0.5, psi=0.5), "privacy": PrivacySettings(1.0)}
    assert run(1, **private).metrics[-1].epsilon > 0


def test_the_tasks_own_weights_are_where_its_size_begins_and_hyperparameters_stay_plain():
    own = net()
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.fill_(0.125)
    state = run(0, Task(own, samples=1, sizes=net), sharing={"kind": "bank"}).state
    for name, parameter in state.module().named_parameters():
        assert name == "5.logit" or (parameter == 0.125).all(), name
    assert torch.equal(state.of_architecture(1).module()[6].weight, net(0.6)[6].weight)
    one = [{"share": 1.0, "model_options": {"width": 1.0}}]
    learned = Task(net(), samples=1, sizes=net, hyperparameters=["4.bias", "4.weight"])
    found = run(1, learned, architectures=one)
    assert set(found.state.task.module.recipes) == {"1"}
    assert set(found.state.psi_tensors()) == {"4.weight", "4.bias", "5.logit"}


@pytest.mark.slow
def test_a_task_that_has_been_evaluated_is_composed_with_its_dropout():
    used, data = task(), shards(EXAMPLES)
    run(1, used, data, sharing=None, validation=shard(9, 1))
    assert_same(run(1, used, data), run(1))


@pytest.mark.slow
def test_a_client_trains_on_from_composed_weights():
    for sharing in (BANK, BASIS):
        result = run(1, sharing=sharing)
        for layers in (["*"], ["6.*"], ["own.*"]):
            personal = personalise(result, shard(12, 3), layers=layers, epochs=1)
            same = torch.equal(personal.module[6].weight, result.module()[6].weight)
            assert same == (layers == ["own.*"])


class WithLoss(nn.Module):
    """Computes its loss itself, from a dict of inputs."""

    def __init__(self, width=1.0):
        super().__init__()
        self.body = net(width)

    def forward(self, image, y=None):
        logits = self.body(image)
        return logits if y is None else F.cross_entropy(logits, y, reduction="none")


def test_a_network_is_called_as_it_wants_to_be():
    data = [Dataset({"image": one.inputs}, one.targets) for one in shards(EXAMPLES)]
    own = Task(WithLoss(), likelihood="from_model", samples=1, sizes=WithLoss)
    assert run(1, own, data).metrics[-1].train_loss > 0
