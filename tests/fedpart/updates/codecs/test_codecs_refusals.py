"""What codecs refuse: options, bytes that no encoder makes, and error feedback where nothing can be kept."""

import math
from functools import partial

import numpy as np
import refusals
import torch
from flower_experiment import CLIENTS, build
from inprocess_grid import InProcessGrid
from problems import chain_net, settings, shards
from tiny import tiny

from fedpart import ClientError, Federation, Task, federate
from fedpart.flower.client import make_client_app
from fedpart.flower.strategy import FedPart
from fedpart.updates.codecs import CODECS
from fedpart.updates.codecs.topk import TopK
from simulations.errors import ConfigError
from simulations.running.run import run_experiment

FED_BACK = {"upload": "topk", "upload_options": {"share": 0.1}, "error_feedback": True}


def test_options():
    shares = [0, -0.1, 1.5, math.nan, math.inf]
    rows = [(f"a share of {share}", partial(TopK, share), "above 0 and at most 1, got") for share in shares]
    unknown = [
        ({"values": "int9"}, "Unknown upload codec 'int9'"),
        ({"k": 3}, "The upload codec 'topk' does not take the options {'k': 3}"),
        ({"share": "much"}, "The upload codec 'topk' cannot be made with the options"),
    ]
    rows += [(str(options), partial(CODECS.make, "topk", options), says) for options, says in unknown]
    rows.append(
        ("int9", lambda: settings(4, upload="int9"), "Unknown upload codec 'int9': did you mean 'int")
    )
    refusals.check((*row, ValueError, says) for *row, says in rows)


def bad_blocks(name, block, steps, codes):
    """Messages that no encoder of blocks makes, each with what is said of it; ``codes``: to a byte."""
    codec, n = CODECS[name](), 3 * block + 1
    good = codec.encode(torch.randn(n, generator=torch.Generator().manual_seed(0)), np.random.default_rng(0))
    scales, below, behind = good.clone(), good.clone(), good.clone()
    scales[: 4 * 4].view(torch.float32)[2] *= -1
    below[4 * 4 + 20] = 128 if codes == 1 else 15 << 4  # -128; 0, which stands for -8
    behind[-1] |= 1 << 4
    bad = [(scales, "a block has a scale below 0"), (below, f"a code is below -{steps}")]
    bad += [(behind, "bits behind the last code are not 0")] if codes == 2 else []
    return [(f"{name}: {says}", partial(codec.decode, data, n, torch.float32), says) for data, says in bad]


def test_bytes_that_no_encoder_makes():
    rows = [*bad_blocks("int8", 256, 127, 1), *bad_blocks("int4", 64, 7, 2)]
    refusals.check((*row, ValueError, says) for *row, says in rows)


def run(rounds, folder, **options):
    data = shards([4, 7, 3, 9, 5, 6, 2, 8])
    federate(Task(chain_net()), data, rounds=rounds, checkpoint=folder / "run.pt", **FED_BACK, **options)


def test_error_feedback(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    config = {"upload": "topk", "share": 0.1, "error_feedback": True}
    grid = InProcessGrid(make_client_app(build), CLIENTS, config)
    homeless = partial(FedPart(Federation(build(config).protocol)).run, grid, 4)
    clustered = partial(run_experiment, tiny(engine="ray", **FED_BACK), tmp_path / "clustered")
    run(3, tmp_path)
    for file in tmp_path.glob("run.residuals/*/*/*.pt"):
        file.unlink()
    resumed = partial(run, 6, tmp_path, resume=True)
    gone = r"what error feedback has kept of round \d cannot be read"
    no_folder = r"give make_client_app\(\) a folder for it, with keep="
    refusals.check(
        [
            ("what was kept is gone", resumed, ClientError, gone),
            ("clients without a folder", homeless, ClientError, no_folder),
            (
                "a cluster",
                clustered,
                ConfigError,
                "actors of a Ray cluster do not find them; unset RAY_ADDRESS",
            ),
        ]
    )
