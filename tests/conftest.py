"""For all tests: one thread, as a worker has, so that small tensors are fast and bits repeat.

Tests run in as many processes as there are cores: each file in one of them, and those together that share
what they start. At the end stands the CPU time of all of them and of what they have started, but for what a
fork server has forked. It fails nothing: machines differ by a third, and one is not always alone.
"""

import os
from collections import Counter, defaultdict
from pathlib import PurePath

import pytest
from xdist.scheduler import LoadScopeScheduling

# Before torch, which the first of these processes does without, is imported; for what tests start, too.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process that they start compiles torch anew

# By what they share: a Ray cluster, or compiled kernels; deployments mostly wait. The longest come first.
TOGETHER = {
    "test_ray.py": "ray",
    "test_versions.py::test_pip_keeps_the_oldest_torch_and_the_oldest_of_all_pass_tests": "oldest",
    "test_versions.py": "extras",
    "test_ray_cluster.py": "ray",
    "test_own_files.py": "ray",
    "test_wheel.py": "ray",
    "test_deployment.py": "deployment",
    "test_workers_killed.py": "deployment",
    "test_bundle.py": "ray",
    "test_workers.py::test_low_precision_with_convolutions_that_are_pooled": "kernels",
    "test_pooled_convolution.py": "kernels",
    "test_pooling.py": "kernels",
    "test_shipped_configs.py": "kernels",
    "test_readme_card.py": "the first command",
}


@pytest.fixture(autouse=True, scope="session")
def state(tmp_path_factory):
    """What users' runs remember of themselves, here and in what tests start."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Of a terminal that is 200 columns wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def group(nodeid):
    """The name of the tests that run in the same process as this one."""
    file, _, test = nodeid.partition("::")
    name = PurePath(file).name
    return TOGETHER.get(f"{name}::{test}", TOGETHER.get(name, file))


class ByFile(LoadScopeScheduling):
    """Gives a process whole files, or several.

    pytest-xdist's own groups do nothing here: 3.8 writes them to ``_nodeid``, which pytest 9.2 does not read.
    """

    def _split_scope(self, nodeid):
        return group(nodeid)


class CpuTime:
    """Adds up the CPU seconds of pytest's processes and of what they have started."""

    def __init__(self):
        self.seconds = 0.0

    def pytest_testnodedown(self, node):
        self.seconds += getattr(node, "workeroutput", {}).get("cpu", 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        times = os.times()
        self.seconds += sum(times[:2] if self.seconds else times[:4])
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu"] = sum(times[:4])

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.write_line(f"{self.seconds:.0f} CPU-seconds (600 are aimed at for the quick tests)")


def pytest_configure(config):
    config.pluginmanager.register(CpuTime())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    return len(os.sched_getaffinity(0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log) if config.getvalue("dist") == "load" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    """No process shall end alone: the long groups come first, then deployments, then files by their tests."""
    leave_few_quick(items)
    yield
    order, groups = list(dict.fromkeys(TOGETHER.values())), [group(item.nodeid) for item in items]
    tests = Counter(groups)
    deployed = {g for g, item in zip(groups, items, strict=True) if item.get_closest_marker("deployment")}
    first = [order.index(g) if g in order else len(order) + (g not in deployed) for g in groups]
    places = sorted(range(len(items)), key=lambda i: (first[i], -tests[groups[i]], groups[i]))
    items[:] = [items[i] for i in places]


def leave_few_quick(items):
    """Of the cases of a test with ``quick(n)`` all but n become slow. The last stays, since plain cases come
    first, and others in golden steps before it: steps as long as an axis would leave one value of it."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("quick") and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for of_test in cases.values():
        (few,) = of_test[0].get_closest_marker("quick").args
        places = sorted(range(len(of_test)), key=lambda place: place * 0.618 % 1)
        for place in places[few:]:
            of_test[-1 - place].add_marker(pytest.mark.slow)
