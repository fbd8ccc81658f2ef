"""HeteroFL, FedRolex and FjORD: baselines over clients with networks of nested widths."""

import numpy as np
import pytest
import torch
from problems import assert_near, assert_same, augmentation, shard, shards
from sizes import TWO, NestedMean, first, stepped
from torch import nn
from torch.nn import functional as F

from fedpart import AdamSettings, ClipSettings, LocalSettings, SGDSettings, Task, federate
from fedpart.methods.widths import FjORD
from fedpart.partition.nodes import rolled
from fedpart.partition.space import ParameterSpace

EXAMPLES = [5, 9, 6, 8, 7, 4]
SMALL = LocalSettings(0.3, batch_size=3)


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


def outputs(x, part, units=4):
    """Of the dense network, or of its first hidden units."""
    hidden = F.linear(x, part[0][:units], part[1][:units]).tanh()
    return F.linear(hidden, part[2][:, :units], part[3])


def run(method, rounds=3, build=conv, data=None, **changes):
    task = Task(build(), transforms=[augmentation()], samples=1, precision="fp64", sizes=build)
    common = {"cohort": 6, "seed": 3, "local": LocalSettings(0.3, batch_size=99), "server": SGDSettings(1.0)}
    common |= {"architectures": TWO} | changes
    return federate(task, data or shards(EXAMPLES), rounds=rounds, method=method, **common)


def written_out(protocol, rounds, train, data=None):
    """The dense network when ``train(mean, round, client, x, y)`` has counted the changes of every client."""
    module, data = dense().double(), data or shards(EXAMPLES)
    for round in range(1, rounds + 1):
        mean = NestedMean(module)
        for client in protocol.cohort(round):
            x, y = data[client].inputs.double().flatten(1), data[client].targets
            train(mean, round, client, x, y)
        mean.step()
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def assert_weights(state, expected):
    for name, value in state.tensors().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12)


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


@pytest.mark.parametrize("method, moves", [("fedavg", 0), ("fedrolex", 1)])
def test_a_number_is_averaged_over_the_clients_in_whose_window_it_is(method, moves):
    """Elementwise, written out with the window: units t, t+1 of four in round t, or 0, 1 (HeteroFL)."""
    state = run(method, 5, build=dense).state

    def train(mean, round, client, x, y):
        count = 2 if state.protocol.architectures[client] == 1 else 4
        units = [(moves * (round - 1) + unit) % 4 for unit in range(count)]
        places = [(units,), (units,), (slice(None), units), (slice(None),)]
        part = mean.part(places)
        gradients = torch.autograd.grad(F.cross_entropy(outputs(x, part), y), part)
        mean.add(places, [-0.3 * gradient for gradient in gradients], len(y))

    expected = written_out(state.protocol, 5, train)
    axes = {"1.weight": 0, "1.bias": 0, "3.weight": 1}  # the server's units have moved
    expected |= {name: expected[name].roll(-5 * moves, axis) for name, axis in axes.items()}
    assert_weights(state, expected)


def trained(part, sizes):
    """Of each number of a part, whose first two hidden units are the small network, the share of steps."""
    share = sizes.count(0) / len(sizes) if 0 in sizes else 0.0  # of those that train the others as well
    masks = [torch.ones_like(p) for p in part]
    for mask, places in zip(masks[:3], (np.s_[2:], np.s_[2:], np.s_[:, 2:]), strict=False):
        mask[places] = share
    return masks


def one_step(part, start, loss, units, decay, mu):
    """Along the gradient of a loss, with the decay and the pull of the units that it sees; the rest stays."""
    seen = [p[place] for p, place in zip(part, first(units), strict=True)]
    more = sum(
        (decay * p.square() + mu * (p - s[place].detach()).square()).sum() / 2
        for p, s, place in zip(seen, start, first(units), strict=True)
    )
    stepped(part, loss + more)


def summed(mean, places, changes, masks, weight):
    """Counts what all of a client's steps have changed, and of its weight the share of the steps."""
    whole = [torch.where(m > 0, c / m.clamp(min=1e-9), 0) for c, m in zip(changes, masks, strict=True)]
    mean.add(places, whole, weight, masks)


