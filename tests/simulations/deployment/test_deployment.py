"""A federation of real processes on this machine: how it is started, stopped and resumed, and its keys."""

import shutil
import signal
import subprocess
import sys

import pytest
import torch
from command_line import begun, fedpart
from cryptography import x509
from flwr.app import Context, RecordDict
from inprocess_grid import InProcessGrid
from killed import EXPERIMENT
from places import ROOT
from safetensors.torch import load_file

import simulations.running.server_app
from simulations.config.load import ConfigError, ExperimentConfig
from simulations.deployment.keys import CA, make_keys
from simulations.flower.config import deployed_run_config
from simulations.folders.run_directory import STATE, RunDirectory
from simulations.running.run import run_experiment

CONFIG = {**EXPERIMENT, "rounds": 3, "evaluate_every": 1}
PATIENCE = 600  # seconds, for what takes a few where nothing else runs


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


def test_keys_are_signed_by_the_federations_own_authority_or_not_at_all(tmp_path):
    keys = tmp_path / "keys"
    make_keys(keys, 1)
    own = (keys / "ca" / "ca.key").rename(tmp_path / "offline.key")
    before = {file: file.read_bytes() for file in keys.rglob("*") if file.is_file()}
    make_keys(keys, 1)  # nothing is to be signed
    with pytest.raises(OSError, match=r"without its key; put .*ca\.key back"):
        make_keys(keys, 2)
    (keys / "superlink" / "server.crt").unlink()
    make_keys(tmp_path / "other", 1)
    shutil.copy(tmp_path / "other" / "ca" / "ca.key", keys / "ca")
    with pytest.raises(OSError, match=r"ca\.key is not the key of .*ca\.crt"):
        make_keys(keys, 1)
    shutil.copy(own, keys / "ca" / "ca.key")
    make_keys(keys, 1, ["m\N{LATIN SMALL LETTER U WITH DIAERESIS}nchen.de"])
    after = {file: file.read_bytes() for file in before}
    assert [file.name for file in before if after[file] != before[file]] == ["server.crt"]
    authority = x509.load_pem_x509_certificate((keys / "superlink" / CA).read_bytes())
    made = x509.load_pem_x509_certificate((keys / "superlink" / "server.crt").read_bytes())
    made.verify_directly_issued_by(authority)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "xn--mnchen-3ya.de" in names.get_values_for_type(x509.DNSName)


@pytest.mark.parametrize("host", ["bad host", "a,b", "https://a.org", "a.org:8000", "", "a..b"])
def test_a_host_is_a_name_or_an_address(tmp_path, host):
    with pytest.raises(OSError, match="is no name of a host"):
        make_keys(tmp_path / "keys", 1, [host])


def test_an_empty_key_is_one_sentence(tmp_path):
    make_keys(tmp_path / "keys", 1)
    for file in ("supernode-0/node.key", "ca/ca.key", "superlink/server.key"):
        before = (tmp_path / "keys" / file).read_bytes()
        (tmp_path / "keys" / file).write_bytes(b"")
        (tmp_path / "keys" / "superlink" / "server.crt").unlink(missing_ok=True)
        with pytest.raises(OSError, match=rf"{file} holds no private key; put it back"):
            make_keys(tmp_path / "keys", 1)
        (tmp_path / "keys" / file).write_bytes(before)


def test_a_certificate_is_of_its_key_its_authority_and_its_hosts(tmp_path):
    keys, link = tmp_path / "keys", tmp_path / "keys" / "superlink"
    for folder in (keys, tmp_path / "other"):
        make_keys(folder, 1, ["a.org"])
    before = (link / "server.crt").read_bytes()
    with pytest.raises(OSError, match=r"server\.crt is not of the names .*b\.org; remove it"):
        make_keys(keys, 1, ["b.org"])
    for wrong in (tmp_path / "other" / "superlink", keys / "supernode-0"):
        shutil.copy(wrong / "server.crt", link)
        with pytest.raises(OSError, match=r"server\.crt is not of its key, or of this authority; remove it"):
            make_keys(keys, 1)
    (link / "server.crt").write_bytes(b"")
    with pytest.raises(OSError, match="holds no certificate"):
        make_keys(keys, 1)
    (link / "server.crt").write_bytes(before)
    make_keys(keys, 1, ["a.org"])
    with pytest.raises(OSError, match="no name of a host"):
        make_keys(tmp_path / "new", 1, ["bad host"])
    assert not (tmp_path / "new").exists()


def test_processes_that_make_keys_at_once_make_one_set(tmp_path, monkeypatch):
    program = (
        f"from pathlib import Path; from simulations.deployment.keys import make_keys; "
        f"make_keys(Path({str(tmp_path / 'keys')!r}), 3)"
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    several = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(4)]
    assert [process.wait() for process in several] == [0] * 4
    make_keys(tmp_path / "keys", 3)
    assert not [file for file in (tmp_path / "keys").rglob(".*") if file.is_file()], "no draft is left"


def test_keys_are_made_where_files_have_no_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr("os.link", refuse)
    make_keys(tmp_path / "keys", 1)
    make_keys(tmp_path / "keys", 1)


def test_a_disk_that_fills_up_leaves_no_part_of_a_secret(tmp_path):
    make_keys(tmp_path / "keys", 1)
    secret = tmp_path / "keys" / "operator" / "operator.token"
    secret.unlink()
    program = (
        "import resource, signal, sys\nfrom pathlib import Path\n"
        "from simulations.deployment.keys import _once\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))\n"
        "_once(Path(sys.argv[1]), b'x' * 32)"
    )
    done = subprocess.run([sys.executable, "-c", program, secret], cwd=ROOT, capture_output=True, text=True)
    assert "OSError" in done.stderr and not secret.exists()
