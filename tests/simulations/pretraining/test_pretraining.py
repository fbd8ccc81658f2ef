"""What is pretrained is a function of the seed, and what the fine-tuning models start from."""

import pytest
import torch
import typer
from torch.nn import functional
from typer.testing import CliRunner

from fedpart.data import Dataset, Splits, load_splits
from fedpart.data.sets.synthetic import MASK, THE, topics
from fedpart.nn.models.pretrained import frozen_resnet, lora_text, three_channels
from simulations.pretraining import text
from simulations.pretraining.resnet import accuracy, pretrain_resnet
from simulations.pretraining.text import pretrain_text


def same(a, b):
    return all(x.equal(y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def digits(n):
    part = load_splits("digits", classes=[0, 1]).train.subset(range(n))
    return Splits(part, part, part, 2)


@pytest.mark.slow
def test_a_resnet_learns_its_classes_and_is_a_function_of_the_seed():
    splits = digits(64)
    one, again, other = (pretrain_resnet(splits, 2, 32, seed=seed) for seed in (0, 0, 1))
    assert same(one, again) and not same(one, other)
    model = pretrain_resnet(splits, 6, 32)
    assert not model.training
    model.train()  # for the statistics of so few steps are still on their way
    assert accuracy(model, splits.train) > 0.9


def test_a_resnet_needs_a_batch():
    with pytest.raises(ValueError, match="8 images in 1 epochs are no batch of 64; give more"):
        pretrain_resnet(digits(8))


def test_accuracy_counts():
    def always_one(images):
        assert images.shape[1] == 3
        return torch.eye(2)[torch.ones(len(images), dtype=torch.int64)]

    data = Dataset(torch.rand(1003, 1, 2, 2), torch.arange(1003) % 2)
    assert accuracy(always_one, data) == 501 / 1003


@pytest.mark.slow
def test_the_body_of_a_file_is_the_body_of_the_network(tmp_path):
    """Up to the new last layer, outputs are those of the ResNet that was saved, in training mode too."""
    model = pretrain_resnet(digits(32), batch_size=16)
    torch.save(model.state_dict(), tmp_path / "resnet.pt")
    network = frozen_resnet(7, (1, 28, 28), str(tmp_path / "resnet.pt"), dropout=None)
    model.fc, images = network.classes, torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(network(images), model(three_channels(images)))


@torch.no_grad()
def held_out_loss(model):
    tokens = topics(100, 99).inputs["input_ids"]
    hidden = (torch.arange(tokens.numel()).view(tokens.shape) % 5 == 0) & (tokens > THE)
    logits = model(input_ids=tokens.masked_fill(hidden, MASK), attention_mask=(tokens != 0).long()).logits
    return functional.cross_entropy(logits[hidden], tokens[hidden]).item()


@pytest.mark.slow
def test_a_text_model_learns_the_language_and_is_a_function_of_the_seed():
    options = {"batch_size": 16, "texts": 200, "learning_rate": 5e-3}
    one, again, other = (pretrain_text(14, **options, seed=seed) for seed in (0, 0, 1))  # an epoch is over
    assert same(one, again) and not same(one, other)
    start, model = (pretrain_text(steps, **options) for steps in (1, 60))
    assert held_out_loss(model) < held_out_loss(start) - 0.3


def test_the_body_of_a_folder_is_the_body_of_the_classifier(tmp_path):
    """Adapters begin at 0, so the first token's features are those of the model that was saved."""
    model = pretrain_text(2, batch_size=4, texts=8)
    model.save_pretrained(tmp_path)
    network = lora_text(3, None, str(tmp_path)).eval()
    inputs = topics(4, 0).inputs
    features = model.distilbert(**inputs).last_hidden_state
    adapted = network.model.base_model.model.distilbert(**inputs).last_hidden_state
    torch.testing.assert_close(adapted, features)


def test_what_does_not_fit_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").write_text("")  # a file stands where the folder is to be
    app = typer.Typer()
    app.command()(text.main)
    result = CliRunner().invoke(app, ["weights", "--steps", "1"])
    assert result.exit_code == 2
    assert "weights" in result.stderr and result.stderr.count("\n") == 1
