"""Clients with caps, and networks of different sizes, over Flower: the local engine's numbers and bytes."""

import pytest
from flower_experiment import CLIENTS, app, assert_equal_runs, deployed, local
from inprocess_grid import InProcessGrid

SIZES = {"sizes": True, "evaluation": "clients", "width": 100}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "fedavg"},
        {"upload": "int4"},
        {"download": "fp16"},
        {"capped": True},
        {"sharing": "bank"},
        {"sharing": "basis", "upload": "int4"},
    ],
)
def test_the_numbers_and_bytes_are_those_of_the_local_engine(changes):
    config = {**SIZES, **changes}
    found, other = deployed(2, config, every=1), local(2, every=1, **config)
    for report, predicted in zip(found[1], other[1], strict=True):
        for key in ("download_bytes", "upload_bytes"):
            assert getattr(report, key) == pytest.approx(getattr(predicted, key), abs=5 * 150)  # headers
    assert_equal_runs(found, other)


CAPPED = {"capped": True, "evaluation": "clients", "width": 400}


def test_bytes_of_capped_clients_are_those_of_the_messages():
    grid = InProcessGrid(app, CLIENTS, CAPPED)
    federation, reports = deployed(3, CAPPED, grid, every=3)
    here, others = local(3, every=3, **CAPPED)
    assert_equal_runs((federation, reports), (here, others))
    scored = reports[-1].client_nll_caps
    assert scored[0] != scored[2] and scored[1] is None
    assert sum(report.upload_bytes for report in reports) == grid.bytes_up
    told = [report.upload_bytes for report in others]
    assert told == pytest.approx([report.upload_bytes for report in reports], rel=2e-3)
    protocol = federation.protocol
    alone = [c for c in range(CLIENTS) if protocol.upload_sizes(c, protocol.plan(c, 1))[0] == {}]
    assert alone and any(client in report.cohort for report in reports for client in alone)
