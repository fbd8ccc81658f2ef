"""Data of a configuration: normalised once, after they are rotated, and shown in their own colours."""

import torch
from tiny import tiny

from simulations.building.data import client_shards, load_data
from simulations.results.pictures.transform_figures import examples, run_blocks
from simulations.running.run import run_experiment

NORMALISE = {"mean": [0.2], "std": [0.4]}


def test_images_are_normalised_after_they_are_rotated():
    plain, found = (
        load_data(tiny(rotated=True, test_points=None, **more)) for more in ({}, {"normalise": NORMALISE})
    )
    for before, after in zip(plain.parts().values(), found.parts().values(), strict=True):
        torch.testing.assert_close(after.inputs, (before.inputs - 0.2) / 0.4)
        assert after.groups.equal(before.groups) and after.targets.equal(before.targets)


def test_clients_own_examples_are_too():
    own = {"evaluation": "clients", "evaluation_share": None}
    plain, found = (tiny(**own, **more) for more in ({}, {"normalise": NORMALISE}))
    for before, after in zip(
        client_shards(plain, load_data(plain)), client_shards(found, load_data(found)), strict=True
    ):
        torch.testing.assert_close(after.evaluation.inputs, (before.evaluation.inputs - 0.2) / 0.4)


def test_pictures_of_transforms_have_the_images_own_colours(tmp_path):
    config = tiny(rounds=1, normalise=NORMALISE)
    run_experiment(config, tmp_path / "run")
    (_, shown), *others = run_blocks(tmp_path / "run", load_data(config))
    torch.testing.assert_close(shown[:, 0], examples(load_data(tiny()))[0])
    assert others
