"""Networks of transformers from tiny configurations, with peft's adapters and without; a language model.

Both packages take seconds, so that they are imported where a network is made."""

import torch
from torch import nn

from stock.kinds import Stock, classes, next_tokens, of_classes, of_next_tokens

LENGTH, WORDS, WIDTH = 8, 60, 64


def padded(examples, generator):
    lengths = torch.randint(3, LENGTH + 1, (examples, 1), generator=generator)
    tokens = torch.randint(3, WORDS, (examples, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    return {"input_ids": tokens * mask, "attention_mask": mask}


def labelled(examples, generator):
    inputs = padded(examples, generator)
    return inputs, inputs["input_ids"][:, 0] % 3


def written(examples, generator):
    """Texts to be continued: padding has no target."""
    inputs = padded(examples, generator)
    return inputs, inputs["input_ids"].where(inputs["attention_mask"] == 1, -100)


def distilbert(dropout, layers=2):
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    rates = dict.fromkeys(("dropout", "attention_dropout", "seq_classif_dropout"), dropout)
    sizes = {"dim": WIDTH, "hidden_dim": 4 * WIDTH, "n_layers": layers, "n_heads": 2}
    words = {"vocab_size": WORDS, "max_position_embeddings": LENGTH, "pad_token_id": 0}
    return DistilBertForSequenceClassification(DistilBertConfig(num_labels=3, **words, **sizes, **rates))


def gpt2(dropout, layers=2):
    from transformers import GPT2Config, GPT2LMHeadModel

    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": WIDTH, "n_layer": layers, "n_head": 2}
    words = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **words, **rates))


def distilbert_lora(dropout, layers=2):
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(task_type="SEQ_CLS", r=2, lora_dropout=dropout, target_modules=["q_lin", "v_lin"])
    return get_peft_model(distilbert(dropout, layers), adapters)


def gpt2_lora(dropout, layers=2):
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(
        task_type="CAUSAL_LM", r=2, lora_dropout=dropout, target_modules=["c_attn"], fan_in_fan_out=True
    )
    return get_peft_model(gpt2(dropout, layers), adapters)


class TiedLM(nn.Module):
    """A language model whose embedding is its output layer."""

    def __init__(self, dropout):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(WORDS, 12), nn.Dropout(dropout)
        self.mix, self.norm = nn.Conv1d(12, 12, 3), nn.RMSNorm(12)
        self.output = nn.Linear(12, WORDS, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.dropout(self.embedding(tokens))
        past = nn.functional.pad(x.transpose(1, 2), (2, 0))
        return self.output(self.norm(x + torch.tanh(self.mix(past)).transpose(1, 2)))


def unpadded(examples, generator):
    tokens = torch.randint(WORDS, (examples, LENGTH), generator=generator)
    return tokens, tokens.clone()


def tied(dropout):
    return TiedLM(dropout)


BRANCHES = "data-dependent control flow.*use execution: loop"  # on whether anything is masked
TEXT = {
    "DistilBert": Stock(distilbert, labelled, classes, of_classes, grouped=BRANCHES),
    "DistilBert, LoRA": Stock(distilbert_lora, labelled, classes, of_classes, grouped=BRANCHES, frozen=True),
    "GPT-2": Stock(gpt2, written, next_tokens, of_next_tokens, grouped=BRANCHES),
    "GPT-2, LoRA": Stock(gpt2_lora, written, next_tokens, of_next_tokens, grouped=BRANCHES, frozen=True),
    "tied embeddings": Stock(tied, unpadded, next_tokens, of_next_tokens),
}
