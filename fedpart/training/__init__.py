"""Training: what federated and centralised runs share: optimisers, state, checkpoints."""
