"""Pretrained networks: a ResNet-18 whose body is frozen, and a classifier of texts, fine-tuned by LoRA."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpart.extras import need
from fedpart.nn.hyperparameters import ConcreteDropout
from fedpart.nn.hyperparameters.lora import LoraGate, learn_lora
from fedpart.nn.models.base import MODELS

_REMEDY = "python -m simulations.pretraining.resnet"


def three_channels(images: Tensor) -> Tensor:
    """``images`` ``[n, 1 or 3, height, width]`` with three channels; grey is repeated, not copied."""
    return images.expand(-1, 3, -1, -1)


class _Grey(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return three_channels(x)


class _Normalised(nn.Module):
    """``(x - mean) / std`` of each channel, as torchvision.transforms.Normalize."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        numbers = [*mean, *std]
        if (len(mean), len(std)) != (3, 3) or not all(map(math.isfinite, numbers)) or min(std) <= 0:
            fault = f"mean and std have three numbers each, those of std above 0, got {[*mean]} and {[*std]}"
            raise ValueError(f"{fault}; give those that the weights were trained with.")
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.get_default_dtype()).view(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


@MODELS.register("frozen_resnet")
def frozen_resnet(
    num_classes: int, input_shape: tuple[int, int, int], weights: str, dropout: float | None = 0.1,
    temperature: float = 0.1, mean: Sequence[float] | None = None, std: Sequence[float] | None = None,
) -> nn.Sequential:  # fmt: skip
    """torchvision's ResNet-18 (He et al. 2016) with a frozen body: only the last linear layer is trained.

    The body's BatchNorm keeps the statistics that it was trained with. The head has 513 parameters a class.

    Args:
        input_shape: (channels, height, width), with 1 or 3 channels; grey is repeated.
        weights: file of a ``state_dict`` of ``torchvision.models.resnet18``, relative to the current folder;
            its last layer (``fc``), of whatever classes, is not used.
        dropout: initial drop rate of the learned dropout between body and head; None for none.
        mean, std: of each of three channels, subtracted from and divided out of the images, as they were when
            the weights were trained; with one of them the other is 0 or 1. None: images go in as they are.
    """
    from torchvision.models import resnet18

    if input_shape[0] not in (1, 3):
        raise ValueError(f"A ResNet-18 takes images of 1 or 3 channels, got {input_shape[0]}.")
    file = Path(weights).expanduser()
    if not file.is_file():
        raise FileNotFoundError(
            f"The weights of the frozen ResNet-18 are not in {weights}; make them with {_REMEDY} {weights}, "
            f"or set model_options.weights to the file of a state_dict of torchvision's resnet18."
        )
    body: nn.Module = resnet18()
    body.fc = nn.Identity()
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
        body.load_state_dict({name: part for name, part in saved.items() if not name.startswith("fc.")})
    except Exception as error:  # torch raises half a dozen kinds
        reason = str(error).splitlines()[0]
        fault = f"{weights} holds no weights of torchvision's resnet18 ({reason})"
        raise ValueError(f"{fault}; make them with {_REMEDY}.") from error
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if input_shape[0] == 1:
        layers["channels"] = _Grey()
    if mean is not None or std is not None:
        layers["normalised"] = _Normalised(mean or (0.0, 0.0, 0.0), std or (1.0, 1.0, 1.0))
    layers["body"] = body.requires_grad_(False).eval()
    if dropout is not None:
        layers["dropout"] = ConcreteDropout(dropout, temperature)
    layers["classes"] = nn.Linear(512, num_classes)
    return nn.Sequential(layers)


class AdaptedText(nn.Module):
    """A classifier after :func:`.learn_lora`, whose psi are called ``lora.log_scale`` and
    ``lora.dropout.logit``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.lora = next(part for part in model.modules() if isinstance(part, LoraGate))
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits ``[rows, K]``; both arguments are ``[rows, tokens]`` int64."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits  # type: ignore[no-any-return]


@MODELS.register("lora_text")
def lora_text(
    num_classes: int, input_shape: Any, weights: str, rank: int = 4, alpha: float = 4.0,
    target_modules: Sequence[str] = ("q_lin", "v_lin"), scale: bool = True, dropout: float | None = 0.1,
) -> nn.Module:  # fmt: skip
    """A sequence classifier of Hugging Face's transformers with LoRA adapters of peft (Hu et al. 2021).

    Trained are the adapters and the classifier on top; everything else is frozen. Psi are the adapters'
    scale and dropout rate, by :func:`.learn_lora`. Nothing is downloaded.

    Args:
        input_shape: shapes of ``input_ids`` and ``attention_mask``, not used.
        weights: folder as transformers' ``save_pretrained`` writes it, relative to the current folder.
        rank, alpha, target_modules: of peft's ``LoraConfig``; the adapters' scale starts at ``alpha / rank``.
            ``q_lin`` and ``v_lin`` are DistilBERT's names; BERT's are ``query`` and ``value``.
        scale: whether the scale is learned.
        dropout: initial rate of the adapters' dropout; None for none.
    """
    remedy = (
        f"make it with python -m simulations.pretraining.text {weights}, or set model_options.weights to a "
        f"folder that transformers has saved"
    )
    folder = Path(weights).expanduser()
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"The pretrained model is not in {weights}; {remedy}.")
    peft, transformers = (need(name, "The model lora_text", "text") for name in ("peft", "transformers"))
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # it would report the new classifier, and the old head
    try:
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            str(folder), num_labels=num_classes, local_files_only=True
        )
    except Exception as error:  # transformers and safetensors raise several kinds
        raise ValueError(f"{weights} holds no pretrained model ({_first(error)}); {remedy}.") from error
    finally:
        transformers.logging.set_verbosity(before)
    names = [name for name, _ in model.named_modules()]
    unknown = [part for part in target_modules if not any(f".{name}".endswith(f".{part}") for name in names)]
    choose = "set model_options.target_modules to a list of those that get adapters"
    if unknown:
        raise ValueError(f"The model in {weights} has no layers called {', '.join(unknown)}; {choose}.")
    config = peft.LoraConfig(
        task_type=peft.TaskType.SEQ_CLS, r=rank, lora_alpha=alpha, target_modules=list(target_modules)
    )
    try:
        model = peft.get_peft_model(model, config)
    except ValueError as error:
        raise ValueError(f"peft cannot adapt the model in {weights} ({_first(error)}); {choose}.") from error
    return AdaptedText(learn_lora(model, scale, dropout)).train()


def _first(error: Exception) -> str:
    """The first sentence of an error."""
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
