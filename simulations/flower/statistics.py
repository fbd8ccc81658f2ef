"""Statistics: before round 1 each client tells sums of its own rows; what is made of them goes to all."""

import json
from collections.abc import Mapping
from contextlib import suppress
from logging import WARNING, getLogger
from typing import Any, NoReturn

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpart.checks import require
from fedpart.data.cells import plain
from fedpart.data.preprocessing.sums import Sums, check_sums, joined
from fedpart.federated.wire import VERSION
from fedpart.flower.messages import GRACE, Incoming, cause
from fedpart.flower.nodes import Nodes
from fedpart.flower.workarounds import guarded
from fedpart.training.files import parsed
from simulations.building.data import load_data
from simulations.config.load import ExperimentConfig
from simulations.errors import RunError
from simulations.flower.config import read_run_config

LARGEST = 2**24  # bytes of a client's sums


class _Heard(Exception):
    """The sums are there, and nothing else is wanted."""


def tell(run_config: Mapping[str, Any], client: int) -> bytes:
    """What a client says of its own rows: all in its file, or, in a file of all clients, its number's."""
    config, told = read_run_config(run_config), list[Sums]()

    def hear(sums: list[Sums]) -> NoReturn:
        told.extend(sums)
        raise _Heard

    with suppress(_Heard):
        load_data(config.with_statistics(hear))
    fits = f"{config.data_dir} has rows of {len(told)} clients; give it those of one, or of all."
    require(len(told) in (1, config.clients), fits)
    return json.dumps(told[client if len(told) > 1 else 0]).encode()


def gathered(config: ExperimentConfig, grid: Grid) -> dict[str, Any]:
    """What :func:`.joined` makes of all clients' sums; a RunError if a client's cannot be taken, who is left
    out with ``on_client_error: skip``."""
    settings, clients = config.settings(), range(config.clients)
    skip, target = settings.on_client_error == "skip", plain(str(config.data_options["target"]))
    grid, told = guarded(grid, LARGEST), dict[int, Sums]()
    nodes = Nodes(config.clients, settings.node_timeout, lenient=skip).wait_for(grid, clients)
    content, ttl = RecordDict({"config": ConfigRecord({"version": VERSION})}), settings.round_timeout + GRACE
    sent = {client: Message(content, node, "query.statistics", ttl=ttl) for client, node in nodes.items()}
    incoming = Incoming(grid.send_and_receive([*sent.values()], timeout=settings.round_timeout), sent)

    def refuse(client: int, why: str) -> None:
        said = f"The rows of client {client} are not in the statistics: {why.rstrip('.')}"
        require(skip, f"{said}; mend it, or set on_client_error: skip.", RunError)
        getLogger("flwr").log(WARNING, "%s.", said)

    for client in clients:
        try:
            told[client] = _read(incoming.take(client) if client in sent else None, target)
        except ValueError as error:
            refuse(client, str(error))
    require(told, "No client has told sums of its rows, so there is no preprocessing.", RunError)
    read = {"read": {sign: config.data_options.get(sign) for sign in ("delimiter", "decimal")}}
    return joined(told, target, refuse, config.data_options | read)


def _read(answer: Message | None, target: str) -> Any:
    """A client's sums, checked; a ValueError says why there are none."""
    if answer is None or answer.has_error():
        raise ValueError("it has not answered" if answer is None else cause(answer.error))
    try:
        sums = parsed(answer.content["arrays"]["statistics"].data)  # type: ignore[call-overload,index]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError("what it has told cannot be read") from error
    check_sums(sums, target)
    return sums
