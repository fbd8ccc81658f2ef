"""Jobs for Slurm: what a script says, and one that a real Slurm puts back into its queue.

The packages slurmctld, slurmd, slurm-client and munge (Debian) are needed, and root for two hosts.
"""

import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import held
import pytest
from command_line import fedpart, refused
from hosts import hosts, surroundings, until

from simulations.config.load import load_config
from simulations.folders.run_directory import STATE, read_metrics, read_summary
from simulations.running.run import run_experiment

NEEDED = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
CONF = """\
ClusterName=hosts
SlurmctldHost=host-1(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName=host-1 NodeAddr=10.77.0.1 CPUs=1
NodeName=host-2 NodeAddr=10.77.0.2 CPUs=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
"""


def test_a_script_says_what_was_asked(in_a_folder_of_its_own, tmp_path):
    options = ["--nodes", "4", "--gpus", "2", "--limit", "1-00:00:00", "--set", "rounds=7", "--out"]
    result = fedpart("cluster", "slurm", "quickstart", *options, tmp_path / "a b")
    assert result.exit_code == 0, result.output
    script = Path("quickstart.sbatch").read_text()
    for line in ("nodes=4", "gpus-per-node=2", "time=1-00:00:00", "signal=B:TERM@300", "requeue"):
        assert f"\n#SBATCH --{line}\n" in script
    assert f"\nout='{tmp_path}/a b'\n" in script and "rounds=7 device=cuda" in script
    subprocess.run(["bash", "-n", "quickstart.sbatch"], check=True)
    fedpart("cluster", "slurm", "quickstart")
    assert "gpus" not in Path("quickstart.sbatch").read_text()


def test_a_name_that_a_shell_would_read_otherwise(in_a_folder_of_its_own, tmp_path):
    file = tmp_path / "it's $HOME; my config.yaml"
    file.write_text("extends: quickstart.yaml\n")
    options = ("--out", tmp_path / "run", "--set", "engine=local")
    result = fedpart("cluster", "slurm", file, *options)
    assert result.exit_code == 0, result.output
    (path,) = Path().glob("*.sbatch")
    assert path.name == "it_s__HOME__my_config.sbatch" and f"sbatch {path.name}\n" in result.output
    script = path.read_text()
    assert f"#SBATCH --job-name=fedpart-{path.stem}\n" in script
    (line,) = (line for line in script.splitlines() if line.startswith("run=("))
    shown = f"{line}; printf '%s\\n' \"${{run[@]}}\""
    said = subprocess.run(["bash", "-c", shown], stdout=subprocess.PIPE, text=True, check=True)
    words = said.stdout.splitlines()
    assert words[0] == str(file) and words[-1] == "engine=ray"


def test_what_no_script_is_written_for(in_a_folder_of_its_own):
    refused(fedpart("cluster", "pbs", "quickstart"), "no cluster 'pbs'; write slurm, rayjob or kubernetes")
    refused(fedpart("cluster", "slurm"), "Name one configuration")
    for soon in ("soon", "5:00", "24"):
        refused(fedpart("cluster", "slurm", "quickstart", "--limit", soon), "give a time as 24:00:00")
    refused(fedpart("cluster", "slurm", "quickstart", "--limit", "00:05:00"), "over before the 300 seconds")
    refused(fedpart("cluster", "slurm", "quickstart", "--set", "method=scaffold"), "clients keep files")
    refused(fedpart("cluster", "kubernetes", "--set", "clients=4"), "takes no configuration")
    refused(fedpart("cluster", "slurm", "quickstart", "--set", "rounds=none"), "rounds")
    assert not list(Path().iterdir())


@contextmanager
def slurm(folder):
    """A cluster of two hosts with a core each; what runs an operator's command on it."""
    if missing := [name for name in NEEDED if shutil.which(name, path=surroundings()["PATH"]) is None]:
        pytest.skip(f"THERE IS NO SLURM HERE, so no job is tried: {', '.join(missing)} cannot be found")
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(CONF.format(folder=folder))
    subprocess.run(["mungekey", "--create", f"--keyfile={folder}/munge.key"], check=True)
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files]
    conf = {"SLURM_CONF": str(folder / "slurm.conf")}
    with hosts(2) as computers, (folder / "munge.said").open("w") as said:
        keeper = subprocess.Popen(munge, stdout=said, stderr=said)
        try:
            head = computers[0]
            head.begin(folder / "said", "slurmctld", "-D", **conf)
            for host in computers:
                host.begin(folder / "said", "slurmd", "-D", **conf)
            up = ("sinfo", "--noheader", "--states=idle", "--format=%D")
            until(lambda: head.run(*up, **conf).strip() == "2", 60, "two nodes are idle")
            yield lambda *words: head.run(*words, **conf)
        finally:
            keeper.kill()
            keeper.wait()


@pytest.mark.slow
@pytest.mark.deployment
def test_a_job_whose_time_is_over_goes_back_into_the_queue_and_on(tmp_path, monkeypatch):
    """On two nodes, by Slurm's own SIGTERM before the limit, in a round that does not end; the bytes are
    those of one process."""
    monkeypatch.chdir(tmp_path)
    rounds, run = 200, tmp_path / "run"
    file = held.configuration(tmp_path, rounds=rounds, beside=None)
    job = ("--nodes", 2, "--limit", "00:02:00", "--before", 30, "--out", run)
    assert fedpart("cluster", "slurm", file, *job).exit_code == 0
    with slurm(tmp_path) as operate:
        number = operate("sbatch", "--parsable", "held.sbatch").strip()

        def state():
            told = operate("scontrol", "show", "job", number).split()
            return dict(word.split("=", 1) for word in told if "=" in word)

        until(lambda: (run / "metrics.jsonl").exists() and read_metrics(run), 600, "a round")
        (tmp_path / "held").touch()
        until(lambda: state()["Restarts"] == "1", 300, "it is in the queue again")
        (tmp_path / "held").unlink()
        operate("scontrol", "update", f"JobId={number}", "TimeLimit=30")  # once is enough
        until(lambda: state()["JobState"] in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"), 900, "it ends")
        ended, said = state(), (tmp_path / "run.log").read_text()
    assert ended["JobState"] == "COMPLETED", said
    assert ended["Restarts"] == "1" and "Stopped after round" in said, said
    assert [line["round"] for line in read_metrics(run)] == [*range(1, rounds + 1)]
    assert read_summary(run)["workers"] == 2
    run_experiment(load_config(file, ["engine=local"]), tmp_path / "alone")
    assert (run / STATE).read_bytes() == (tmp_path / "alone" / STATE).read_bytes()
