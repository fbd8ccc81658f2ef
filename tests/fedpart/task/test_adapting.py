"""Frozen parameters are constants; what is changed about a network is said; the given one is untouched."""

import copy

import pytest
import torch
from adapted import NormAndReLU, Recurrent, chain, frozen_body, frozen_norm, trained
from problems import CLASSES, SIZE, Gain, augmentation, outputs, settings, shards
from torch import nn

from fedpart import ConcreteDropout, Federation, FixedMask, LocalSettings, Protocol, Task, federate, fit
from fedpart.nn.layers import FrozenBatchNorm
from fedpart.training.agreement import difference


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_frozen_parameters_are_in_no_partition_and_as_they_were(precision):
    net = frozen_body()
    given = copy.deepcopy(net.state_dict())
    task = Task(net, transforms=[augmentation()], samples=2, precision=precision)
    trainable = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    assert [entry.name for entry in task.parameter_space(3).entries] == trainable
    assert not any(name.startswith("0.") for name in (*task.psi_names, *trainable))
    assert set(task.frozen) == {"module.0.weight", "module.0.bias"}
    local = LocalSettings(learning_rate=0.3, batch_size=2, epochs=2, momentum=0.9, weight_decay=0.5)
    result = federate(task, shards([4, 5, 3, 6]), rounds=2, chunks=(0.5, 0.3, 0.2), local=local)
    module = result.module()
    for name, value in module.state_dict().items():
        assert torch.equal(value, given[name]) == name.startswith("0."), name
    assert all(torch.equal(net.state_dict()[name], value) for name, value in given.items())
    assert all(torch.equal(value, given[name.removeprefix("module.")]) for name, value in task.frozen.items())
    assert not module[0].weight.requires_grad and module[-1].weight.requires_grad
    with torch.no_grad():
        assert module(torch.rand(3, 1, SIZE, SIZE)).shape == (3, CLASSES)


@pytest.mark.parametrize("network", [frozen_body, frozen_norm])
def test_engines_agree_on_networks_with_constants(network):
    loop = trained(network())
    for execution in ("fused", "grouped"):
        other = trained(network(), execution=execution)
        torch.testing.assert_close(other.w, loop.w, rtol=0, atol=1e-12)
    assert not torch.equal(loop.w, loop.partition.initial())


def test_the_frozen_psi_of_a_layer_or_transform_is_a_constant():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 8), Gain(2.0), Gain(1.5), nn.Linear(8, CLASSES))
    net[2].requires_grad_(False)
    task = Task(net, samples=1)
    assert task.psi_names == ("3.log_gain",) and set(task.frozen) == {"module.2.log_gain"}
    result = federate(task, shards([4, 5, 3, 6]), rounds=2, chunks=(0.5, 0.5))
    assert torch.equal(result.module()[2].log_gain, net[2].log_gain)
    assert not torch.equal(result.module()[3].log_gain, net[3].log_gain)
    task = Task(chain(), transforms={"gain": Gain().requires_grad_(False), "other": Gain()})
    assert task.psi_names == ("other.log_gain",) and set(task.frozen) == {"transforms.gain.log_gain"}
    net = frozen_body()
    net[0].bias.requires_grad_(True)
    assert Task(net, hyperparameters=["0.*"]).psi_names == ("0.bias",)


def agreed(net):
    return Federation(Protocol(Task(net), settings(4))).agreement


def test_server_and_clients_agree_on_frozen_weights():
    name = "frozen weights hash"
    plain, frozen = agreed(chain()), agreed(frozen_body())
    assert name not in plain and name in frozen
    other = frozen_body()
    with torch.no_grad():
        other[0].weight[0, 0, 0, 0] += 1e-6
    assert difference(frozen, agreed(other)) == f"the {name} differs"
    assert difference(frozen, agreed(frozen_body())) == ""


def with_dropout():
    torch.manual_seed(0)
    drops = [nn.Dropout(0.3), nn.Linear(8, 8), nn.Dropout(0.0), nn.Dropout(0.1)]
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 8), *drops, nn.Linear(8, CLASSES))


