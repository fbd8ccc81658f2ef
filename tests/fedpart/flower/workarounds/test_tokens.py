"""A task's token is on no command line and, as it is, in no database."""

import os
import subprocess
import sys
import time

import psutil
from flwr.supercore.constant import TaskType
from flwr.supercore.corestate import sql_corestate
from flwr.supercore.superexec.executor import ExecutionSpec, SubprocessExecutor, subprocess_executor
from superlink_state import SuperLink

from fedpart.flower.workarounds.outside import claim_identity
from fedpart.flower.workarounds.tokens import hide_from_commands, hide_from_database

PATIENCE, NOBODY = 60.0, 65534
SERVERAPP = f"""#!{sys.executable}
import sys, time
from pathlib import Path

at = sys.argv.index("--token-file")
folder = Path(sys.argv[0]).parent
(folder / "read").write_text(Path(sys.argv[at + 1]).read_text())
(folder / "read").rename(folder / "token")
while not (folder / "end").exists():
    time.sleep(0.01)
"""


def test_another_user_reads_no_token(tmp_path, monkeypatch):
    app = tmp_path / TaskType.SERVER_APP
    app.write_text(SERVERAPP)
    app.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess)
    hide_from_commands()
    spec = ExecutionSpec(TaskType.SERVER_APP, "127.0.0.1:1", "a token", True, None, False, None, False, 1)
    before = set(psutil.Process().children())
    SubprocessExecutor().launch(spec)
    (process,) = set(psutil.Process().children()) - before
    try:
        end = time.monotonic() + PATIENCE
        while not (tmp_path / "token").exists():
            assert time.monotonic() < end and process.is_running()
            time.sleep(0.01)
        assert (tmp_path / "token").read_text() == "a token"
        seen = everything_that_another_reads(process.pid)
        assert TaskType.SERVER_APP.encode() in seen and b"a token" not in seen
        own = "".join([*process.cmdline(), *process.environ().values()])
        assert "a token" not in own, "nor do those whom it starts inherit it"
    finally:
        (tmp_path / "end").touch()
        process.wait(PATIENCE)


def everything_that_another_reads(pid):
    """Of a process in /proc, by a user without rights, where this one can be another."""
    files = [f"/proc/{pid}/{name}" for name in ("cmdline", "environ", "status")]
    other = {"user": NOBODY} if os.geteuid() == 0 else {}
    return subprocess.run(["/bin/cat", *files], capture_output=True, check=False, **other).stdout


def test_a_database_has_digests_of_tokens(tmp_path, monkeypatch):
    state = sql_corestate.SqlCoreState
    for name in ("claim_task", "get_task_by_token"):
        monkeypatch.setattr(state, name, getattr(state, name))
    monkeypatch.setattr(sql_corestate, "secrets", sql_corestate.secrets)
    hide_from_database()
    link = SuperLink(tmp_path)
    claim_identity()
    task = link.state.create_task(TaskType.CLIENT_APP, link.run, "hash")
    token = link.state.claim_task(task)
    assert token and link.state.claim_task(task) is None
    assert link.state.get_task_by_token(token).task_id == task
    assert link.state.get_task_by_token("another") is None
    files = list(tmp_path.glob("state.db*"))
    assert files and not any(token.encode() in file.read_bytes() for file in files)
