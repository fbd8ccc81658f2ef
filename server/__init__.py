"""The ready-made ServerApp, for `flwr run` in a checkout; the strategy is in fedpart.flower."""