def test_dropout_rates_are_learned_where_that_is_asked_for_but_not_of_a_part_at_rest():
    assert Task(with_dropout()).psi_names == ()
    task = Task(with_dropout(), learn_dropout=True, samples=1)
    assert task.psi_names == ("2.logit", "5.logit")
    rates = task.physical(task.psi_space.initial())
    assert rates == pytest.approx({"2.rate [%]": 30.0, "5.rate [%]": 10.0})
    result = federate(task, shards([4, 5, 3, 6]), rounds=2, chunks=(0.5, 0.5))
    assert all(abs(result.psi[name] - rate) > 1e-4 for name, rate in rates.items())
    assert task.replace(samples=2).psi_names == task.psi_names
    plain, net = result.module(), with_dropout()
    assert [type(layer) for layer in plain] == [type(layer) for layer in net]
    assert 100 * plain[2].p == pytest.approx(result.psi["2.rate [%]"])
    net.load_state_dict(plain.state_dict())
    net = with_dropout()
    net[2].eval()
    assert Task(net, learn_dropout=True).psi_names == ("5.logit",)
    whole = Task(with_dropout().eval(), learn_dropout=True)
    assert whole.psi_names == ("2.logit", "5.logit")
    assert all(layer.training for layer in whole.module.modules() if isinstance(layer, ConcreteDropout))


def test_every_change_has_one_sentence_and_dropout_that_stays_off_too():
    plain = nn.ModuleList([nn.ReLU(inplace=True), nn.Embedding(3, 2, sparse=True), nn.Linear(2, 2)])
    own = Task(plain).module
    assert not own[0].inplace and not own[1].sparse and plain[0].inplace and plain[1].sparse
    assert Task(chain()).notes == [] and Task(Recurrent()).notes == []
    (norm,) = Task(frozen_norm()).notes
    kept = "BatchNorm layers that are frozen or in evaluation mode keep their statistics as constants: '1'."
    assert norm == kept
    (rates,) = Task(with_dropout(), learn_dropout=True).notes
    assert "are learned where forward() calls the layer: '2' and 1 more." in rates
    (nothing,) = Task(chain(), learn_dropout=True).notes
    assert nothing.startswith("learn_dropout=True finds no nn.Dropout ") and "ConcreteDropout(0.1)" in nothing
    net = nn.Sequential(frozen_norm(), with_dropout())
    net[0] = torch.compile(net[0], backend="eager")
    task = Task(net, learn_dropout=True)
    assert len(task.notes) == 3 and all(note.endswith(".") for note in task.notes)
    assert task.replace(samples=1).notes == task.notes
    (note,) = Task(nn.Sequential(with_dropout().eval(), nn.Linear(CLASSES, CLASSES))).notes
    assert note == "2 Dropout layers are in eval() and stay off; call module.train() to use them."
    net = nn.Sequential(with_dropout(), nn.Linear(CLASSES, CLASSES))
    assert Task(net).notes == [] and Task(net.eval()).notes == [], "a network at rest as a whole is trained"
    net[1].train()  # what get_peft_model leaves: the network itself rests, and a part of it trains
    assert Task(net).notes == [note]


def constant_layers():
    torch.manual_seed(0)
    spectral = (torch.nn.utils.parametrizations.spectral_norm, torch.nn.utils.spectral_norm)
    layers = [NormAndReLU(4), nn.InstanceNorm2d(4, track_running_stats=True)]
    convolutions = [norm(nn.Conv2d(4, 4, 1)).requires_grad_(False) for norm in spectral]
    return nn.Sequential(*layers, *convolutions)


