"""Modules are copied with what they keep of a pass."""

import torch
from torch import nn

from fedpart import Task, federate
from fedpart.nn.layers.copying import copied


class Keeps(nn.Module):
    """As one does to look at features."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        self.features = torch.tanh(self.body(x))
        self.more = {"same": self.features, "others": [2 * self.features, 3 * self.features]}
        return self.head(self.features)


def test_activations_are_copied_without_their_gradient():
    net, x = Keeps(), torch.ones(5, 4)
    net(x)
    new = copied(net)
    assert new.features.is_leaf and torch.equal(new.features, net.features)
    assert new.more["same"] is new.features and new.features is not net.features
    assert all(map(torch.equal, new.more["others"], net.more["others"]))
    assert not net.features.is_leaf
    assert new.body.weight is not net.body.weight and torch.equal(new(x), net(x))


def test_a_task_of_such_a_network_is_made_and_made_again():
    net, x = Keeps(), torch.ones(5, 4)
    net(x)
    task = Task(net, samples=2)
    w = task.parameter_space(1).tensors(task.parameter_space(1).initial().requires_grad_())
    task.outputs(w, task.psi_space.initial(), x, None)
    assert task.module.features.requires_grad
    assert task.replace(samples=1).samples == 1


def test_a_result_of_such_a_network_is_a_module():
    clients = [(torch.rand(3, 4), torch.randint(2, (3,))) for _ in range(4)]
    options = {"validation": clients[0], "evaluation_samples": 1, "evaluate_every": 1}
    result = federate(Task(Keeps(), samples=2), clients, rounds=1, chunks=(0.5, 0.5), **options)
    assert result.module()(torch.ones(5, 4)).shape == (5, 2)
