"""What the processes of a federation load, and that none outlives the one that has started it."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fedpart.flower.workarounds.protocol import ApiCalls

FORWARDING = "superlink", "supernode", "executor"


def printed(code, **environment):
    """What a Python process prints."""
    environment = {**os.environ, **environment}
    return subprocess.check_output([sys.executable, "-c", code], text=True, env=environment).strip()


@pytest.mark.slow
def test_a_process_that_only_forwards_messages_loads_no_torch():
    imports = "\n".join(f"import fedpart.flower.workarounds.{name}" for name in FORWARDING)
    imports += "\nimport simulations.deployment.health"
    assert printed(f"{imports}\nimport sys; print('torch' in sys.modules)") == "False"


@pytest.mark.slow
def test_what_a_worker_is_forked_with_has_started_no_thread():
    """But for OpenBLAS, which ends its own before a fork."""
    code = (
        "import importlib, os; from fedpart.flower.workarounds.executor import WARM\n"
        "for name in WARM: importlib.import_module(name)\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    assert printed(code, OPENBLAS_NUM_THREADS="1") == "1"


PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
NO_PROXIES = ("NO_PROXY", "no_proxy")


@pytest.fixture
def server(monkeypatch):
    """A port that answers every call with an empty message, and the paths that it was asked for."""
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments):
            pass

    for name in (*PROXIES, *NO_PROXIES):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Answer) as here:
        threading.Thread(target=here.serve_forever, args=(0.01,), daemon=True).start()
        yield here.server_port, asked
        here.shutdown()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST"])
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_no_proxy_is_asked_for_this_machine(host, proxy, server, monkeypatch):
    for name in PROXIES:
        monkeypatch.setenv(name, proxy)
    address = f"{host}:{server[0]}"
    ApiCalls("control", address, None, dict, insecure=True)("ListNodes")
    assert server[1] == ["/v1/control/list-nodes"]


def test_a_proxy_is_asked_for_another_machine(server, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server[0]}")
    ApiCalls("control", "link.example:9093", None, dict, insecure=True)("ListNodes")
    assert server[1] == ["http://link.example:9093/v1/control/list-nodes"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "127.0.0.1,localhost,::1"),
        ({"NO_PROXY": "my.example"}, "my.example,127.0.0.1,localhost,::1"),
        ({"no_proxy": "localhost,b.example", "NO_PROXY": "a.example"}, "localhost,b.example,127.0.0.1,::1"),
        ({"NO_PROXY": "*", "no_proxy": "*"}, "*"),
    ],
)
def test_processes_that_are_started_ask_no_proxy_either(given, found):
    plain = {name: value for name, value in os.environ.items() if name not in NO_PROXIES}
    code = "import os, fedpart.flower.environment; print(os.environ['NO_PROXY'], os.environ['no_proxy'])"
    printed = subprocess.run([sys.executable, "-c", code], env=plain | given, capture_output=True, text=True)
    assert printed.stdout.split() == [found, found]
