"""Pretraining: the weights that the fine-tuning configurations start from, made here from a seed."""
