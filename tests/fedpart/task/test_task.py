"""Task: explicit noise, example weights, copies, precision, names."""

import copy

import pytest
import torch
from problems import Shift, initial, outputs
from torch import nn

from fedpart import AffineAugmentation, Batch, ConcreteDropout, Task
from fedpart.nn.models import digits_cnn
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.task.model import channels_last_of

KEY = NoiseKey(0, "test", (4, 5, 6))


def cnn_task(**options):
    torch.manual_seed(0)
    module = digits_cnn(input_shape=(1, 8, 8))
    return Task(module, transforms=[AffineAugmentation(initial=0.1)], **{"samples": 3, **options})


def arguments(task, n=6):
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(n, 1, 8, 8, generator=generator)
    y = torch.randint(10, (n,), generator=generator)
    return *initial(task), Batch(x, y)


def noise(task):
    return Noise(KEY, dtype=task.dtype)


@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
def test_loss_twice_is_bit_identical(precision):
    task = cnn_task(precision=precision)
    w, psi, batch = arguments(task)
    same = noise(task)
    first = task.loss(w, psi, batch, same)
    torch.manual_seed(3)
    assert torch.equal(first, task.loss(w, psi, batch, same))
    assert torch.equal(first, task.loss(w, psi, batch, noise(task)))
    other = Noise(NoiseKey(0, "test", (4, 5, 7)), dtype=task.dtype)
    assert not torch.equal(first, task.loss(w, psi, batch, other))


@pytest.mark.parametrize("share", [False, True])
def test_padding_changes_nothing(share):
    task = cnn_task(precision="fp64", share_dropout_mask=share)
    w, psi, batch = arguments(task)
    psi.requires_grad_()
    padded = Batch(
        torch.cat([batch.inputs, torch.full((3, 1, 8, 8), 9.0)]),
        torch.cat([batch.targets, torch.zeros(3, dtype=torch.int64)]),
        torch.tensor([1.0] * 6 + [0.0] * 3),
    )
    plain, with_padding = (task.loss(w, psi, b, noise(task)) for b in (batch, padded))
    torch.testing.assert_close(with_padding, plain, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(loss, psi)[0] for loss in (plain, with_padding)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-9, atol=1e-12)


def test_weights_are_repetitions():
    task = cnn_task().plain()
    w, psi, batch = arguments(task, 3)
    weighted = batch._replace(weights=torch.tensor([0.5, 1.0, 1.5]))
    times = torch.tensor([1, 2, 3])
    repeated = Batch(batch.inputs.repeat_interleave(times, 0), batch.targets.repeat_interleave(times))
    losses = [task.loss(w, psi, b, None, dropout=False) for b in (weighted, repeated)]
    torch.testing.assert_close(losses[0], losses[1])


def test_samples_differ_and_masks_can_be_shared_but_transforms_sample_per_row():
    """The outputs of single samples, seen through S = 1 module calls recorded inside."""
    seen = []

    class Recorder(nn.Module):
        def forward(self, x):
            seen.append(x.detach().clone())
            return x

    def masks(share):
        module = nn.Sequential(ConcreteDropout(0.5), Recorder(), nn.Flatten(), nn.Linear(20, 2))
        task = Task(module, samples=4, share_dropout_mask=share)
        batch = Batch(torch.ones(3, 20), torch.zeros(3, dtype=torch.int64))
        task.loss(*initial(task), batch, noise(task))
        return seen.pop().view(3, 4, 20)

    own, shared = masks(False), masks(True)
    assert not torch.equal(own[:, 0], own[:, 1])
    torch.testing.assert_close(shared, shared[:, :1].expand(3, 4, 20), rtol=1e-5, atol=0)
    assert not torch.equal(shared[0], shared[1])
    task = Task(nn.Sequential(nn.Linear(4, 2)), transforms=[Shift()], samples=3, share_dropout_mask=True)
    rows = []
    task.module.register_forward_pre_hook(lambda _, x: rows.append(x[0].clone()))
    batch = Batch(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))
    task.loss(*initial(task), batch, noise(task))
    assert rows[0].unique(dim=0).shape[0] == 6


def test_inference_switches_dropout_off_and_keeps_transforms():
    task = cnn_task()
    w, psi, batch = arguments(task)
    sampled = [task.outputs(w, psi, batch.inputs, Noise(NoiseKey(s, "test")), dropout=False) for s in (0, 1)]
    assert not torch.equal(*sampled)
    plain = task.plain()
    psi = plain.psi_space.initial()
    fixed = [plain.outputs(w, psi, batch.inputs, Noise(NoiseKey(s, "test")), dropout=False) for s in (0, 1)]
    assert torch.equal(*fixed)
    torch.testing.assert_close(fixed[0], plain.module.eval()(batch.inputs))
    assert not torch.equal(fixed[0], plain.outputs(w, psi, batch.inputs, noise(task)))


