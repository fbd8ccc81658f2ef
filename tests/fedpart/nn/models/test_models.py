"""The networks of the experiments: sizes, narrow ones in wide ones, parts as hyperparameters."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from fedpart import AdamSettings, ConcreteDropout, Dataset, SGDSettings, Task, Training, TrainingSettings
from fedpart.nn.models import MODELS, heterofl_cnn, mlp, mnist_cnn, resnet9, resnet_v2, wrn
from fedpart.partition.nested import leading
from fedpart.partition.space import ParameterSpace

ELSEWHERE = {"frozen_resnet", "lora_text", "ensemble"}  # test_fine_tuned.py, ensembles/


def numbers(*networks):
    return sum(p.numel() for network in networks for p in network.parameters())


@pytest.mark.parametrize("name", sorted(MODELS.keys() - ELSEWHERE))
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 9)])
def test_outputs(name, shape):
    module = MODELS.resolve(name)(num_classes=7, input_shape=shape)
    assert module(torch.rand(2, *shape)).shape == (2, 7)


def test_the_papers_networks_and_options_of_the_mlp():
    layers = (layer for layer in mnist_cnn().modules() if isinstance(layer, ConcreteDropout))
    assert [layer.physical()["rate [%]"] for layer in layers] == pytest.approx([10.0] * 4, abs=1e-4)
    network = mlp(2, (30,))
    assert numbers(network) == 31 * 256 + 257 * 256 + 257 * 2
    assert [type(layer) for layer in network] == [nn.Linear, nn.GELU, nn.Linear, nn.GELU, nn.Linear]
    network = mlp(3, (2, 4), hidden=[5], activation="relu", dropout=0.2, temperature=0.3)
    assert list(dict(network.named_children())) == ["flatten", "fc1", "relu1", "dropout1", "classes"]
    assert network.dropout1.physical()["rate [%]"] == pytest.approx(20.0, abs=1e-4)
    assert network.dropout1.temperature == 0.3
    assert Task(network).psi_names == ("dropout1.logit",)
    linear = mlp(3, (4,), hidden=())
    x = torch.randn(6, 4)
    torch.testing.assert_close(linear(x), x @ linear.classes.weight.T + linear.classes.bias)


@pytest.mark.parametrize("initial, factor", [("torch", 1), ("he", 6)])
def test_mlp_starts_by_kaiming_uniform(initial, factor):
    """U(-b, b) with b = sqrt(6 / fan-in), or torch's sqrt(1 / fan-in), in every layer, the last included."""
    torch.manual_seed(0)
    for layer in mlp(100, (3, 10), hidden=(400, 50), activation="tanh", initial=initial):
        if isinstance(layer, nn.Linear):
            bound = math.sqrt(factor / layer.in_features)
            assert bool(layer.bias.any()) == (initial == "torch")
            assert 0.99 * bound < layer.weight.abs().max() <= bound
            deviation = bound / math.sqrt(3)
            assert layer.weight.std().item() == pytest.approx(deviation, rel=0.05)
            assert abs(layer.weight.mean()) < 5 * deviation / math.sqrt(layer.weight.numel())


def test_resnet9_is_the_standard_one():
    network = resnet9(dropout=None)
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert numbers(network) == 6_573_130
    assert [layer.out_channels for layer in convolutions] == [64, 128, 128, 128, 256, 512, 512, 512]
    assert numbers(resnet9(dropout=None, bias=True)) == 6_575_370
    channels = sum(layer.out_channels for layer in convolutions)
    assert numbers(resnet9(dropout=None, bias=True, groups=2)) == 6_573_130 + channels
    sizes = []
    for layer in convolutions:
        layer.register_forward_hook(lambda _, __, out: sizes.append(out.shape[-1]))
    network(torch.rand(1, 3, 32, 32))
    assert sizes == [32, 32, 16, 16, 16, 8, 4, 4]
    x, plain = torch.rand(2, 3, 32, 32), resnet9(dropout=None, logit_scale=1.0)
    plain.load_state_dict(network.state_dict())
    torch.testing.assert_close(network(x), plain(x) / 8)  # Page's factor


def test_resnet9_partitions():
    task = Task(resnet9(4, (1, 8, 8), width=4, groups=2), samples=1)
    assert task.psi_names == ("residual1.block.dropout.logit", "residual3.block.dropout.logit")
    plain = numbers(resnet9(4, (1, 8, 8), dropout=None, width=4, groups=2))
    assert task.parameter_space(2).size == plain + 2 * (4 + 8 * 3 + 16 + 32 * 3)  # stacked twice
    task = Task(resnet9(4, (1, 8, 8), width=4, groups=2, dropout_in="stage"))
    assert task.psi_names == tuple(f"stage{i}.dropout.logit" for i in (1, 2, 3))


HETEROFL = {1.0: 1_556_874, 0.5: 391_370, 0.25: 98_922, 0.125: 25_274, 0.0625: 6_594}
MNIST = {1.0: 1_276_630, 0.75: 727_981, 0.5: 319_570, 0.25: 83_296}


@pytest.mark.parametrize(
    "build, width, count",
    [(heterofl_cnn, *row) for row in HETEROFL.items()]
    + [(partial(mnist_cnn, dropout=None), *row) for row in MNIST.items()],
)
def test_published_numbers_of_parameters_in_every_width(build, width, count):
    """As the table of Flower's baseline has them, 1,556.874 K to 6.594 K, and of the paper's network."""
    module = build(width=width)
    assert numbers(module) == count
    assert len(leading(ParameterSpace(build()), ParameterSpace(module).entries)) == count


