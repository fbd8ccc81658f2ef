"""HeteroFL's loss of the classes that a client has, and means over the clients that have a class."""

import pytest
import torch
from problems import augmentation, shard
from sizes import NestedMean, first, stepped
from torch import nn
from torch.nn import functional as F

from fedpart import AdamSettings, ClipSettings, LocalSettings, SGDSettings, Task, federate

WIDTHS = (1.0, 0.5)
ARCHITECTURES = [{"share": 0.5, "model_options": {"width": width}} for width in WIDTHS]
HELD = [(0, 1), (0,), (1, 2), (0, 1, 2), (0, 1), (1,)]  # classes of each client
MASKED = {"mask_classes": True}


def net(width=1.0):
    torch.manual_seed(0)
    units = round(4 * width)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, units), nn.Tanh(), nn.Linear(units, 3))


def shards(held=HELD):
    found = []
    for client, classes in enumerate(held):
        whole = shard(25 + client, client)
        found.append(whole.subset(torch.isin(whole.targets, torch.tensor(classes)).nonzero().view(-1)))
        assert found[-1].targets.unique().tolist() == list(classes)
    return found


def run(method="heterofl", rounds=2, data=None, options=MASKED, task=None, **changes):
    made = task or Task(net(), transforms=[augmentation()], samples=1, precision="fp64", sizes=net)
    local = LocalSettings(0.3, batch_size=99, epochs=2)
    common = {"cohort": 6, "seed": 3, "local": local, "server": SGDSettings(1.0)}
    common |= {"architectures": ARCHITECTURES, "method_options": options} | changes
    return federate(made, data or shards(), rounds=rounds, method=method, **common)


def assert_equal(one, other, atol=0.0):
    for value, same in zip(one.state.tensors().values(), other.state.tensors().values(), strict=True):
        torch.testing.assert_close(value, same, rtol=0, atol=atol)


def test_absent_classes_are_in_no_loss_and_no_mean_written_out():
    """Elementwise: a mean over the clients that have the number and, in the last layer, its row's class."""
    found, data = run().state, shards()
    protocol, module = found.protocol, net().double()
    for round in (1, 2):
        mean = NestedMean(module)
        for client in protocol.cohort(round):
            units = int(4 * WIDTHS[protocol.architectures[client]])
            part, before = mean.part(first(units)), mean.part(first(units))
            x, y = data[client].inputs.double().flatten(1), data[client].targets
            there = torch.zeros(3, dtype=torch.double)
            there[list(HELD[client])] = 1
            for _ in range(2):
                logits = F.linear(F.linear(x, part[0], part[1]).tanh(), part[2], part[3])
                stepped(part, F.cross_entropy(logits * there, y))
            masks = [torch.ones(units, 1), torch.ones(units), there[:, None].expand(3, units), there]
            changes = [(now - then).detach() for now, then in zip(part, before, strict=True)]
            mean.add(first(units), changes, len(y), masks)
        mean.step()
    for value, parameter in zip(found.tensors().values(), module.parameters(), strict=True):
        torch.testing.assert_close(value, parameter.detach(), rtol=0, atol=1e-12)


def test_without_masks_and_with_all_classes_it_is_fedavg():
    assert_equal(run(options={}), run("fedavg", options={}))
    everything = shards([(0, 1, 2)] * 6)
    assert_equal(run(data=everything), run("fedavg", data=everything, options={}), atol=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"upload": "int8"},
        {"upload": "topk", "upload_options": {"share": 0.9}},
        {"clip": ClipSettings(0.1)},
    ],
)
def test_the_row_of_a_class_that_nobody_has_keeps_value_and_state(changes):
    data, changes = shards([(0, 1), (0,), (1,), (0, 1), (0, 1), (1,)]), {"server": AdamSettings(), **changes}
    state = run(data=data, **changes).state
    weight, bias = list(state.tensors().values())[2:]
    assert torch.equal(weight[2], net().double()[3].weight[2]) and bias[2] == net().double()[3].bias[2]
    assert not torch.equal(weight[:2], net().double()[3].weight[:2])
    untouched = [not one for one in state.optimiser.state_dict()]
    assert untouched == [group == 3 for group in state.partition.group_of]
    plain = run("fedavg", data=data, options={}, **changes).state.tensors()["3.weight"]
    assert not torch.equal(plain[2], weight[2])


@pytest.mark.parametrize(
    "changes", [{}, {"upload": "topk", "error_feedback": True}, {"clip": ClipSettings(0.1)}]
)
def test_workers_and_a_resumed_run_have_the_bits_of_one_process(tmp_path, changes):
    whole = run(rounds=3, **changes)
    assert_equal(run(rounds=3, workers=2, **changes), whole)
    run(rounds=2, checkpoint=tmp_path / "run.pt", **changes)
    assert_equal(run(rounds=3, checkpoint=tmp_path / "run.pt", resume=True, **changes), whole)
