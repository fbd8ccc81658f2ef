"""Prometheus: an address at which a run shows its numbers while it is under way."""

from typing import Any

from fedpart.checks import require
from fedpart.extras import need
from fedpart.loggers.base import LOGGERS, Line, Logger, RunInfo
from fedpart.loggers.lines import scalars, step_of

TOTALS = {  # by field of a line: of what they are the sum over all rounds
    "seconds": "seconds",
    "replies": "replies",
    "upload_bytes": "bytes_uploaded",
    "download_bytes": "bytes_downloaded",
}


@LOGGERS.register("prometheus")
class Prometheus(Logger):
    """Answers ``http://host:port/metrics`` in Prometheus' format, for as long as the run is under way.

    Totals begin with the run's first round, also where it is resumed. Who reaches the port may read them.

    Args:
        port: at which it listens; 0: one that is free, which ``address`` then says.
        host: of this machine, at which it listens; ``0.0.0.0``: at all of them.

    Raises:
        ImportError: prometheus_client is not installed.
        ValueError: the port is none.
    """

    def __init__(self, port: int = 9464, host: str = "127.0.0.1") -> None:
        is_port = type(port) is int and 0 <= port <= 65535
        require(is_port, f"port of the logger prometheus is a number from 0 to 65535, not {port!r}.")
        self._client = need("prometheus_client", "The logger prometheus", "prometheus")
        self._host, self._port = host, port
        self._server: Any = None
        self._made: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """Where it listens, after :meth:`start`."""
        host, port = self._server.server_address[:2]
        return f"http://{host}:{port}/metrics"

    def start(self, run: RunInfo) -> None:
        self._registry = self._client.CollectorRegistry()
        self._run = run.name
        for field in TOTALS.values():
            self._metric("Counter", f"fedpart_{field}", f"All {field} of the run.")
        self._metric("Counter", "fedpart_rounds", "Rounds, or iterations, that are done.")
        for line in run.lines:
            self.log(line)
        made = self._client.start_http_server(self._port, self._host, registry=self._registry)
        self._server = made[0]

    def log(self, line: Line) -> None:
        self._metric("Counter", "fedpart_rounds").inc()
        self._metric("Gauge", "fedpart_round", "The last round, or iteration.").set(step_of(line))
        for field, total in TOTALS.items():
            self._metric("Counter", f"fedpart_{total}").inc(line.get(field) or 0)
        for name, value in scalars(line).items():
            kind, _, part = name.partition("/")
            if kind == "refused":
                self._metric("Counter", "fedpart_refused", "Updates refused.", reason=part).inc(value)
            elif kind == "psi":
                self._metric("Gauge", "fedpart_psi", "A hyperparameter.", name=part).set(value)
            else:
                self._metric("Gauge", "fedpart_last", "A number of the last round.", name=name).set(value)

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _metric(self, kind: str, name: str, says: str = "", /, **labels: str) -> Any:
        """The metric of that name, made when it is first asked for; of the run, under these labels."""
        if name not in self._made:
            make: Any = getattr(self._client, kind)
            self._made[name] = make(name, says, ["run", *labels], registry=self._registry)
        return self._made[name].labels(run=self._run, **labels)
