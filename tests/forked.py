"""A federation's processes, forked from one that has imported what they need: so hundreds fit here."""

import importlib
import multiprocessing
import os
import sys

from simulations.deployment.processes import NICE, Processes

server = multiprocessing.get_context("forkserver")


class Forked(Processes):
    """SuperNodes and the executors of their ClientApps are forked; the others are commands."""

    def start(self, name, command):
        if not name.startswith(("supernode-", "clientapp-")):
            super().start(name, command)
            return
        server.set_forkserver_preload(["preloaded"])
        self._commands[name] = command
        self._ended.pop(name, None)
        environment = {**self._environment, "FLWR_HOME": str(self._homes / name)}
        self._running[name] = _Forked(command[2], command[3:], environment, self.logs / f"{name}.log")

    def leave(self, name):
        """End a process, and do not start it again; the command by which it would be."""
        self._running[name].kill()
        return self._commands.pop(name)


class _Forked:
    """What a subprocess.Popen would be."""

    def __init__(self, *become):
        self._process = server.Process(target=_become, args=become)
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def terminate(self):
        self._process.terminate()

    def kill(self):
        self._process.kill()

    def wait(self, seconds=None):
        self._process.join(seconds)


def _become(module, arguments, environment, log):
    os.setsid()
    os.nice(NICE)
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    program = importlib.import_module(module)
    program.IDLE_SECONDS = 10.0  # of an executor, after which the process of a client that has answered ends
    program.main()
