"""Hyperparameters of networks that read tokens: whole tokens dropped, the adapters of LoRA."""
