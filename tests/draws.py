"""What calls return that draw the same random numbers."""

import torch

from fedpart.randomness.noise import Noise, NoiseKey


def alike(*calls, seed=0, dtype=torch.float32):
    """Of each call, under noise of its own with the same key; of one call what it returns itself."""
    found = []
    for call in calls:
        with Noise(NoiseKey(seed, "test"), dtype=dtype).active():
            found.append(call())
    return found if len(calls) > 1 else found[0]
