"""A small DistilBERT that has read texts of the data set ``topics``, for ``lora_text`` to adapt.

``python -m simulations.pretraining.text`` writes what ``simulations/configs/lora_text.yaml`` reads.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from fedpart.data.sets.synthetic import LENGTH, MASK, PAD, THE, WORDS, topics
from fedpart.extras import need
from simulations.pretraining.descent import descend, training_here

OUT = Path("pretrained/topics_distilbert")
_WARM = 50  # steps in which the learning rate rises


def pretrain_text(
    steps: int = 3000, batch_size: int = 64, learning_rate: float = 1.5e-3, texts: int = 20_000,
    masked: float = 0.3, seed: int = 0,
) -> Any:  # fmt: skip
    """A DistilBERT of two layers and 64 features, trained to guess masked words of topics, on one thread."""
    transformers = need("transformers", "The model of lora_text", "text")
    shape = {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4, "max_position_embeddings": LENGTH}
    drops = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    config = transformers.DistilBertConfig(vocab_size=len(WORDS), pad_token_id=PAD, **shape, **drops)
    inputs = topics(texts, seed).inputs
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.DistilBertForMaskedLM(config).train()
        optimiser = torch.optim.AdamW(model.parameters(), learning_rate)
        rate = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: min((step + 1) / _WARM, 1 - step / steps)
        )

        def loss_of(step: int) -> Tensor:
            places = torch.randint(texts, (batch_size,))
            tokens, seen = inputs["input_ids"][places], inputs["attention_mask"][places]
            hidden = (torch.rand(tokens.shape) < masked) & (tokens > THE)
            labels = tokens.where(hidden, torch.tensor(-100))  # which the loss leaves out
            guessed = model(input_ids=tokens.masked_fill(hidden, MASK), attention_mask=seen, labels=labels)
            return guessed.loss

        descend(loss_of, optimiser, rate, steps, log_every=100)
    return model.eval()


def main(
    out: Annotated[Path, typer.Argument(help="Folder of the model.")] = OUT,
    steps: Annotated[int, typer.Option(min=1)] = 3000,
    seed: Annotated[int, typer.Option(help="Of initial values, texts, order and masks.")] = 0,
) -> None:
    """Train a small DistilBERT on texts without labels, and save it as transformers does."""
    with training_here():
        out.mkdir(parents=True, exist_ok=True)
        pretrain_text(steps, seed=seed).save_pretrained(out)
    print(f"{out}: a DistilBERT of two layers that has read {steps} batches of texts.")


if __name__ == "__main__":
    typer.run(main)
