"""For all tests: one thread, as a worker has, so that small tensors are fast and bits repeat.

Tests run in several processes at a time; some files stay together in one of them, which begins with them.
"""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for what tests start, too

import torch

torch.set_num_threads(1)

TOGETHER = {  # by what they share: a Ray cluster and the cores for it, or kernels that are compiled once
    "test_ray.py": "ray",
    "test_ray_cluster.py": "ray",
    "test_own_files.py": "ray",
    "test_flwr_run.py": "ray",
    "test_deployment.py": "ray",
    "test_pooled_convolution.py": "kernels",
    "test_pooling.py": "kernels",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(TOGETHER[item.path.name]))
    items.sort(key=lambda item: item.path.name not in TOGETHER)
