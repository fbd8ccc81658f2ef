"""FedRolex and FjORD: baselines over clients with networks of nested widths."""

import pytest
import torch
from problems import augmentation, shard, shards
from sizes import NestedMean, first, stepped
from torch import nn
from torch.nn import functional as F

from fedpart import AdamSettings, ClipSettings, LocalSettings, SGDSettings, Task, federate
from fedpart.methods.widths import FjORD
from fedpart.partition.nodes import rolled
from fedpart.partition.space import ParameterSpace

EXAMPLES = [5, 9, 6, 8, 7, 4]
WIDTHS = (1.0, 0.5)
ARCHITECTURES = [{"share": 0.5, "model_options": {"width": width}} for width in WIDTHS]


def conv(width=1.0):
    torch.manual_seed(0)
    a, b = round(4 * width), round(6 * width)
    return nn.Sequential(
        nn.Conv2d(1, a, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(9 * a, b), nn.Tanh(), nn.Linear(b, 3),
    )  # fmt: skip


def dense(width=1.0):
    torch.manual_seed(0)
    units = round(4 * width)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, units), nn.Tanh(), nn.Linear(units, 3))


def run(method, rounds=3, build=conv, workers=1, **changes):
    task = Task(build(), transforms=[augmentation()], samples=1, precision="fp64", sizes=build)
    common = {"cohort": 6, "seed": 3, "local": LocalSettings(0.3, batch_size=99), "server": SGDSettings(1.0)}
    common |= {"architectures": ARCHITECTURES} | changes
    return federate(task, shards(EXAMPLES), rounds=rounds, method=method, workers=workers, **common)


