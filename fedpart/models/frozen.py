"""A trained ResNet-18 whose body is frozen, under a head that is trained."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import torch
from torch import Tensor, nn

from fedpart.hyperparameters import ConcreteDropout

_REMEDY = "python -m simulations.pretraining.resnet"


def three_channels(images: Tensor) -> Tensor:
    """``images`` ``[n, 1 or 3, height, width]`` with three channels; grey is repeated, not copied."""
    return images.expand(-1, 3, -1, -1)


class _Grey(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return three_channels(x)


def frozen_resnet(
    num_classes: int,
    input_shape: tuple[int, int, int],
    weights: str,
    dropout: float | None = 0.1,
    temperature: float = 0.1,
) -> nn.Sequential:
    """torchvision's ResNet-18 (He et al. 2016) with a frozen body: only the last linear layer is trained.

    The body's BatchNorm keeps the statistics that it was trained with. The head has 513 parameters a class.

    Args:
        num_classes: K outputs.
        input_shape: (channels, height, width), with 1 or 3 channels; grey is repeated.
        weights: file of a ``state_dict`` of ``torchvision.models.resnet18``, relative to the current folder;
            its last layer (``fc``), of whatever classes, is not used.
        dropout: initial drop rate of the learned dropout between body and head; None for none.
        temperature: of the concrete relaxation.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds no weights of a ResNet-18, or images have another number of channels.
        ImportError: torchvision is not installed.
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
        found = torch.load(file, map_location="cpu", weights_only=True)
        body.load_state_dict({name: part for name, part in found.items() if not name.startswith("fc.")})
    except Exception as error:  # torch raises half a dozen kinds
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{weights} holds no weights of torchvision's resnet18 ({reason}); make them with {_REMEDY}."
        ) from error
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if input_shape[0] == 1:
        layers["channels"] = _Grey()
    layers["body"] = body.requires_grad_(False).eval()
    if dropout is not None:
        layers["dropout"] = ConcreteDropout(dropout, temperature)
    layers["classes"] = nn.Linear(512, num_classes)
    return nn.Sequential(layers)