def test_plain_and_replace():
    task = cnn_task(average="probabilities", share_dropout_mask=True, precision="fp64")
    plain = task.plain()
    assert plain.samples == 1 and plain.transforms == {} and plain.transform_psi == ()
    assert plain.psi_names == ("dropout1.logit", "dropout2.logit", "dropout3.logit")
    assert (plain.average, plain.share_dropout_mask, plain.precision) == ("probabilities", True, "fp64")
    assert torch.equal(plain.parameter_space(2).initial(), task.parameter_space(2).initial())
    more = task.replace(samples=7)
    assert more.samples == 7 and more.psi_names == task.psi_names
    other = task.replace(transforms={"augment": AffineAugmentation("augerino")})
    assert other.psi_names[0] == "augment.range" and other.psi_space.entries[0].shape == (6,)
    assert task.samples == 3 and list(task.transforms) == ["affine"]
    kept = Task(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), hyperparameters=["0.*"]).replace(samples=2)
    assert kept.psi_names == ("0.weight", "0.bias")


def test_the_users_module_is_untouched():
    module, transform = digits_cnn(input_shape=(1, 8, 8)).eval(), AffineAugmentation()
    before = copy.deepcopy(module.state_dict()), transform.range.detach().clone()
    task = Task(module, transforms=[transform], samples=2, precision="fp64")
    w, psi, batch = arguments(task)
    task.loss(w, psi.requires_grad_(), batch, noise(task)).backward()
    task.physical(psi + 1)
    assert not module.training and module.conv1.weight.dtype == torch.float32
    assert all(torch.equal(value, before[0][name]) for name, value in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters()) and torch.equal(transform.range, before[1])
    with torch.no_grad():
        module.conv1.weight.zero_()  # and the other way round
    assert task.module.conv1.weight.abs().sum() > 0
    assert task.parameter_space(1).initial().abs().sum() > 0


def test_precisions_agree_and_bf16_computes_the_network_and_not_the_coordinates():
    losses, net = {}, nn.Sequential(nn.Embedding(9, 4).double(), nn.Flatten(), nn.Linear(12, 2))
    whole = Task(net, samples=2, precision="bf16")
    assert outputs(whole, torch.randint(9, (5, 3))).shape == (5, 2)
    assert whole.parameter_space(1).initial().dtype == torch.float32, "of a double layer"
    for precision in ("fp64", "fp32", "bf16"):
        task = cnn_task(precision=precision)
        w, psi, batch = arguments(task)
        psi.requires_grad_()
        loss = task.loss(w, psi, batch, noise(task))
        loss.backward()
        assert loss.dtype == psi.grad.dtype == task.dtype and psi.grad.isfinite().all()
        losses[precision] = loss.item()
    assert losses["fp32"] == pytest.approx(losses["fp64"], rel=1e-4)
    assert losses["bf16"] == pytest.approx(losses["fp64"], rel=3e-2)
    assert losses["bf16"] != losses["fp32"]
    seen = []
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    task = Task(net, transforms=[AffineAugmentation(initial=0.3)], precision="bf16")
    task.module[0].register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    task.module[0].register_forward_hook(lambda *a: seen.append(a[2]))
    x = torch.rand(4, 1, 28, 28)
    outputs(task, x, noise(task))
    with noise(task).active():
        exact = task.transforms["affine"](x.repeat_interleave(10, 0))
    assert torch.equal(seen[0], exact) and seen[1].dtype == torch.bfloat16


@pytest.mark.slow
def test_memory_formats_agree_and_reach_every_layer_also_from_one_channel():
    found = {}
    for channels_last in (False, True):
        torch.manual_seed(0)
        net, transforms = digits_cnn(input_shape=(1, 8, 8), dropout=None), [AffineAugmentation(initial=0.1)]
        task = Task(net, transforms=transforms, samples=3, channels_last=channels_last)
        w, psi, batch = arguments(task)
        form = torch.channels_last if channels_last else torch.contiguous_format
        contiguous = []
        for layer in (task.module.conv1, task.module.conv2):
            layer.register_forward_hook(
                lambda *a, form=form, seen=contiguous: seen.append(a[2].is_contiguous(memory_format=form))
            )
        found[channels_last] = task.outputs(w, psi, batch.inputs, noise(task))
        assert contiguous and all(contiguous)
    torch.testing.assert_close(found[True], found[False], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 0, 1)], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (1, 1, 2, 3), (2, 1, 3, 2), (2, 3, 2, 1)], ids=str)
def test_images_of_any_layout_have_the_strides_of_channels_last(shape, order):
    """Convolutions look at strides; those of a single channel or image are free to ``is_contiguous``."""
    _, channels, height, width = shape
    whole = torch.randn([shape[d] + 1 for d in order])
    part = whole[tuple(slice(shape[d]) for d in order)].permute([order.index(d) for d in range(4)])
    found = channels_last_of(part)
    assert found.shape == shape and torch.equal(found, part)
    assert found.stride() == (channels * height * width, 1, channels * width, channels)


def test_buffers_follow_the_inputs():
    """Positional encodings and the like are where w and the inputs are, the task itself stays on the CPU."""

    class Positional(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(4))
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(x + self.table)

    task = Task(Positional(), transforms=[Shift()], samples=2)
    w, psi = initial(task)
    w = {name: value.to("meta") for name, value in w.items()}
    out = task.outputs(w, psi.to("meta"), torch.zeros(3, 4, device="meta"), noise(task))
    assert out.device.type == "meta" and out.shape == (3, 2)
    assert task.module.table.device.type == "cpu"
