"""The token of a task, which is all that a process needs to act as its app, where nobody else reads it.

The faults: Flower gives it on the command line, which every user of the machine can read, and keeps it in the
SuperLink's database as it is.

The tests: ``test_faults.py::test_a_token_is_on_the_command_line`` and, there,
``test_a_token_is_in_the_database``.
"""

import hashlib
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from flwr.supercore.corestate import sql_corestate
from flwr.supercore.superexec.executor import subprocess_executor


def hide_from_commands() -> None:
    """Let this process's executor give a token in a file without a name."""
    module: Any = subprocess_executor
    module.subprocess = SimpleNamespace(Popen=_start, DEVNULL=subprocess.DEVNULL)


def _start(command: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
    at = command.index("--token")
    with tempfile.TemporaryFile() as file:
        file.write(command[at + 1].encode())
        file.seek(0)
        told = ["--token-file", f"/dev/fd/{file.fileno()}"]
        return subprocess.Popen([*command[:at], *told, *command[at + 2 :]], pass_fds=[file.fileno()], **more)


def hide_from_database() -> None:
    """Let this process's SuperLink keep digests of tokens."""
    module: Any = sql_corestate
    state, made = module.SqlCoreState, threading.local()
    claim, find = state.claim_task, state.get_task_by_token

    def token_hex(size: int) -> str:
        made.token = secrets.token_hex(size)
        return digest(made.token)

    def claim_task(self: Any, task_id: int) -> str | None:
        return made.token if claim(self, task_id) else None

    def get_task_by_token(self: Any, token: str) -> Any:
        return find(self, digest(token))

    module.secrets = SimpleNamespace(token_hex=token_hex)
    state.claim_task, state.get_task_by_token = claim_task, get_task_by_token


def digest(token: str) -> str:
    """What is kept of a token; of so many random bits, SHA-256 tells nothing."""
    return hashlib.sha256(token.encode()).hexdigest()
