"""Frozen bodies from local files: what is trained, what is psi, that it partitions, and what is refused."""

import shutil
from functools import partial

import pytest
import refusals
import torch
from torchvision.models import resnet18
from torchvision.transforms import Normalize

from fedpart import Dataset, Federation, FederationSettings, LocalSettings, Protocol, Task
from fedpart.data import random_subset
from fedpart.data.sets.synthetic import LENGTH, WORDS, topics
from fedpart.engines import LocalEngine
from fedpart.nn.models.pretrained import frozen_resnet, lora_text


@pytest.fixture(scope="session")
def resnet(tmp_path_factory):
    """A file of random weights, with statistics as training leaves them."""
    torch.manual_seed(0)
    model = resnet18(num_classes=9)
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    file = tmp_path_factory.mktemp("weights") / "resnet18.pt"
    torch.save(model.state_dict(), file)
    return str(file)


@pytest.fixture(scope="session")
def distilbert(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=len(WORDS), dim=16, hidden_dim=32, n_layers=2, n_heads=2, max_position_embeddings=LENGTH
    )
    folder = tmp_path_factory.mktemp("weights") / "distilbert"
    transformers.DistilBertModel(config).save_pretrained(folder)
    return str(folder)


def test_of_the_resnet_only_the_head_is_trained_and_norms_keep_their_statistics(resnet):
    task = Task(frozen_resnet(4, (1, 32, 32), resnet), samples=2)
    assert task.psi_names == ("dropout.logit",)
    assert [entry.name for entry in task.parameter_space(3).entries] == ["classes.weight", "classes.bias"]
    assert task.parameter_space(3).size == 513 * 4
    network = frozen_resnet(4, (3, 32, 32), resnet, dropout=None)
    images = torch.rand(6, 3, 32, 32)
    model = Task(network).module.train()
    torch.testing.assert_close(model(images)[:2], model(images[:2]))
    assert "dropout" not in dict(network.named_children())


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_normalised_as_the_weights_want(resnet, channels):
    """As torchvision does it, and then no more; constants are no part of what is trained."""
    constants = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    shape, images = (channels, 32, 32), torch.rand(4, channels, 32, 32)
    plain = frozen_resnet(4, (3, 32, 32), resnet, dropout=None)
    own = frozen_resnet(4, shape, resnet, dropout=None, **constants)
    own.classes.load_state_dict(plain.classes.state_dict())
    by_hand = Normalize(**constants)(images.expand(-1, 3, -1, -1))
    torch.testing.assert_close(own(images), plain(by_hand))
    names = [entry.name for entry in Task(own).parameter_space(3).entries]
    assert names == ["classes.weight", "classes.bias"]
    half = frozen_resnet(4, shape, resnet, dropout=None, mean=constants["mean"])
    shifted = Normalize(constants["mean"], [1, 1, 1])(images.expand(-1, 3, -1, -1))
    torch.testing.assert_close(half.normalised(images), shifted)


def run(task, shards, method="partitioned"):
    settings = FederationSettings(
        chunks=(0.7, 0.3), clients=len(shards), cohort=len(shards), method=method, local=LocalSettings(0.5)
    )
    federation = Federation(Protocol(task, settings))
    engine = LocalEngine(federation, shards)
    start = (federation.w.clone(), federation.psi.clone())
    for _ in range(2):
        engine.run_round()
    return federation, *start


@pytest.mark.slow
def test_a_federation_learns_lora_and_its_psi(distilbert):
    """Adapters, classifier, scale and dropout move; what is frozen stays and is of one hash everywhere."""
    torch.manual_seed(0)
    task = Task(lora_text(8, None, distilbert, rank=2), samples=1)
    assert task.psi_names == ("lora.log_scale", "lora.dropout.logit")
    frozen = {name: tensor.clone() for name, tensor in task.frozen.items()}
    shards = [topics(8, seed) for seed in range(4)]
    federation, w, psi = run(task, shards)
    space = federation.partition.space
    assert all("lora_" in entry.name or "modules_to_save" in entry.name for entry in space.entries)
    before, after = (federation.partition.materialise(values, 2) for values in (w, federation.w))
    assert not any(before[name].equal(after[name]) for name in before)
    assert (federation.psi != psi).all()
    assert all(task.frozen[name].equal(tensor) for name, tensor in frozen.items())
    assert set(task.physical(federation.psi)) == {"lora.scale", "lora.dropout.rate [%]"}


def test_a_federation_learns_the_head_and_its_dropout(resnet):
    torch.manual_seed(0)
    task = Task(frozen_resnet(4, (1, 8, 8), resnet), samples=1)
    generator = torch.Generator().manual_seed(0)
    shards = [random_subset(_images(12, generator), 6, seed) for seed in range(4)]
    federation, w, psi = run(task, shards)
    assert (federation.w != w).any() and (federation.psi != psi).all()


def _images(n, generator):
    return Dataset(torch.rand(n, 1, 8, 8, generator=generator), torch.arange(n) % 4)


def test_what_lora_text_refuses(distilbert, tmp_path):
    bare, broken = tmp_path / "bare", tmp_path / "broken"
    for folder in (bare, broken):
        folder.mkdir()
        shutil.copy(f"{distilbert}/config.json", folder)
    (broken / "model.safetensors").write_text("no weights")
    no_layers = "no layers called {}; set model_options\\.target_modules"
    peft = r"^(?!.*\. )peft cannot adapt .*; set model_options\.target_modules"
    no_model = r"^(?!.*\. ).*holds no pretrained model \(.+\); make it with python -m simulations\.pretrain"
    missing = r"not in nowhere; make it with python -m simulations\.pre"
    refusals.check(
        (what, partial(lora_text, 4, None, str(folder), **options), error, says)
        for what, folder, options, error, says in [
            ("no folder", "nowhere", {}, FileNotFoundError, missing),
            ("no weights", bare, {}, ValueError, no_model),
            ("broken weights", broken, {}, ValueError, no_model),
            ("another layer", distilbert, layers("query"), ValueError, no_layers.format("query")),
            ("the end of q_lin", distilbert, layers("lin"), ValueError, no_layers.format("lin")),
            ("no layer", distilbert, layers(), ValueError, peft),
            ("no linear layer", distilbert, layers("attention"), ValueError, peft),
        ]
    )


def layers(*names):
    return {"target_modules": [*names]}
