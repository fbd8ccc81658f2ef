"""A federation on three hosts: the SuperLink and the ServerApp on one, a client on each of the others."""

from contextlib import suppress

import pytest
import yaml
from hosts import hosts, until
from killed import EXPERIMENT

from simulations.config.load import ExperimentConfig
from simulations.deployment.keys import CA, make_keys
from simulations.deployment.processes import executor, superlink, supernode
from simulations.deployment.up import ENVIRONMENT
from simulations.folders.run_directory import STATE, read_metrics
from simulations.running.run import run_experiment

pytestmark = [pytest.mark.slow, pytest.mark.deployment]
CONFIG = EXPERIMENT | {"rounds": 6, "on_client_error": "skip", "round_timeout": 60.0, "evaluate_every": 100}
LINK, NODE = 8000, 9094


class Federation:
    """Its processes, each with keys of its own, in folders that all hosts see."""

    def __init__(self, folder, server):
        self.folder, self.server, self.address = folder, server, f"{server.address}:{LINK}"
        self.keys = folder / "keys"
        make_keys(self.keys, 2, [server.address])
        link = superlink(self.keys / "superlink", LINK, folder / "state.db")
        self.begin(server, "superlink", [server.address if word == "127.0.0.1" else word for word in link])
        until(self.listens, 120, "the SuperLink listens")
        self.operate("register")
        self.begin(server, "serverapp", executor(self.address, self.keys / "serverapp"))

    def begin(self, host, name, command):
        environment = ENVIRONMENT | {"FLWR_HOME": str(self.folder / "homes" / name)}
        host.begin(self.folder / f"{name}.log", *command, **environment)

    def operate(self, command, *arguments):
        """An operator's command, on the server's host."""
        where = ("--link", self.address, "--keys", self.keys / "operator")
        return self.server.fedpart(command, *where, *arguments)

    def listens(self):
        health = ("python", "-m", "simulations.deployment.health", self.address, self.keys / "superlink" / CA)
        with suppress(AssertionError):
            return self.server.run(*health) == ""

    def join(self, host, client):
        keys = self.keys / f"supernode-{client}"
        self.begin(host, keys.name, supernode(self.address, keys, keys / CA, NODE, client, 2))
        app = executor(f"127.0.0.1:{NODE}", self.keys / f"clientapp-{client}")
        self.begin(host, f"clientapp-{client}", app)

    def online(self):
        said = self.operate("status")
        return all(f"client-{client}: online" in said for client in range(2))

    def submit(self, out):
        """Start a run, and wait for its first round."""
        file = self.folder / "config.yaml"
        file.write_text(yaml.safe_dump(CONFIG))
        self.operate("submit", file, "--out", out)
        until(lambda: done(out) >= 1, 300, "a round")


def done(out):
    return len(read_metrics(out)) if out.exists() else 0


def test_a_link_that_fails_changes_no_bit_and_a_host_that_is_replaced_costs_a_round(tmp_path):
    """Over TLS between hosts; the second client is out of reach in mid-round, and comes back."""
    run_experiment(ExperimentConfig.from_dict(CONFIG), tmp_path / "alone")
    first, second = tmp_path / "first", tmp_path / "second"
    with hosts(4) as computers:
        made = Federation(tmp_path, computers[0])
        for client, host in enumerate(computers[1:3]):
            made.join(host, client)
        until(made.online, 180, "both clients are online")
        made.submit(first)
        computers[2].run("ip", "link", "set", "eth0", "down")
        during = done(first)
        with suppress(AssertionError):
            until(lambda: done(first) > during + 1, 3, "it waits for the client")
        computers[2].run("ip", "link", "set", "eth0", "up")
        made.operate("results")
        made.submit(second)
        computers[2].vanish()
        made.join(computers[3], 1)
        made.operate("results")
    assert not any(line["skipped"] for line in read_metrics(first))
    assert (first / STATE).read_bytes() == (tmp_path / "alone" / STATE).read_bytes()
    lines = read_metrics(second)
    missed = [line["round"] for line in lines if line["skipped"]]
    assert len(lines) == CONFIG["rounds"] and len(missed) <= 1
    assert {skip["client"] for line in lines for skip in line["skipped"]} <= {1}
