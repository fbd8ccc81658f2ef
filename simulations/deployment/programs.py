"""The programs of a federation on this machine, as commands."""

from pathlib import Path

from fedpart.flower.workarounds.executor import tool
from simulations.deployment.keys import CA, CERTIFICATE, CERTIFICATE_KEY, NODE_KEY, SECRET, TOKEN


def superlink(keys: Path, port: int, database: Path) -> list[str]:
    """The command of the SuperLink, with its folder of keys, the port of its APIs, the file of its state."""
    return [
        *(tool("python"), "-m", "fedpart.flower.workarounds.superlink"),
        *("--operator-token-file", str(keys / TOKEN), "--isolation", "process", "--enable-supernode-auth"),
        *("--host", "127.0.0.1", "--port", str(port), *_server(keys), "--database", str(database)),
    ]


def supernode(address: str, keys: Path, authority: Path, port: int, client: int, clients: int) -> list[str]:
    """The command of a SuperNode that says it is ``client`` of ``clients``, with the folder of its keys.

    It knows the SuperLink at ``address`` by the ``authority``'s certificate; ``port`` is for its executor.
    """
    return [
        *(tool("python"), "-m", "fedpart.flower.workarounds.supernode", "--superlink", address),
        *("--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(keys / NODE_KEY), "--isolation", "process"),
        *("--host", "127.0.0.1", "--port", str(port), *_server(keys)),
        *("--node-config", f"partition-id={client} num-partitions={clients}"),
    ]


def executor(address: str, keys: Path) -> list[str]:
    """The command of the executor with the keys of a folder, for the apps of the server at an address."""
    return [
        *(tool("python"), "-m", "fedpart.flower.workarounds.executor", "--runtime-api-address", address),
        *("--root-certificates", str(keys / CA), "--superexec-auth-secret-file", str(keys / SECRET)),
    ]


def _server(keys: Path) -> list[str]:
    """How a server of Flower is told its certificate and the secret of its executor."""
    files = {"ca-certfile": CA, "certfile": CERTIFICATE, "keyfile": CERTIFICATE_KEY}
    options = [part for option, name in files.items() for part in (f"--ssl-{option}", str(keys / name))]
    return [*options, "--superexec-auth-secret-file", str(keys / SECRET)]
