"""Clients with networks of different sizes over Flower: the local engine's numbers, each its own bytes."""

import pytest
from flower_experiment import CLIENTS, app, assert_equal_runs, build, local
from inprocess_grid import InProcessGrid

from fedpart import Federation
from fedpart.flower.strategy import FedPart

SIZES = {"sizes": True, "evaluation": "clients", "width": 400}


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
    federation, reports = Federation(build(config).protocol), []
    FedPart(federation, on_round=reports.append, evaluate_every=2).run(InProcessGrid(app, CLIENTS, config), 3)
    other = local(3, **config)
    for report, predicted in zip(reports, other[1], strict=True):
        for key in ("download_bytes", "upload_bytes"):
            assert getattr(report, key) == pytest.approx(getattr(predicted, key), abs=5 * 150)  # headers
    for report in (*reports, *other[1]):  # at other rounds
        report.client_accuracy = report.client_nll = None
        for key in ("accuracy", "nll"):
            for kind in ("worst_decile", "chunks", "caps"):
                setattr(report, f"client_{key}_{kind}", None)
    assert_equal_runs((federation, reports), other)