@pytest.mark.quick(1)
@pytest.mark.parametrize("distil, decay, mu", [(False, 0, 0), (False, 0.3, 0.5), (True, 0.3, 0.5)])
def test_a_number_moves_by_the_mean_over_the_steps_that_trained_it_written_out(distil, decay, mu):
    local = LocalSettings(0.3, batch_size=99, epochs=4, weight_decay=decay)  # four steps on all examples
    method, options = ("fjord+fedprox", {"mu": mu}) if mu else ("fjord", {})
    options["distil"] = distil
    state = run(method, 3, build=dense, local=local, method_options=options).state
    protocol, drawn = state.protocol, set()

    def train(mean, round, client, x, y):
        own = protocol.architectures[client]
        places = first(2 if own == 1 else 4)
        part, before = mean.part(places), mean.part(places)
        sizes = protocol.view(client, round).drawn_sizes(4)
        for size in sizes:
            drawn.add((own, size))
            logits, whole = outputs(x, part, 4 if size == 0 else 2), outputs(x, part)
            loss = F.cross_entropy(whole if distil else logits, y)
            if distil and size != own:
                loss = loss - (whole.detach().softmax(1) * logits.log_softmax(1)).sum(1).mean()
            one_step(part, before, loss, 4 if distil or size == 0 else 2, decay, mu)
        changes = [(now - then).detach() for now, then in zip(part, before, strict=True)]
        summed(mean, places, changes, trained(part, [own] * 4 if distil and own == 0 else sizes), len(y))

    assert_weights(state, written_out(protocol, 3, train))
    assert drawn == {(0, 0), (0, 1), (1, 1)}


def test_partitioned_steps_go_through_drawn_sizes_written_out():
    local, task = (
        LocalSettings(0.3, batch_size=99, epochs=3),
        Task(dense(), samples=1, precision="fp64", sizes=dense),
    )
    options = {"method_options": {"draw_sizes": True}, "chunks": (0.5, 0.5), "weighting": "uniform"}
    common = {"cohort": 6, "seed": 3, "local": local, "server": SGDSettings(1.0), "architectures": TWO}
    state = federate(task, shards(EXAMPLES), rounds=2, method="partitioned", **common, **options).state
    protocol, default = state.protocol, [p.detach() for p in dense().double().parameters()]
    assigned = [*state.partition.space.tensors(state.partition.assignment.long()).values()]

    def train(mean, round, client, x, y):
        places = first(2 if protocol.architectures[client] == 1 else 4)
        sizes = protocol.view(client, round).drawn_sizes(3)
        for j in range(protocol.chunk(client), 3):
            mine = [(a == j)[place] for a, place in zip(assigned, places, strict=True)]
            start = [
                torch.where(a <= j, v, d) for a, v, d in zip(assigned, mean.values, default, strict=True)
            ]
            part = [v[place].requires_grad_() for v, place in zip(start, places, strict=True)]
            before = [p.detach().clone() for p in part]
            for size in sizes:
                stepped(part, F.cross_entropy(outputs(x, part, 4 if size == 0 else 2), y))
                with torch.no_grad():
                    for p, now, of_j in zip(part, before, mine, strict=True):
                        p.copy_(torch.where(of_j, p, now))
            changes = [(now - then).detach() for now, then in zip(part, before, strict=True)]
            masks = [m * of_j for m, of_j in zip(trained(part, sizes), mine, strict=True)]
            summed(mean, places, changes, masks, 1)

    assert_weights(state, written_out(protocol, 2, train))


def test_only_a_client_with_parts_distils():
    protocol = run("fjord", 1).state.protocol
    views = {protocol.architectures[client]: protocol.view(client, 1) for client in range(6)}
    for distil, index, plain in ((False, 0, True), (False, 1, True), (True, 0, False), (True, 1, True)):
        method = FjORD(distil=distil)
        assert (method.objective(views[index], list) == method.loss) is plain


