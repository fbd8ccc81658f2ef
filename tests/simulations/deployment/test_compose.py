"""docker-compose.yml: what every container may use and do; and a SuperNode whose clock is wrong."""

import importlib.util
import re
import subprocess
import sys

import pytest
import yaml
from places import ROOT

from simulations.deployment.keys import CA
from simulations.deployment.processes import free_ports, supernode
from simulations.deployment.up import Deployment

SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
each = pytest.mark.parametrize("name", SERVICES)


@each
def test_a_container_has_bounds_and_no_rights(name):
    service = SERVICES[name]
    assert re.search(r"\d+[gm]\}?$", service["mem_limit"]) and 0 < service["pids_limit"] <= 1024
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    mine = service.get("user") == "root"  # the operator's two, which give files their owners
    assert mine == (service.get("profiles") == ["operator"]) == ("cap_add" in service)


@each
def test_its_programs_exist(name):
    service = SERVICES[name]
    for part in ("command", "entrypoint", "healthcheck"):
        for module in re.findall(r"python -m ([\w.]+)", str(service.get(part))):
            assert importlib.util.find_spec(module) is not None, module


def test_a_client_meets_nobody_but_its_own_executor_and_the_superlink():
    sites = {name: set(service["networks"]) for name, service in SERVICES.items() if "networks" in service}
    for name, networks in sites.items():
        if name.startswith("clientapp-"):
            assert networks == {f"site-{name[-1]}"}
        if name.startswith("supernode-"):
            assert networks == {"fleet", f"site-{name[-1]}"}
    assert [name for name, networks in sites.items() if {"control", "fleet"} <= networks] == ["superlink"]


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
    federation = Deployment(1, tmp_path, tmp_path / "logs")
    with federation.processes:
        federation._start_superlink()  # alone: the SuperNode is the one below
        federation.control.register()
        authority, keys = federation.keys / "superlink" / CA, federation.keys / "supernode-0"
        command = supernode(federation.address, keys, authority, free_ports(1)[0], 0, 1)
        options = command[command.index("--superlink") :]
        node = subprocess.run([sys.executable, "-c", SHIFTED, *options], capture_output=True, text=True)
        superlink = federation.processes.log("superlink", 100)
    said = node.stdout + node.stderr
    assert node.returncode == 1 and "gracefully" not in said
    for text in (said, superlink):
        assert "The SuperNode's clock is 600 s behind the SuperLink's" in text and "NTP" in text
