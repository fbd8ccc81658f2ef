"""The ready-made ServerApp, for `flwr run`; the strategy is in fedpart.flower."""
