"""A federation of real processes on this machine: its keys, whom it refuses, and what it survives."""

import re
import signal
import subprocess
import sys
import threading

import pytest
import torch
from command_line import begun, fedpart
from flwr.app import Context, RecordDict
from inprocess_grid import InProcessGrid
from killed import EXPERIMENT, kill, survived
from places import ROOT
from safetensors.torch import load_file
from sizes import TWO

import simulations.running.server_app
from simulations.config.load import ConfigError, ExperimentConfig
from simulations.deployment.control import Control
from simulations.deployment.keys import CA, TOKEN, make_keys
from simulations.deployment.processes import free_ports, supernode
from simulations.deployment.up import Deployment, watch
from simulations.errors import RunError
from simulations.flower.config import deployed_run_config
from simulations.folders.run_directory import STATE, RunDirectory
from simulations.running.run import run_experiment

CONFIG = {**EXPERIMENT, "rounds": 3, "evaluate_every": 1}
SIZED = {  # a large and a small device, whose messages lose most of what they say, and say it later
    **CONFIG,
    "architectures": TWO,
    "upload": "topk",
    "upload_options": {"share": 0.1, "values": "int8"},
    "error_feedback": True,
}
PATIENCE = 600  # seconds, for what takes a few where nothing else runs


class Reached(Exception):
    pass


