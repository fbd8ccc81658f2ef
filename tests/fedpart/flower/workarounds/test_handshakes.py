"""A handshake that takes too long, or is cut off, is tried again; a certificate that is wrong is not."""

import inspect
import socket
import ssl
import threading

import httpx
import pytest
from flwr.supercore.retry.http_retry import make_simple_http_retry_invoker

from fedpart.flower.workarounds.protocol import retry_handshakes


@pytest.fixture(autouse=True)
def flowers_own(monkeypatch):
    """Another test may have patched this process."""
    monkeypatch.setattr(httpx.Client, "send", inspect.unwrap(httpx.Client.send))


@pytest.fixture
def asked():
    """What comes of a request to a server that does something with each connection."""
    servers = []

    def ask(answer):
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        kept = []

        def serve():
            while True:
                try:
                    kept.append(server.accept()[0])
                    answer(kept[-1])
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        client = httpx.Client(timeout=0.3, trust_env=False, verify=ssl.create_default_context())
        with client, pytest.raises(httpx.TransportError) as raised:
            client.get(f"https://127.0.0.1:{server.getsockname()[1]}/")
        return raised.value

    yield ask
    for server in servers:
        server.close()


def silent(connection):
    """A server that is too busy."""


def cut_off(connection):
    connection.recv(1)
    connection.shutdown(socket.SHUT_RDWR)


def plain(connection):
    """No TLS at all: nothing that another attempt could mend."""
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def gives_up(error):
    return make_simple_http_retry_invoker().should_giveup(error)


@pytest.mark.parametrize("answer", [silent, cut_off])
def test_flowers_own_processes_give_up_at_the_first_handshake_that_fails(asked, answer):
    assert gives_up(asked(answer))


@pytest.mark.parametrize("answer", [silent, cut_off])
def test_ours_try_again(asked, answer):
    retry_handshakes.__wrapped__()
    error = asked(answer)
    assert not gives_up(error) and isinstance(error, (httpx.ConnectTimeout, httpx.ConnectError))
    assert str(error.__cause__), "what was wrong is kept"


def test_what_another_attempt_cannot_mend_still_ends_them(asked):
    retry_handshakes.__wrapped__()
    assert gives_up(asked(plain))
    assert gives_up(httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"))
