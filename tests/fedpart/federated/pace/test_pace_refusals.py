"""Devices and turns that are none: distributions, files of devices, and settings that do not go together."""

from functools import partial

import refusals
from problems import settings

from fedpart import ClipSettings, DeviceSettings, PrivacySettings
from fedpart.federated.pace.devices import Fleet

TRACE = "client,speed,upload,download,available\n1,50,2e3,4e3,0.25\n0,100,1e3,8e3,\n7,1,1,1,1\n"
DEVICES = [
    ({"speed": 0.0}, "devices.speed is a number above 0, or a distribution, got 0.0"),
    ({"upload": {"zipf": (1.0,)}}, "Unknown distribution 'zipf'"),
    ({"upload": {"pareto": (1.0,)}}, r"takes positive numbers \[fastest, alpha\], got \[1.0\]"),
    ({"upload": {"pareto": (1.0, -2.0)}}, r"got \[1.0, -2.0\]"),
    ({"download": {}}, "devices.download has one distribution, got 0"),
    ({"available": 0.0}, "available is above 0 and at most 1, got 0.0"),
]
TRACES = [
    ("client,speed,upload\n0,1,1\n", "no column 'download'"),
    (TRACE.replace("50", "fast"), "line 2: could not convert"),
    (TRACE.replace("50", "-1"), "line 2 has a number out of range"),
    (TRACE.replace("50", "nan"), "line 2 has a number out of range"),
    (TRACE.replace("0.25", "1.5"), "line 2 has a number out of range"),
    (TRACE.replace("7,", "0,"), "line 4 is of client 0 again"),
    (TRACE.replace("1,50", "2,50"), "no line for client 1, one of 1; give every client"),
    ("", "no column 'client'"),
]


def test_devices(tmp_path):
    rows = [(f"{devices}", partial(DeviceSettings, **devices), f"{says}.*\\.$") for devices, says in DEVICES]
    for number, (text, says) in enumerate(TRACES):
        path = tmp_path / f"{number}.csv"
        path.write_text(text)
        fleet = partial(Fleet, str(path), 2, 0)
        rows.append((repr(text), fleet, f"^The trace .*{says}.*\\.$"))
    refusals.check((*row, ValueError, says) for *row, says in rows)


def test_turns():
    private = {"privacy": PrivacySettings(1.0, randomness="seed"), "weighting": "uniform"}
    private["clip"] = ClipSettings(1.0, 1.0)
    buffered = {"buffer": 4}
    trimmed = {"defence": "trim", "weighting": "uniform", **buffered}
    rows = [
        ({"deadline": 2.0}, "deadline leaves clients out by their simulated time.*set devices"),
        ({"overselect": 1.5}, "overselect leaves clients out.*set devices"),
        ({"devices": 3}, "devices is one of DeviceSettings"),
        ({"concurrency": 3}, "concurrency is for steps with the first answers; set buffer, or leave"),
        ({"staleness": "sqrt"}, "staleness is for steps with the first answers"),
        ({"devices": DeviceSettings(), **private}, "Privacy keeps the cohorts secret.*devices would"),
        ({**buffered, **private}, "Privacy .* buffer would tell"),
        (trimmed, "A defence compares .* leave defence or buffer out"),
        ({"deadline": 2.0, **buffered}, "deadline is for rounds that wait"),
        ({"buffer": 11}, r"buffer is between 1 and .* \(10\), got 11"),
        ({"concurrency": 11, **buffered}, r"concurrency is between 1 and .* \(10\), got 11"),
        ({"buffer": 1, "min_replies": 2}, "a step takes 1 answers; set buffer"),
    ]
    refusals.check_keywords(partial(settings, 10, cohort=4), ((row, f"{says}.*\\.$") for row, says in rows))
