"""Input noise: its distribution, its gradient."""

import pytest
import torch
from every_way import assert_learned_every_way

from fedpart import InputNoise, normal
from fedpart.randomness.noise import Noise, NoiseKey


@pytest.mark.parametrize("place", ["transform", "layer"])
@pytest.mark.parametrize("shape", [(5,), (2, 6), (3, 6, 6)])
def test_it_is_learned_every_way(place, shape):
    assert_learned_every_way(**{place: InputNoise(0.2)}, shape=shape)


def test_what_is_added_is_the_deviation_times_the_runs_normal_noise():
    key, x = NoiseKey(0, "test"), torch.randn(40, 3, 5)
    noise = InputNoise(0.3)
    with Noise(key).active():
        out = noise(x)
    with Noise(key).active():
        drawn = normal(x.shape, like=x)
    torch.testing.assert_close(out, x + 0.3 * drawn)
    out.sum().backward()
    torch.testing.assert_close(noise.log_std.grad, 0.3 * drawn.sum())
    assert noise.eval()(x).ne(x).all()


def test_physical_deviation_and_type():
    assert InputNoise(0.3).physical() == {"std": pytest.approx(0.3)}
    assert InputNoise()(torch.zeros(3, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16