@pytest.mark.parametrize("whole", [False, True], ids=["part", "whole"])
def test_other_layers_with_a_state_stay_as_they_are_in_evaluation_mode(whole):
    layers = constant_layers()
    net = chain(layers, nn.Dropout(0.3))
    net(torch.rand(3, 1, SIZE, SIZE))
    (net if whole else layers).eval()
    given = copy.deepcopy(dict(layers.named_buffers()))
    federation = trained(net)
    after = federation.task.module
    assert not any(part.training for layer in after[1] for part in layer.modules()) and after[2].training
    assert all(torch.equal(value.to(given[name]), given[name]) for name, value in after[1].named_buffers())
    x = torch.rand(4, 1, SIZE, SIZE, dtype=torch.float64)
    torch.testing.assert_close(federation.module()(x), next(federation.predict(x)))


def test_hooks_of_layers_that_are_replaced_stay():
    net = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
    net[2].eval()
    plain = Task(net, learn_dropout=True)
    net[2].register_forward_hook(lambda layer, args, out: 2 * out)
    net[3].register_forward_pre_hook(lambda layer, args, kwargs: ((3 * args[0],), kwargs), with_kwargs=True)
    x = torch.rand(5, 1, SIZE, SIZE)
    hooked = outputs(Task(net, learn_dropout=True), x, dropout=False)
    torch.testing.assert_close(hooked, 6 * outputs(plain, x, dropout=False))


@pytest.mark.parametrize("rest", ["eval", "freeze", "whole"])
def test_batch_norm_that_rests_or_is_frozen_keeps_its_statistics(rest):
    net = frozen_norm().train()
    if rest == "freeze":
        net[1].requires_grad_(False)
    else:
        (net if rest == "whole" else net[1]).eval()
    federation = trained(net)
    norm = federation.task.module[1]
    assert isinstance(norm, FrozenBatchNorm) and type(net[1]) is nn.BatchNorm2d
    assert torch.equal(norm.running_mean, net[1].running_mean.double())
    assert torch.equal(norm.running_var, net[1].running_var.double())
    moved = not torch.equal(federation.module()[1].weight, net[1].weight.double())
    assert moved == (rest != "freeze")
    x = torch.rand(4, 1, SIZE, SIZE, dtype=torch.float64)
    torch.testing.assert_close(federation.module()(x), next(federation.predict(x)))


@pytest.mark.parametrize("kind, blocks", [("part", 1), ("whole", 1), ("in place", 0), ("nested", 2)])
def test_compiled_blocks_run_as_they_are_written(kind, blocks):
    net, plain = chain(), trained(chain())
    if kind in ("part", "nested"):
        net[0] = torch.compile(net[0], backend="eager")
    if kind in ("whole", "nested"):
        net = torch.compile(net, backend="eager")
    if kind == "in place":
        net[0].compile(backend="eager")
    federation = trained(net)
    assert torch.equal(federation.w, plain.w)
    notes = federation.task.notes
    says = f"{blocks} compiled blocks run as they are written: torch.compile steps aside"
    assert [note.startswith(says) for note in notes] == [True] * min(blocks, 1)
    compiled = torch._dynamo.eval_frame.OptimizedModule
    assert not any(isinstance(layer, compiled) for layer in federation.module().modules())


def test_what_a_method_without_augmentation_leaves_out_and_what_rests_is_told(capsys):
    x, y = torch.randn(12, SIZE), torch.arange(12) % CLASSES
    resting = nn.Sequential(nn.Linear(SIZE, 4), ConcreteDropout(0.5).eval(), nn.Linear(4, CLASSES))
    task = Task(resting, transforms={"mask": FixedMask(SIZE, 2)}, samples=1)
    said = "leaves all transforms out, also 'mask' without hyperparameters"
    fit(task, (x, y), method="none", iterations=1, batch_size=4)
    told = capsys.readouterr().out
    assert said in told and "1 Dropout layers are in eval()" in told
    federate(task, [(x, y)] * 2, method="fedavg", rounds=1)
    assert said in capsys.readouterr().out
    options = {"augment": True}
    fit(task, (x, y), method="none", method_options=options, iterations=1, batch_size=4)
    assert said not in capsys.readouterr().out
