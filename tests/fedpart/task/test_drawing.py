"""Networks that call torch's own random functions: equal seeds give equal bits, on every engine."""

import pytest
import torch
from adapted import DRAWING, Applied, dropped, lstm_without_dropout, trained
from problems import CLASSES, SIZE
from torch import nn

from fedpart import ClientError


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWING)
def test_equal_seeds_give_equal_bits_whatever_torchs_generator(name):
    net = DRAWING[name]()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = trained(net, rounds=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(trained(net, rounds=1).w, first.w)
    if name in ("F.dropout", "packed LSTM"):
        assert torch.equal(trained(net, rounds=1, workers=2).w, first.w)


CASES = [
    ("F.dropout", "fused", False),
    ("F.dropout", "grouped", True),
    ("nn.Dropout2d", "grouped", False),
    ("nn.Dropout2d", "fused", True),
    ("transformer", "fused", False),
    ("transformer", "grouped", True),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, execution, share", CASES)
def test_clients_computed_together_draw_what_each_draws_alone(name, execution, share):
    net, of = DRAWING[name](), {"share_dropout_mask": share}
    loop, together = (trained(net, rounds=1, execution=how, of=of) for how in ("loop", execution))
    torch.testing.assert_close(together.w, loop.w, rtol=0, atol=1e-11)
    assert not torch.equal(loop.w, trained(net, rounds=1, of={"share_dropout_mask": not share}).w)


@pytest.mark.slow
@pytest.mark.parametrize("network", [DRAWING["stochastic depth"], lstm_without_dropout])
def test_clients_of_these_are_fused(network):
    net = network()
    torch.testing.assert_close(trained(net, execution="fused").w, trained(net).w, rtol=0, atol=1e-12)


def test_examples_in_another_order_are_refused_fused():
    """Those of several clients would be mixed."""
    net = Applied(lambda layer, x: x + 0.5 * x[torch.randperm(len(x))])
    assert torch.equal(trained(net).w, trained(net, workers=2).w)
    with pytest.raises(ClientError, match=r"cannot be fused.*; use execution: loop"):
        trained(net, execution="fused")


class Backbone(nn.Module):
    """A frozen part with dropout of its own, and a head with dropout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 8), nn.Dropout(0.5), nn.Tanh())
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(8, CLASSES))
        self.seen = []

    def forward(self, x):
        features = self.body(x)
        self.seen.append((features == 0).any().item())
        return self.head(features)


@pytest.mark.parametrize("root", [True, False], ids=["the network trains", "the network itself rests"])
def test_a_part_in_evaluation_mode_stays_in_it(root):
    net = Backbone()
    net.body.eval().requires_grad_(False)
    net.training = root
    federation = trained(net)
    module = federation.task.module
    assert module.seen and not any(module.seen), "the body's dropout is off"
    assert not any(layer.training for layer in module.body.modules())
    awake = Backbone()
    awake.body.requires_grad_(False)
    assert any(trained(awake).task.module.seen)
    without = Backbone()
    without.body.eval().requires_grad_(False)
    without.head[0].p = 0.0
    assert not torch.equal(trained(without).w, federation.w), "the head's dropout is on"


def test_a_network_at_rest_is_trained_with_dropout_which_is_off_at_inference():
    assert torch.equal(trained(Applied(dropped).eval()).w, trained(Applied(dropped)).w)
    assert not torch.equal(trained(Applied(lambda layer, x: x)).w, trained(Applied(dropped)).w)
    federation = trained(Applied(dropped))
    x = torch.rand(5, 1, SIZE, SIZE, dtype=torch.float64)
    (first,), (second,) = federation.predict(x), federation.predict(x, purpose="another")
    assert torch.equal(first, second)
    torch.testing.assert_close(federation.module()(x), first)