def started(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def commands_with(path):
    """Command lines of all processes that name it."""
    shown = subprocess.run(["ps", "-axww", "-o", "command="], capture_output=True, text=True, check=True)
    return [line for line in shown.stdout.splitlines() if str(path) in line]


def assert_same_weights(folder, other):
    one, two = load_file(folder / STATE), load_file(other / STATE)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.deployment
@pytest.mark.slow
def test_a_federation_refuses_strangers_and_survives_kills(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config, out = ExperimentConfig.from_dict(SIZED), tmp_path / "out"
    missing = ExperimentConfig.from_dict({**CONFIG, "data": "mnist", "data_dir": str(tmp_path / "nowhere")})
    make_keys(tmp_path / "elsewhere", 1)

    with Deployment(2, tmp_path, tmp_path / "logs") as federation:
        control, keys, link = federation.control, federation.keys, federation.address
        said = []
        kills = threading.Semaphore(1)

        def until_round_1(text):
            said.append(text)
            if "round 1/3:" in text:
                raise Reached

        authority, ports = keys / "superlink" / CA, free_ports(3)
        # a key that nobody has registered, and a federation's node that trusts another authority
        stranger = supernode(link, tmp_path / "elsewhere" / "supernode-0", authority, ports[0], 0, 2)
        other = tmp_path / "elsewhere" / "superlink" / CA
        deceived = supernode(link, keys / "supernode-0", other, ports[1], 0, 2)
        refused = [started(command) for command in (stranger, [*deceived, "--max-retries", "1"])]
        # a third key, registered as client 2, whose node says that it is client 1
        make_keys(keys, 3)
        assert control.register() == (3, 0)
        liar = supernode(link, keys / "supernode-2", authority, ports[2], 1, 2)
        federation.processes.start("supernode-2", liar)
        federation.start_executor("clientapp-2", f"127.0.0.1:{ports[2]}")

        first = control.start(deployed_run_config(config, out, False))
        with pytest.raises(Reached):
            control.follow(first, until_round_1)
        assert kill(federation, "ServerApp")

        # somebody who knows the authority, but not the operator's token
        (keys / "guest").mkdir()
        (keys / "guest" / CA).write_bytes(authority.read_bytes())
        (keys / "guest" / TOKEN).write_text("guessed")
        with pytest.raises(RunError, match="refuses"):
            Control(link, keys / "guest").start({})
        federation.wait_for(["client-2"])
        fails = control.start(deployed_run_config(missing, tmp_path / "failed", False))
        second = control.start(deployed_run_config(config, out, True))

        resumed = []

        def kill_the_superlink_after_a_round(text):
            resumed.append(text)
            if re.search(r"round \d/3:", text) and kills.acquire(blocking=False):
                kill(federation, "SuperLink")

        run = watch(federation, second, kill_the_superlink_after_a_round)
        if "heartbeat" in run.details:  # a busy machine has taken a minute to start the SuperLink again
            run = watch(federation, control.start(deployed_run_config(config, out, True)), resumed.append)
        assert run.status == "finished:completed", "".join(said + resumed)
        assert "round 1/3:" not in "".join(resumed)  # the killed run's checkpoint has been read
        assert "superlink has ended; it is started again.\n" in resumed
        assert watch(federation, first, lambda text: None).status == "finished:failed"
        arguments = ["--link", link, "--keys", str(keys / "operator"), "--run", str(fails)]
        shown = fedpart("results", *arguments)
        assert shown.exit_code == 1
        assert "finished and failed" in shown.output and "nowhere" in shown.output
        (keys / "operator" / "node-2.pub").unlink()
        assert control.register() == (2, 1)
        assert control.nodes().keys() == {"client-0", "client-1"}
        assert control.register() == (2, 0)
        unregistered, distrusting = (process.communicate(timeout=PATIENCE)[0] for process in refused)

    assert all(process.returncode for process in refused)
    assert "Failed to activate SuperNode" in unregistered
    assert "CERTIFICATE_VERIFY_FAILED" in distrusting
    assert "It says that it is client 1, but its key is registered as 'client-2'" in "".join(said + resumed)
    for client in range(2):  # what its messages have lost, for the next one
        kept = tmp_path / "homes" / f"clientapp-{client}" / "fedpart"
        assert [*kept.glob(f"residuals/*/{client}/*.pt")]
    run_experiment(config, tmp_path / "local")
    assert_same_weights(out, tmp_path / "local")


@pytest.mark.deployment
@pytest.mark.slow
def test_up_finishes_its_round_when_it_is_asked_to_stop(tmp_path):
    """SIGTERM ends a run in order, nothing stays behind, and the run goes on on any engine.

    Clients try settings of their own, which follow from theta.
    """
    file, out = tmp_path / "one.yaml", tmp_path / "out"
    keys = {**CONFIG, "clients": 1, "cohort": 1, "method": "fedex", "chunks": [1.0], "rounds": 8}
    keys["method_options"] = {"fedex": {"arms": 9, "eps": 0.3}}
    clip = keys.pop("clip")  # which a deployed run has by itself
    file.write_text("\n".join(f"{key}: {value}" for key, value in keys.items()))
    private = tmp_path / "private"  # of the federation: keys and state, which its processes are given
    private.mkdir()
    process = begun("up", file, "--out", out, env={"TMPDIR": str(private)}, stderr=subprocess.PIPE)
    running = []
    for line in process.stdout:
        if line.startswith("round 1/8:"):
            running = commands_with(private)
            process.send_signal(signal.SIGTERM)
            break
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert f"fedpart up --resume {out}" in " ".join(errors.split())
    rounds = len((out / "metrics.jsonl").read_text().splitlines())
    assert 1 <= rounds < 8
    for program in ("superlink", "executor", "supernode"):
        assert any(f"workarounds.{program}" in command for command in running)
    assert commands_with(private) == []
    assert list(private.glob("*fedpart-*")) == [] and out.stat().st_mode & 0o777 == 0o700
    resumed = fedpart("run", "--resume", str(out), "--engine", "local")
    assert resumed.exit_code == 0, resumed.output
    local = {**keys, "on_client_error": "skip", "clip": clip}
    run_experiment(ExperimentConfig.from_dict(local), tmp_path / "local")
    assert_same_weights(out, tmp_path / "local")


@pytest.mark.parametrize(
    ("rounds", "fits"),
    [
        (["both", "one", "skipped", "both"], True),
        (["both", "both", "both", "both"], False),  # nobody was killed, or nobody noticed
        (["both", "skipped", "one", "one"], False),  # it has not come back
        (["one", "both", "both"], False),  # a round is missing
        (["both", "slow", "one", "both"], False),
        (["both", "chunk", "one", "both"], False),  # back with another chunk
    ],
)
def test_what_the_crash_benchmark_takes_for_survival(rounds, fits):
    line = {"cohort": [0, 1], "skipped": [], "refused": {}, "seconds": 12.0}
    lines = {
        "both": line,
        "one": {**line, "cohort": [1]},
        "skipped": {**line, "skipped": [{"client": 0}], "refused": {"client_error": 1}},
        "slow": {**line, "seconds": 400.0},
        "chunk": {**line, "refused": {"chunk": 1}},
    }
    assert survived([lines[round] for round in rounds], [0], 4)[0] == fits


@pytest.mark.parametrize("command", ["up", "submit"])
def test_resuming_with_another_configuration_names_the_difference(tmp_path, command):
    """A ServerApp too: a run config may come without the checks of the command line."""
    RunDirectory.create(tmp_path, ExperimentConfig.from_dict({**CONFIG, "engine": "flower"})).close()
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    where = ["--link", "127.0.0.1:1", "--keys", str(tmp_path)] if command == "submit" else []
    for setting, says in (("seed=7", "has seed = 0, not 7"), ("rounds=2", r"has rounds = 3, not 2")):
        shown = fedpart(command, *where, "--resume", str(tmp_path), "--set", setting)
        assert shown.exit_code == 2 and says in " ".join(shown.output.split())
    other = ExperimentConfig.from_dict({**CONFIG, "chunks": [0.7, 0.3]})
    context = Context(0, 0, {}, RecordDict(), deployed_run_config(other, tmp_path, True))
    with pytest.raises(ConfigError, match=r"has chunks = .*0\.5.*, not .*0\.7.*resume it as it is"):
        simulations.running.server_app.main(InProcessGrid(None, 0), context)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_keys_are_private_stay_and_belong_to_one_federation(tmp_path):
    make_keys(tmp_path / "keys", 1)
    before = {file: file.read_bytes() for file in (tmp_path / "keys").rglob("*") if file.is_file()}
    assert all(file.stat().st_mode & 0o077 == 0 for file in [*before, *(file.parent for file in before)])
    make_keys(tmp_path / "keys", 3)
    assert {file: file.read_bytes() for file in before} == before
    assert (tmp_path / "keys" / "supernode-2" / "node.key").exists()
    (tmp_path / "keys" / "operator" / CA).write_bytes(b"another")
    with pytest.raises(FileExistsError, match="belongs to another federation"):
        make_keys(tmp_path / "keys", 3)


@pytest.mark.slow
def test_a_client_process_imports_nothing_that_it_does_not_need(tmp_path):
    """A worker is forked from what has been imported, and what it imports is imported for every run."""
    program = (
        "import sys, torch, fedpart.flower.client as client, simulations.flower.config as flower\n"
        "from simulations.config.load import ExperimentConfig\n"
        f"config = ExperimentConfig.from_dict({CONFIG!r})\n"
        "experiment = client._Clients(flower.build_experiment(flower.run_config_of(config)), None)\n"
        "experiment.shards[0]\n"
        "heavy = {'sklearn', 'scipy', 'torch._dynamo', 'numba', 'ray', 'matplotlib'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, timeout=PATIENCE) == b"[]\n"
