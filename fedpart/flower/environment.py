"""Makes Flower and Ray quiet and offline; import this before them, for they read the environment then.

No proxy is asked for a process of this machine, here and in every process that is started from here.
"""

import os

for _name, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run`, Ray would rebuild the environment for each worker
    "RAY_free_objects_batch_size": "1",  # what was read leaves the object store at once, not in time
    "RAY_task_events_report_interval_ms": "0",  # no list of past tasks, whose memory grows with the rounds
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a FutureWarning
}.items():
    os.environ.setdefault(_name, _value)

_direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
if "*" not in _direct.split(","):
    _hosts = [host for host in _direct.split(",") if host]
    _hosts += [host for host in ("127.0.0.1", "localhost", "::1") if host not in _hosts]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(_hosts)
