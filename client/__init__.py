"""The ready-made ClientApp, for `flwr run` in a checkout; its factory is in fedpart.flower."""
