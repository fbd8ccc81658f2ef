"""A task's token is on no command line."""

import os
import subprocess
import sys
import time

import psutil
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, SubprocessExecutor, subprocess_executor

from fedpart.flower.workarounds.workers import hide_from_commands

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
