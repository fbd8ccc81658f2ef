"""Makes Flower and Ray quiet and offline; import this before them, for they read the environment then."""

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
