"""The ready-made ClientApp, for `flwr run`; its factory is in fedpart.flower."""
