"""Frozen bodies from local files: what is trained, what is psi, that it partitions, and what is refused."""

import importlib.util
import math
import shutil

import pytest
import torch
from torch import nn
from torchvision.models import resnet18
from torchvision.transforms import Normalize

from fedpart import Dataset, Federation, FederationSettings, LocalSettings, Protocol, Task
from fedpart.data import random_subset
from fedpart.data.sets.topics import LENGTH, WORDS, topics
from fedpart.engines import LocalEngine
from fedpart.models.frozen import frozen_resnet
from fedpart.models.lora_text import lora_text


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
    """A folder of random weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=len(WORDS), dim=16, hidden_dim=32, n_layers=2, n_heads=2, max_position_embeddings=LENGTH
    )
    folder = tmp_path_factory.mktemp("weights") / "distilbert"
    transformers.DistilBertModel(config).save_pretrained(folder)
    return str(folder)


def test_of_the_resnet_only_the_head_is_trained(resnet):
    task = Task(frozen_resnet(4, (1, 32, 32), resnet), samples=2)
    assert task.psi_names == ("dropout.logit",)
    assert [entry.name for entry in task.parameter_space(3).entries] == ["classes.weight", "classes.bias"]
    assert task.parameter_space(3).size == 513 * 4


def test_the_frozen_norms_keep_their_statistics_in_training(resnet):
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
    assert [entry.name for entry in Task(own).parameter_space(3).entries] == [
        "classes.weight",
        "classes.bias",
    ]
    half = frozen_resnet(4, shape, resnet, dropout=None, mean=constants["mean"])
    torch.testing.assert_close(
        half.normalised(images), Normalize(constants["mean"], [1, 1, 1])(images.expand(-1, 3, -1, -1))
    )


@pytest.mark.parametrize(
    "constants", [{"mean": [0.5]}, {"std": [1.0, 0.0, 1.0]}, {"mean": [0.0, 0.0, math.nan]}]
)
def test_constants_that_do_not_fit_are_refused(resnet, constants):
    with pytest.raises(
        ValueError, match=r"mean and std have three numbers each, .* give those that the weights"
    ):
        frozen_resnet(4, (3, 32, 32), resnet, **constants)


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


def test_missing_weights_name_the_command(tmp_path, distilbert):
    with pytest.raises(FileNotFoundError, match=r"not in no\.pt; make them with python -m simulations\.pre"):
        frozen_resnet(4, (1, 32, 32), "no.pt")
    with pytest.raises(FileNotFoundError, match=r"not in nowhere; make it with python -m simulations\.pre"):
        lora_text(4, None, "nowhere")


def test_other_files_and_images_are_refused(tmp_path, resnet):
    (tmp_path / "text.pt").write_text("no weights")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "linear.pt")
    for name in ("text.pt", "linear.pt"):
        with pytest.raises(ValueError, match=rf"{name} holds no weights of torchvision's resnet18 \(.+\)"):
            frozen_resnet(4, (1, 32, 32), str(tmp_path / name))
    with pytest.raises(ValueError, match="1 or 3 channels, got 2"):
        frozen_resnet(4, (2, 32, 32), resnet)


def test_a_missing_package_names_the_extra(monkeypatch, distilbert):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else found(name))
    with pytest.raises(ImportError, match=r'lora_text needs peft: pip install "fedpart\[text\]"'):
        lora_text(4, None, distilbert)


@pytest.mark.parametrize("name", ["query", "lin"])  # the end of a name, q_lin, is not one
def test_layers_that_are_not_there_are_named(distilbert, name):
    with pytest.raises(ValueError, match=rf"no layers called {name}; set model_options\.target_modules"):
        lora_text(4, None, distilbert, target_modules=[name])


@pytest.mark.parametrize("names", [[], ["attention"]], ids=str)
def test_what_peft_refuses_is_one_sentence(distilbert, names):
    with pytest.raises(
        ValueError, match=r"peft cannot adapt .*; set model_options\.target_modules"
    ) as caught:
        lora_text(4, None, distilbert, target_modules=names)
    assert ". " not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("weights", [None, "no weights"])
def test_a_folder_without_weights_names_the_command(distilbert, tmp_path, weights):
    shutil.copy(f"{distilbert}/config.json", tmp_path)
    if weights:
        (tmp_path / "model.safetensors").write_text(weights)
    message = r"holds no pretrained model \(.+\); make it with python -m simulations\.pretraining\.text"
    with pytest.raises(ValueError, match=message) as caught:
        lora_text(4, None, str(tmp_path))
    assert ". " not in str(caught.value) and "\n" not in str(caught.value)
