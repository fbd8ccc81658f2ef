"""Weights that are rounded on their way to clients: the same on all engines, and not the server's own."""

import pytest
import torch
from flower_experiment import CLIENTS, assert_equal_runs, deployed, local

from fedpart.federated.cohorts import state_bytes
from fedpart.federated.wire import decode_state, encode_state

KINDS = {"fp16": torch.float16, "bf16": torch.bfloat16}
EVALUATED = {"evaluation": "clients", "evaluation_share": 0.3}


@pytest.mark.parametrize("kind", KINDS)
def test_clients_start_from_rounded_weights_and_the_server_does_not(kind):
    federation, _ = local(1, download=kind)
    start, before = federation.start(2), federation.w.clone()
    assert torch.equal(start.w, before.to(KINDS[kind]).float())
    assert torch.equal(federation.w, before) and not torch.equal(start.w, before)
    assert start.psi is federation.psi
    sent = encode_state(federation.w, federation.psi, federation.protocol, federation.partition)
    w, psi = decode_state(sent, federation.protocol, 0)
    assert torch.equal(w, start.w) and torch.equal(psi, start.psi)
    assert sum(array.nbytes for array in sent.values()) == state_bytes(federation.protocol, 0)


@pytest.mark.parametrize(
    "config", [{"download": "fp16"}, {"download": "bf16", "upload": "int8", **EVALUATED}]
)
def test_engines_give_the_same_bits(config):
    expected = local(3, **config)
    assert_equal_runs(local(3, workers=2, **config), expected)
    over_flower = deployed(3, config)
    assert_equal_runs(over_flower, expected)
    for one, other in zip(over_flower[1], expected[1], strict=True):
        assert one.download_bytes == pytest.approx(other.download_bytes, abs=100 * len(one.cohort))
        if other.evaluation_bytes is not None:
            assert one.evaluation_bytes == pytest.approx(other.evaluation_bytes, abs=200 * CLIENTS)
    plain, _ = local(3, **{**config, "download": None})
    assert not torch.equal(plain.w, expected[0].w)


def test_half_the_bytes_of_the_weights_go_down_and_as_many_up():
    (state, narrow), (_, plain) = local(1, download="bf16"), local(1)
    assert plain[0].download_bytes - narrow[0].download_bytes == 5 * 2 * state.partition.space.size
    assert narrow[0].upload_bytes == plain[0].upload_bytes