@pytest.mark.quick(1)
@pytest.mark.parametrize("method", ["fjord", "fedrolex"])
def test_at_full_width_it_is_fedavg_to_the_bit(method):
    """FedRolex but for the places of the units."""
    whole = {
        "architectures": [{"share": 1.0, "model_options": {"width": 1.0}}],
        "local": SMALL,
        "build": dense,
    }
    state, plain = (run(name, 4, **whole).state for name in (method, "fedavg"))
    assert method == "fjord" or not torch.equal(run(method, 1, **whole).state.w, plain.w)
    assert_near(state, plain, rtol=0, atol=0 if method == "fjord" else 1e-12)


HELD = [(0, 1), (0,), (1, 2), (0, 1, 2), (0, 1), (1,)]  # classes of each client
MASKED = {"build": dense, "method_options": {"mask_classes": True}}


def of_classes(held):
    data = []
    for client, classes in enumerate(held):
        whole = shard(25 + client, client)
        data.append(whole.subset(torch.isin(whole.targets, torch.tensor(classes)).nonzero().view(-1)))
        assert data[-1].targets.unique().tolist() == list(classes)
    return data


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "method, changes",
    [
        ("fjord", {"method_options": {"distil": True}, "clip": "adaptive"}),
        ("partitioned", {"method_options": {"draw_sizes": True}}),
        ("fedrolex", {}),
        ("heterofl", MASKED | {"upload": "topk", "error_feedback": True}),
        ("heterofl", MASKED | {"clip": ClipSettings(0.1)}),
    ],
)
def test_workers_and_a_resumed_run_have_the_bits_of_one_process(method, changes, tmp_path):
    changes = {"local": SMALL, "data": of_classes(HELD), **changes}
    whole = run(method, **changes)
    assert_same(run(method, workers=2, **changes), whole)
    run(method, 2, checkpoint=tmp_path / "run.pt", **changes)
    assert_same(run(method, checkpoint=tmp_path / "run.pt", resume=True, **changes), whole)


def test_absent_classes_are_in_no_loss_and_no_mean_written_out():
    """Elementwise: a mean over the clients that have the number and, in the last layer, its row's class."""
    data, local = of_classes(HELD), LocalSettings(0.3, batch_size=99, epochs=2)
    state = run("heterofl", 2, data=data, local=local, **MASKED).state

    def train(mean, round, client, x, y):
        units = 2 if state.protocol.architectures[client] == 1 else 4
        part, before = mean.part(first(units)), mean.part(first(units))
        present = torch.zeros(3, dtype=torch.double)
        present[list(HELD[client])] = 1
        for _ in range(2):
            stepped(part, F.cross_entropy(outputs(x, part) * present, y))
        masks = [torch.ones(units, 1), torch.ones(units), present[:, None].expand(3, units), present]
        changes = [(now - then).detach() for now, then in zip(part, before, strict=True)]
        mean.add(first(units), changes, len(y), masks)

    assert_weights(state, written_out(state.protocol, 2, train, data))


def test_without_masks_and_with_all_classes_heterofl_is_fedavg():
    assert_same(run("heterofl"), run("fedavg"))
    everything = of_classes([(0, 1, 2)] * 6)
    masked, plain = run("heterofl", data=everything, **MASKED), run("fedavg", data=everything, build=dense)
    assert_weights(masked.state, plain.state.tensors())


@pytest.mark.parametrize(
    "changes", [{"upload": "topk", "upload_options": {"share": 0.9}}, {"clip": ClipSettings(0.1)}]
)
def test_the_row_of_a_class_that_nobody_has_keeps_value_and_state(changes):
    changes = {"server": AdamSettings(), "build": dense, **changes}
    changes["data"] = of_classes([(0, 1), (0,), (1,), (0, 1), (0, 1), (1,)])
    state, last = run("heterofl", **MASKED | changes).state, dense().double()[3]
    weight, bias = list(state.tensors().values())[2:]
    assert torch.equal(weight[2], last.weight[2]) and bias[2] == last.bias[2]
    assert not torch.equal(weight[:2], last.weight[:2])
    untouched = [not kept for kept in state.optimiser.state_dict()]
    assert untouched == [group == 3 for group in state.partition.group_of]
    assert not torch.equal(run("fedavg", **changes).state.tensors()["3.weight"][2], weight[2])