def test_rolled_units_are_the_same_network():
    module = conv().double()
    space = ParameterSpace(module)
    own = torch.randn(space.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = torch.randn(5, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    moved, before = own[rolled(space, module)], torch.func.functional_call(module, space.tensors(own), x)
    torch.testing.assert_close(torch.func.functional_call(module, space.tensors(moved), x), before)
    assert torch.equal(space.tensors(moved)["0.weight"], space.tensors(own)["0.weight"].roll(-1, 0))
    again = own
    for _ in range(12):  # 4 and 6 units are back
        again = again[rolled(space, module)]
    assert torch.equal(again, own)


def test_fedrolex_trains_a_window_that_moves_by_one_unit_a_round():
    """Written out with the window: units t, t+1 of four in round t, an elementwise mean over who has them."""
    rounds = 5
    found = run("fedrolex", rounds, build=dense).state
    protocol, module = found.protocol, dense().double()
    data = shards(EXAMPLES)
    for round in range(rounds):
        window = [(round + unit) % 4 for unit in range(2)]
        mean = NestedMean(module)
        for client in protocol.cohort(round + 1):
            units = window if protocol.architectures[client] == 1 else [(round + i) % 4 for i in range(4)]
            places = [(units,), (units,), (slice(None), units), (slice(None),)]
            part = mean.part(places)
            x, y = data[client].inputs.double().flatten(1), data[client].targets
            loss = F.cross_entropy(F.linear(F.linear(x, part[0], part[1]).tanh(), part[2], part[3]), y)
            mean.add(places, [-0.3 * gradient for gradient in torch.autograd.grad(loss, part)], len(y))
        mean.step()
    for name, axis in (("1.weight", 0), ("1.bias", 0), ("3.weight", 1)):  # the server's units have moved
        expected = module.get_parameter(name).detach().roll(-rounds, axis)
        torch.testing.assert_close(found.tensors()[name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("distil", [False, True])
def test_fjord_draws_a_width_for_every_step_written_out(distil):
    local = LocalSettings(0.3, batch_size=99, epochs=4)  # four steps on all examples of a client
    found = run("fjord", 2, build=dense, local=local, method_options={"distil": distil}).state
    protocol, module, data, drawn = found.protocol, dense().double(), shards(EXAMPLES), []
    draws = FjORD()
    for round in (1, 2):
        mean = NestedMean(module)
        for client in protocol.cohort(round):
            own, n = protocol.architectures[client], len(data[client])
            places = first(2 if own == 1 else 4)
            part, before = mean.part(places), mean.part(places)
            x, y = data[client].inputs.double().flatten(1), data[client].targets
            for size in draws.architectures(protocol.view(client, round), 4):
                drawn.append((own, size))
                units = 4 if size == 0 else 2
                hidden = F.linear(x, part[0][:units], part[1][:units]).tanh()
                logits = F.linear(hidden, part[2][:, :units], part[3])
                loss = F.cross_entropy(logits, y)
                if distil:
                    whole = F.linear(F.linear(x, part[0], part[1]).tanh(), part[2], part[3])
                    loss = F.cross_entropy(whole, y)
                    if size != own:
                        loss = loss - (whole.detach().softmax(1) * logits.log_softmax(1)).sum(1).mean()
                stepped(part, loss)
            mean.add(places, [(now - then).detach() for now, then in zip(part, before, strict=True)], n)
        mean.step()
    assert set(drawn) == {(0, 0), (0, 1), (1, 1)}
    for value, parameter in zip(found.tensors().values(), module.parameters(), strict=True):
        torch.testing.assert_close(value, parameter.detach(), rtol=0, atol=1e-12)


def test_only_a_client_with_parts_distils():
    protocol = run("fjord", 1).state.protocol
    views = {protocol.architectures[client]: protocol.view(client, 1) for client in range(6)}
    for distil, index, plain in ((False, 0, True), (False, 1, True), (True, 0, False), (True, 1, True)):
        method = FjORD(distil=distil)
        assert (method.objective(views[index], list) == method.loss) is plain


@pytest.mark.parametrize("method", ["fjord", "fedrolex"])
def test_at_full_width_it_is_fedavg_to_the_bit(method):
    """FedRolex but for the places of the units."""
    whole = {"architectures": [{"share": 1.0, "model_options": {"width": 1.0}}]}
    local = LocalSettings(0.3, batch_size=3)
    found, plain = (run(name, 12, local=local, **whole).state for name in (method, "fedavg"))
    assert method == "fjord" or not torch.equal(run(method, 1, local=local, **whole).state.w, plain.w)
    torch.testing.assert_close(found.w, plain.w, rtol=0, atol=0 if method == "fjord" else 1e-12)


@pytest.mark.parametrize("method", ["fjord", "fedrolex", "distil"])
def test_workers_have_the_bits_of_one_process(method):
    local = LocalSettings(0.3, batch_size=3)
    options = {"distil": True} if method == "distil" else {}
    method = "fjord" if options else method
    one, two = (run(method, workers=n, local=local, method_options=options) for n in (1, 2))
    assert torch.equal(one.state.w, two.state.w)


HELD = [(0, 1), (0,), (1, 2), (0, 1, 2), (0, 1), (1,)]  # classes of each client
MASKED = {"mask_classes": True}


def net(width=1.0):
    torch.manual_seed(0)
    units = round(4 * width)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, units), nn.Tanh(), nn.Linear(units, 3))


def shards_heterofl(held=HELD):
    found = []
    for client, classes in enumerate(held):
        whole = shard(25 + client, client)
        found.append(whole.subset(torch.isin(whole.targets, torch.tensor(classes)).nonzero().view(-1)))
        assert found[-1].targets.unique().tolist() == list(classes)
    return found


def run_heterofl(method="heterofl", rounds=2, data=None, options=MASKED, task=None, **changes):
    made = task or Task(net(), transforms=[augmentation()], samples=1, precision="fp64", sizes=net)
    local = LocalSettings(0.3, batch_size=99, epochs=2)
    common = {"cohort": 6, "seed": 3, "local": local, "server": SGDSettings(1.0)}
    common |= {"architectures": ARCHITECTURES, "method_options": options} | changes
    return federate(made, data or shards_heterofl(), rounds=rounds, method=method, **common)


def assert_equal(one, other, atol=0.0):
    for value, same in zip(one.state.tensors().values(), other.state.tensors().values(), strict=True):
        torch.testing.assert_close(value, same, rtol=0, atol=atol)


def test_absent_classes_are_in_no_loss_and_no_mean_written_out():
    """Elementwise: a mean over the clients that have the number and, in the last layer, its row's class."""
    found, data = run_heterofl().state, shards_heterofl()
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
    assert_equal(run_heterofl(options={}), run_heterofl("fedavg", options={}))
    everything = shards_heterofl([(0, 1, 2)] * 6)
    assert_equal(
        run_heterofl(data=everything), run_heterofl("fedavg", data=everything, options={}), atol=1e-12
    )


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
    data, changes = (
        shards_heterofl([(0, 1), (0,), (1,), (0, 1), (0, 1), (1,)]),
        {"server": AdamSettings(), **changes},
    )
    state = run_heterofl(data=data, **changes).state
    weight, bias = list(state.tensors().values())[2:]
    assert torch.equal(weight[2], net().double()[3].weight[2]) and bias[2] == net().double()[3].bias[2]
    assert not torch.equal(weight[:2], net().double()[3].weight[:2])
    untouched = [not one for one in state.optimiser.state_dict()]
    assert untouched == [group == 3 for group in state.partition.group_of]
    plain = run_heterofl("fedavg", data=data, options={}, **changes).state.tensors()["3.weight"]
    assert not torch.equal(plain[2], weight[2])


@pytest.mark.parametrize(
    "changes", [{}, {"upload": "topk", "error_feedback": True}, {"clip": ClipSettings(0.1)}]
)
def test_workers_and_a_resumed_run_have_the_bits_of_one_process(tmp_path, changes):
    whole = run_heterofl(rounds=3, **changes)
    assert_equal(run_heterofl(rounds=3, workers=2, **changes), whole)
    run_heterofl(rounds=2, checkpoint=tmp_path / "run.pt", **changes)
    assert_equal(run_heterofl(rounds=3, checkpoint=tmp_path / "run.pt", resume=True, **changes), whole)
