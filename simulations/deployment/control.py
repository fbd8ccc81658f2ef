"""Control: what the operator asks of a SuperLink."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

import fedpart
from fedpart.flower.nodes import node_name
from fedpart.flower.workarounds.control import SubmittedRun, public_key, start_request, submitted
from fedpart.flower.workarounds.protocol import ApiCalls, refusal
from simulations.deployment.keys import CA, TOKEN
from simulations.errors import RunError

PATIENCE_SECONDS = 120.0  # that the SuperLink may be away
PENDING_SECONDS = 10.0  # in which an executor takes a run, or the operator is told
_APP = """\
[project]
name = "fedpart"
version = "{version}"
[tool.flwr.app]
publisher = "fedpart"
[tool.flwr.app.components]
serverapp = "simulations.running.server_app:app"
clientapp = "simulations.flower.client:app"
[tool.flwr.app.config]
experiment = ""
out = ""
resume = false
restarts = 0
"""
RESTARTS = 3  # of a run whose ServerApp dies


class Control:
    """The operator's connection to a SuperLink."""

    def __init__(self, address: str, keys: Path) -> None:
        self.address, self.keys = address, keys
        try:
            certificates, token = (keys / CA).read_bytes(), (keys / TOKEN).read_text().strip()
        except OSError as error:
            fault = f"The operator's keys cannot be read ({error.strerror}: {error.filename})"
            raise RunError(f"{fault}; make them with fedpart keys, and name their folder.") from error
        self._call = ApiCalls("control", address, certificates, lambda: {"Authorization": f"Bearer {token}"})

    def register(self) -> tuple[int, int]:
        """Register the folder's public keys and no others: how many there are, were before, and are gone."""
        files = {int(file.stem.partition("-")[2]): file for file in self.keys.glob("node-*.pub")}
        keys = {public_key(file.read_bytes()): client for client, file in sorted(files.items())}
        with self._errors():
            known = {bytes(node.public_key): node.node_id for node in self._nodes()}
            gone = known.keys() - keys.keys()
            for public in gone:
                self._call("UnregisterNode", node_id=known[public])
            for public, client in keys.items():
                if public not in known:
                    self._call("RegisterNode", public_key=public, name=node_name(client))
        return len(keys), len(gone)

    def nodes(self) -> dict[str, str]:
        """Status (``registered``, ``online``, ``offline``) of every SuperNode, by its name."""
        with self._errors():
            return {node.name: node.status for node in self._nodes()}

    def _nodes(self) -> list[Any]:
        """The SuperNodes that are registered."""
        return [node for node in self._call("ListNodes").nodes_info if node.status != "unregistered"]

    def start(self, run_config: Mapping[str, Any]) -> int:
        """Start a run of the app that is installed where an executor runs; the run's id."""
        with self._errors():
            app = _APP.format(version=fedpart.__version__)
            return int(self._call("StartRun", start_request(app, run_config)).run_id)

    def again(self, run: SubmittedRun) -> int | None:
        """Start a run again whose ServerApp has died: the id of what goes on in its place, or None."""
        if not run.died:
            return None
        latest, times = next(one for one in self.runs() if one.out == run.out), run.config.get("restarts", 0)
        if latest.id != run.id:
            return latest.id
        return self.start({**run.config, "resume": True, "restarts": times + 1}) if times < RESTARTS else None

    def runs(self, id: int | None = None) -> list[SubmittedRun]:
        """All runs, the latest first; or the one of that id."""
        with self._errors():
            known = self._call("ListRuns", run_id=id).run_dict.values()
        return [submitted(run) for run in sorted(known, key=lambda run: run.pending_at, reverse=True)]

    def run(self, id: int) -> SubmittedRun:
        (run,) = self.runs(id)
        return run

    def follow(self, id: int, show: Callable[[str], None], hint: bool = True) -> SubmittedRun:
        """Hand ``show`` the run's log until the run has ended; ``hint`` is said if it does not begin."""
        start = contact = time.monotonic()
        seen, told = 0.0, False
        while True:
            try:
                run = self.run(id)
                contact = time.monotonic()
                if run.status in ("pending", "starting"):  # its log would be waited for without a word
                    late = hint and contact - start >= PENDING_SECONDS
                    if late and not told and run.status == "pending":
                        show(f"Run {id} is pending: no executor has taken it yet; see that one is up.\n")
                        told = True
                else:
                    with self._errors():
                        for part in self._call.stream("StreamLogs", run_id=id, after_timestamp=seen):
                            seen, contact = max(seen, part.latest_timestamp), time.monotonic()
                            show(part.log_output)
                    run = self.run(id)
                    if run.finished:
                        return run
            except Unreachable:
                if time.monotonic() - contact > PATIENCE_SECONDS:
                    raise
            time.sleep(1)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPStatusError as error:
            raise RunError(f"The SuperLink at {self.address} refuses: {refusal(error.response)}.") from error
        except httpx.HTTPError as error:
            fault = f"The SuperLink at {self.address} cannot be reached ({error})"
            raise Unreachable(f"{fault}; start it, or name its address.") from error


class Unreachable(RunError):
    """The SuperLink does not answer."""
