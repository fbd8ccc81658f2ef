"""docker-compose.yml: what every container may use and do."""

import importlib.util
import re

import pytest
import yaml
from places import ROOT

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
