"""Imported by the process that SuperNodes and executors are forked from: what all of them need, once."""

import gc
from importlib import import_module

for name in (
    "fedpart.flower.workarounds.supernode",
    "fedpart.flower.workarounds.executor",
    "flwr.supernode.main",
    "flwr.supercore.cli.flower_superexec",
    "flwr.supernode.runtime.run_clientapp",
    "simulations.flower.client",
    "simulations.building.experiment",
):
    import_module(name)
gc.collect()
gc.freeze()  # a collection in a child would write to all of it, and so copy it
