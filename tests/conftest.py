"""For all tests: one thread, as a worker has, so that small tensors are fast and bits repeat.

Tests run in several processes at a time, one more than there are cores, since many wait for what they start:
each file in one of them, and those together that share what they start.
"""

import os
from pathlib import PurePath

import pytest
from xdist.scheduler import LoadScopeScheduling

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for what tests start, too

import torch

torch.set_num_threads(1)

TOGETHER = {  # by what they share: a Ray cluster, or kernels that are compiled once; deployments mostly wait
    "test_ray.py": "ray",
    "test_ray_cluster.py": "ray",
    "test_own_files.py": "ray",
    "test_flwr_run.py": "ray",
    "test_wheel.py": "ray",
    "test_deployment.py": "deployment",
    "test_workers_killed.py": "deployment",
    "test_bundle.py": "ray",
    "test_bundle.py::test_two_real_clients_whose_messages_have_no_constants": "deployment",
    "test_pooled_convolution.py": "kernels",
    "test_pooling.py": "kernels",
}


class ByFile(LoadScopeScheduling):
    """Gives a process whole files, or several.

    pytest-xdist's own groups do nothing here: 3.8 writes them to ``_nodeid``, which pytest 9.2 does not read.
    """

    def _split_scope(self, nodeid):
        file, _, test = nodeid.partition("::")
        name = PurePath(file).name
        return TOGETHER.get(f"{name}::{test}", TOGETHER.get(name, file))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log) if config.getvalue("dist") == "load" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """They begin first, for they take longest: no process shall end with them alone."""
    items.sort(key=lambda item: item.path.name not in TOGETHER)
