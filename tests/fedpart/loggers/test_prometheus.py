"""The logger prometheus, and the dashboard that shows what it answers."""

import json
import re
import urllib.request

import pytest
import refusals
from places import ROOT

from fedpart.loggers import LOGGERS, RunInfo

pytest.importorskip("prometheus_client")
LINES = [
    {"round": 1, "seconds": 0.5, "replies": 3, "upload_bytes": 10, "download_bytes": 20, "train_loss": 2.0}
    | {"refused": {}, "cohort": [0, 1, 2], "psi": {"physical": {"affine.angle_max [deg]": 17.0}}},
    {"round": 2, "seconds": 0.25, "replies": 2, "upload_bytes": 7, "download_bytes": 20, "train_loss": 1.5}
    | {"refused": {"malformed": 1}, "psi": {"physical": {"affine.angle_max [deg]": 18.0}}},
]


def answers(logger):
    """Values by name and labels, without those of the library itself."""
    with urllib.request.urlopen(logger.address, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#") and "_created" not in line]
    return {name: float(value) for name, value in pairs}


@pytest.fixture
def begin(tmp_path):
    made = []

    def started(lines):
        made.append(LOGGERS.make("prometheus", {"port": 0}))
        made[-1].start(RunInfo(tmp_path, "runs/first", {}, lines))
        return made[-1]

    yield started
    for logger in made:
        logger.close()


def test_what_it_answers_is_the_same_for_a_run_that_is_resumed(begin):
    calm, resumed = begin([]), begin(LINES[:1])
    for line in LINES:
        calm.log(line)
    resumed.log(LINES[1])
    assert (said := answers(calm)) == answers(resumed)
    run = 'run="runs/first"'
    assert said[f"fedpart_rounds_total{{{run}}}"] == said[f"fedpart_round{{{run}}}"] == 2
    assert said[f"fedpart_seconds_total{{{run}}}"] == 0.75
    assert said[f"fedpart_replies_total{{{run}}}"] == 5
    assert said[f"fedpart_bytes_uploaded_total{{{run}}}"] == 17
    assert said[f"fedpart_bytes_downloaded_total{{{run}}}"] == 40
    assert said[f'fedpart_refused_total{{reason="malformed",{run}}}'] == 1
    assert said[f'fedpart_psi{{name="affine.angle_max [deg]",{run}}}'] == 18
    assert said[f'fedpart_last{{name="train_loss",{run}}}'] == 1.5


def test_nobody_answers_once_it_is_closed_or_at_a_port_that_is_none(begin):
    logger = begin(LINES)
    address = logger.address
    logger.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(address, timeout=10)
    make = LOGGERS.make
    refusals.check(
        (str(port), lambda port=port: make("prometheus", {"port": port}), ValueError, "from 0 to 65535")
        for port in (-1, 65536, "x", True)
    )


def test_the_dashboard_asks_for_what_there_is(begin):
    logger = begin(LINES)
    known = {name.partition("{")[0] for name in answers(logger)}
    board = json.loads((ROOT / "docs" / "guides" / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {name for text in asked for name in re.findall(r"fedpart_\w+", text)}
    assert used <= known and len(used) >= 6
