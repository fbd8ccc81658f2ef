"""FedBN, FedRep, Ditto: what of the network is a client's own, trained, kept, and scored."""

import pytest
import torch
from problems import after, augmentation, chain_net, settings, shards
from torch import nn
from torch.nn import functional as F

from fedpart import Federation, LocalSettings, Protocol, SGDSettings, Task
from fedpart.engines.batches import divided
from fedpart.engines.executor import Executor
from fedpart.updates.combining import COMBINATIONS
from fedpart.updates.errors import ClientError
from fedpart.updates.stages import Personal

SIZES = [3, 7, 2, 9, 4, 6, 5, 8]


def made(method, net=None, batch=3, options=None, **changes):
    task = Task(net or chain_net(), transforms=[augmentation()], samples=2, precision="fp64")
    how = LocalSettings(learning_rate=0.3, batch_size=batch, epochs=1)
    known = {"cohort": 5, "chunks": (0.5, 0.3, 0.2), "local": how, "evaluation": "clients"}
    chosen = {**known, **changes, "method_options": options or {}}
    return Federation(Protocol(task, settings(8, method=method, **chosen)))


def mine(federation, client):
    """The client's own weights, by name."""
    protocol = federation.protocol
    w, partition = Executor(protocol).scored(client, federation.start()).w, protocol.partition_of(client)
    return partition.materialise(w, partition.chunks)


def test_ditto_leaves_the_shared_network_as_it_is_and_trains_the_same_partitions_beside_it():
    plain, data = after(2, made("partitioned"), shards(SIZES))[0], shards(SIZES)
    loose = after(2, made("partitioned+ditto", options={"lam": 0.0}), data)[0]
    tied, reports = after(2, made("partitioned+ditto", options={"lam": 3.0}), data)
    assert torch.equal(plain.w, tied.w) and torch.equal(plain.psi, tied.psi)
    far = [
        sum((mine(run, client)[name] - w).square().sum() for name, w in run.tensors().items())
        for run in (loose, tied)
        for client in reports[1].cohort[:1]
    ]
    assert 0 < far[1] < far[0]


def test_fedreps_head_moves_first_and_stays_while_the_body_is_the_mean():
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    data, how = shards([6, 6, 6]), LocalSettings(learning_rate=0.3, batch_size=6, epochs=2, momentum=0.5)
    task = Task(net, samples=1, precision="fp64")
    fixed = settings(
        3, method="fedrep", cohort=3, server=SGDSettings(1.0), local=how, evaluation="clients",
        evaluation_share=0.01,
    )  # fmt: skip
    federation = Federation(Protocol(task, fixed))
    learned = [data[i].subset(divided(federation.protocol, i, 6).learned) for i in range(3)]
    bodies, heads = [], []
    for part in learned:
        w = {name: tensor.detach().clone().requires_grad_() for name, tensor in net.named_parameters()}
        for names, steps in ((["3.weight", "3.bias"], 1), (["1.weight", "1.bias"], 2)):
            sgd = torch.optim.SGD([w[name] for name in names], lr=0.3, momentum=0.5)
            for _ in range(steps):
                sgd.zero_grad()
                out = torch.func.functional_call(net, w, (part.inputs.double(),))
                F.cross_entropy(out, part.targets).backward()
                sgd.step()
        bodies.append(w["1.weight"].detach())
        heads.append(w["3.weight"].detach())
    federation, (report,) = after(1, federation, data)
    torch.testing.assert_close(federation.tensors()["1.weight"], sum(bodies) / 3)
    assert torch.equal(federation.tensors()["3.weight"], net[3].weight)
    for client, head in enumerate(heads):
        torch.testing.assert_close(mine(federation, client)["3.weight"], head)
    alike = settings(3, cohort=3, chunks=(1.0,), method="fedavg")
    plain = after(1, Federation(Protocol(task, alike)), data)[1][0]
    assert plain.upload_bytes - report.upload_bytes == 3 * (4 * 3 + 3) * 8
    assert plain.download_bytes - report.download_bytes == 3 * (4 * 3 + 3) * 8


def test_fedbn_keeps_normalisation_apart():
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 3))
    federation, (_, report) = after(2, made("fedbn", net), shards(SIZES))
    first, second = (mine(federation, client) for client in report.cohort[:2])
    for name, shared in federation.tensors().items():
        assert torch.equal(first[name], second[name]) != name.startswith("2."), name
        assert torch.equal(shared, net.state_dict()[name].double()) == name.startswith("2."), name


@pytest.mark.parametrize("execution", ["grouped", "fused"])
def test_clients_with_weights_of_their_own_are_computed_one_after_another(execution):
    with pytest.raises(ValueError, match="use execution: loop"):
        after(1, made("ditto", batch=64), shards(SIZES), execution=execution)


class Own(nn.Module):
    """With weights that networks of other sizes would not share, and a last layer of several parts."""

    private_parameters = ("*norm*",)

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(36, 4), nn.LayerNorm(4)
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))

    def forward(self, x):
        return self.last(self.norm(self.first(x.flatten(1))).tanh())


def test_what_stays_is_told_in_the_networks_order():
    """Not in that of a set of texts, which is another one in each process."""
    layers = [
        layer for width in range(1, 13) for layer in (nn.Linear(width, width + 1), nn.GroupNorm(1, width + 1))
    ]
    task = Task(nn.Sequential(*layers), samples=1)
    stays = COMBINATIONS.make("fedbn", {}).stays(task)
    assert list(stays) == [f"{2 * place + 1}.{part}" for place in range(12) for part in ("weight", "bias")]


@pytest.mark.parametrize(("method", "stays"), [("fedbn", "norm."), ("fedrep", "last.")])
def test_what_stays_is_all_of_a_layer_also_where_its_weights_are_private_or_made_of_others(method, stays):
    federation, (_, report) = after(2, made(method, Own()), shards(SIZES))
    first, second = (mine(federation, client) for client in report.cohort[:2])
    for name in federation.tensors():
        assert torch.equal(first[name], second[name]) != name.startswith(stays), name


@pytest.mark.parametrize("method", ["ditto", "fedrep"])
def test_a_client_whose_own_weights_are_lost_is_refused_and_keeps_those_before(method, monkeypatch):
    """Its losses are finite: what is lost is what its last step has made."""
    data = shards(SIZES)
    federation = after(1, made(method, cohort=8, on_client_error="skip"), data)[0]
    before, keep = mine(federation, 1), Personal.keep

    def overflown(self, update, start, changes):
        scale = float("inf") if update.examples == 5 else 1.0  # of client 1, which holds two out
        keep(self, update, start, {cell: change * scale for cell, change in changes.items()})

    monkeypatch.setattr(Personal, "keep", overflown)
    federation, (report,) = after(2, federation, data)
    assert [skip["client"] for skip in report.skipped] == [1]
    assert "client 1 in round 2 was refused: the client's own w_" in report.skipped[0]["reason"]
    after_it = mine(federation, 1)
    assert all(torch.equal(before[name], after_it[name]) for name in before if name.startswith("7."))


def test_the_loss_that_ends_a_client_is_told_as_it_is(monkeypatch):
    """Of Ditto's second network; the first one's is finite."""
    federation = made("ditto", batch=1, options={"lam": 1e200}, cohort=8)
    monkeypatch.setattr(Personal, "keep", lambda *its: None)
    with pytest.raises(ClientError, match=r"The loss of client . in round 1 is (nan|inf)"):
        after(1, federation, shards(SIZES))
