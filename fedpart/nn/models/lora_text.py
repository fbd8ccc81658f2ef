"""A pretrained classifier of texts from a local folder, fine-tuned by LoRA with learned scale and dropout."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedpart.extras import need
from fedpart.nn.hyperparameters.lora import LoraGate, learn_lora
from fedpart.nn.models.base import MODELS


class AdaptedText(nn.Module):
    """A classifier after :func:`.learn_lora`, whose psi are called ``lora.log_scale`` and
    ``lora.dropout.logit``.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.lora = next(part for part in model.modules() if isinstance(part, LoraGate))
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits ``[rows, K]``; both arguments are ``[rows, tokens]`` int64."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits  # type: ignore[no-any-return]


@MODELS.register("lora_text")
def lora_text(
    num_classes: int,
    input_shape: Any,
    weights: str,
    rank: int = 4,
    alpha: float = 4.0,
    target_modules: Sequence[str] = ("q_lin", "v_lin"),
    scale: bool = True,
    dropout: float | None = 0.1,
) -> nn.Module:
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
