"""A SuperNode whose clock is off: both sides say so, and it fails."""

import subprocess
import sys
import time

import pytest
from places import ROOT

from simulations.deployment.keys import CA
from simulations.deployment.processes import free_ports, supernode
from simulations.deployment.up import Deployment

SHIFTED = """
import datetime, sys
from flwr.supernode import node_auth_http_interceptor as signing
now = signing.now
signing.now = lambda: now() - datetime.timedelta(minutes=10)
from fedpart.flower.workarounds.supernode import main
main()
"""


@pytest.mark.deployment
def test_a_supernode_whose_clock_is_ten_minutes_off_fails_and_both_sides_say_why(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with Deployment(1, tmp_path, tmp_path / "logs") as federation:
        federation.processes.finish("supernode-0")
        while not federation.processes.ended("supernode-0"):
            time.sleep(0.1)
        authority, keys = federation.keys / "superlink" / CA, federation.keys / "supernode-0"
        command = supernode(federation.address, keys, authority, free_ports(1)[0], 0, 1)
        options = command[command.index("--superlink") :]
        node = subprocess.run([sys.executable, "-c", SHIFTED, *options], capture_output=True, text=True)
        superlink = federation.processes.log("superlink", 100)
    said = node.stdout + node.stderr
    assert node.returncode == 1 and "gracefully" not in said
    for text in (said, superlink):
        assert "The SuperNode's clock is 600 s behind the SuperLink's" in text and "NTP" in text