def test_the_scaler_makes_up_for_units_that_are_not_there_while_training():
    torch.manual_seed(0)
    narrow = heterofl_cnn(width=0.5)
    convolved = narrow[0](x := torch.rand(2, 1, 28, 28))
    assert torch.equal(narrow.train()[1](convolved), convolved * 2)
    assert torch.equal(narrow.eval()[1](convolved), convolved)
    assert not any("Scaler" in type(layer).__name__ for layer in heterofl_cnn(width=0.5, scaler=False))
    first = heterofl_cnn(scaler=False)[:3]
    part = heterofl_cnn(width=0.5, scaler=False)[:3]
    part.load_state_dict({name: value[:32] for name, value in first.state_dict().items()})
    torch.testing.assert_close(part(x), first(x)[:, :32])  # its norm's groups are the same


@pytest.mark.parametrize(
    ("depth", "width", "count"),
    [(28, 10, 36_479_194), (10, 1, 77_850), (10, 2, 303_706), (16, 1, 175_066), (16, 2, 691_674)],
)
def test_published_numbers_of_wide_networks(depth, width, count):
    with torch.device("meta"):
        network = wrn(depth=depth, width=width)
    assert numbers(network) == count
    norms = [layer for layer in network.modules() if isinstance(layer, nn.GroupNorm)]
    assert len(norms) == 2 * 3 * (depth - 4) // 6 + 1, "two a block, and the last, as BatchNorm is published"
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == depth - 3 + (2 if width == 1 else 3), "shortcuts besides"


def test_a_narrow_network_is_the_leading_corner_of_a_wide_one():
    wide, narrow = wrn(width=1.5, depth=10), wrn(width=1, depth=10)
    assert isinstance(wide.stage1[0].shortcut, nn.Conv2d) and narrow.stage1[0].shortcut is None
    x = torch.rand(2, 16, 8, 8)
    for part, whole in ((narrow.stage2[0].norm2, wide.stage2[0].norm2), (narrow.norm, wide.norm)):
        images = torch.rand(2, whole.num_channels, 8, 8)
        few = part.num_channels
        torch.testing.assert_close(part(images[:, :few]), whole(images)[:, :few])
    assert narrow.stage2(narrow.stage1(x)).shape == (2, 32, 4, 4), "the second stage halves the image"


EXTRACTOR = ("stem.*", "stage1.*", "stage2.*")


def threes_of(module):
    convolutions = (layer for layer in module.modules() if isinstance(layer, nn.Conv2d))
    return [layer for layer in convolutions if layer.kernel_size == (3, 3)]


def test_resnet_20_is_derived_number_by_number_and_resnet_50_for_tinyimagenet():
    network = resnet_v2()
    head = (network.stem, network.stage1, network.stage2)
    threes = [layer.weight.numel() for part in head for layer in threes_of(part)]
    assert (len(threes), sum(threes)) == (13, 9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32))
    shortcut, norms = 16 * 32, 2 * (6 * 16 + 16 + 5 * 32)
    assert numbers(*head) == sum(threes) + shortcut + norms == 66_000
    norms += 2 * (32 + 5 * 64 + 64)
    rest = 9 * (32 * 64 + 5 * 64 * 64) + 32 * 64 + 65 * 10
    assert numbers(network) == sum(threes) + shortcut + rest + norms == 272_282
    assert {layer.num_groups for layer in network.modules() if isinstance(layer, nn.GroupNorm)} == {2}
    same = wrn(depth=22, width=1)
    assert numbers(network) == numbers(same), "groups have no numbers of their own"
    network = resnet_v2(200, (3, 64, 64), depth=50)
    assert len(threes_of(network)) == 1 + 3 * 8 * 2
    with torch.no_grad():
        assert network(torch.rand(1, 3, 64, 64)).shape == (1, 200)


def extractor_task(**options):
    torch.manual_seed(0)
    network = resnet_v2(5, (2, 8, 8), depth=8, width=2, groups=1)
    return Task(network, hyperparameters=EXTRACTOR, samples=1, **options)


def test_two_stages_are_psi_and_no_weights():
    task = extractor_task()
    weights = {entry.name for entry in task.parameter_space(3).entries}
    assert weights.isdisjoint(task.psi_names)
    assert weights | set(task.psi_names) == dict(task.module.named_parameters()).keys()
    assert {name.partition(".")[0] for name in weights} == {"stage3", "norm", "classes"}


@pytest.mark.parametrize("method", ["partitioned", "validation"])
def test_at_a_rate_that_moves_nothing_the_last_stage_is_trained_on_random_features(method):
    data = Dataset(torch.rand(40, 2, 8, 8), torch.arange(40) % 5)
    learned = extractor_task()
    frozen = resnet_v2(5, (2, 8, 8), depth=8, width=2, groups=1)
    frozen.load_state_dict(learned.module.state_dict())
    for part in (frozen.stem, frozen.stage1, frozen.stage2):
        part.requires_grad_(False)
    settings = TrainingSettings(
        chunks=(0.5, 0.5), method=method, optimiser=SGDSettings(0.1, 0.9), optimiser_psi=AdamSettings(1e-30)
    )
    still, without = (Training(task, data, settings) for task in (learned, Task(frozen, samples=1)))
    start = still.w.clone()
    for step in range(6):
        k, batch = 1 + step % still.partition.chunks, data.subset(range(6 * step, 6 * step + 8))
        for state in (still, without):
            state.parameter_step(k, batch)
        still.psi_step(2, batch)
    assert still.w.equal(without.w)
    assert all(not still.w[still.partition.slice(k)].equal(start[still.partition.slice(k)])
               for k in range(1, 1 + still.partition.chunks))  # fmt: skip
