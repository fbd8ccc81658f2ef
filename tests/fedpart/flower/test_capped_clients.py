"""Clients with caps over Flower: the numbers of the local engine, and the bytes that it predicts."""

import pytest
from flower_experiment import CLIENTS, app, assert_equal_runs, build, local
from inprocess_grid import InProcessGrid

from fedpart import Federation
from fedpart.flower.strategy import FedPart

CAPPED = {"capped": True, "evaluation": "clients", "width": 400}


def test_the_numbers_and_the_bytes_are_those_of_the_local_engine():
    federation, reports = Federation(build(CAPPED).protocol), []
    grid = InProcessGrid(app, CLIENTS, CAPPED)
    FedPart(federation, on_round=reports.append, evaluate_every=3).run(grid, 3)
    here, others = local(3, **CAPPED)
    assert_equal_runs((federation, reports), (here, others))
    scored = reports[-1].client_nll_caps
    assert scored[0] != scored[2] and scored[1] is None
    assert sum(report.upload_bytes for report in reports) == grid.bytes_up
    told = [report.upload_bytes for report in others]
    assert told == pytest.approx([report.upload_bytes for report in reports], rel=2e-3)
    protocol = federation.protocol
    alone = [c for c in range(CLIENTS) if protocol.upload_sizes(c, protocol.plan(c, 1))[0] == {}]
    assert alone and any(client in report.cohort for report in reports for client in alone)
