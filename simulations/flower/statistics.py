"""Statistics: before round 1 each client tells sums of its own rows; what is made of them goes to all."""

import json
from collections.abc import Mapping
from contextlib import suppress
from logging import WARNING, getLogger
from typing import Any, NoReturn, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpart.checks import require
from fedpart.data.cells import plain
from fedpart.data.preprocessing.sums import Sums, check_sums, joined
from fedpart.federated.wire import VERSION
from fedpart.flower.messages import GRACE, Incoming, cause
from fedpart.flower.nodes import Nodes
from fedpart.flower.workarounds import guarded
from fedpart.nn.likelihoods import LIKELIHOODS
from fedpart.training.files import parsed
from fedpart.updates.errors import brief
from simulations.building.data import load_data
from simulations.config.load import ExperimentConfig
from simulations.errors import RunError
from simulations.flower.config import read_run_config

LARGEST = 2**24  # bytes of a client's sums


class _Heard(Exception):
    """The sums are there, and nothing else is wanted."""


def tell(run_config: Mapping[str, Any], client: int) -> bytes:
    """What a client says of its own rows, which are all in its file, or those of its number."""
    config, told = read_run_config(run_config), list[Sums]()

    def hear(sums: list[Sums]) -> NoReturn:
        told.extend(sums)
        raise _Heard

    with suppress(_Heard):
        load_data(config, statistics=hear)
    whose = f"{config.data_dir} has rows of {len(told)} clients"
    require(
        len(told) in (1, config.clients), f"{whose}; it may have those of one, or of all {config.clients}."
    )
    return json.dumps(told[client if len(told) > 1 else 0]).encode()


def gathered(config: ExperimentConfig, grid: Grid) -> dict[str, Any]:
    """Of all clients' sums what :func:`.joined` makes, and ``sites``, by client name and rows; a RunError for
    those that cannot be taken, who are left out with ``on_client_error: skip``."""
    settings, options = config.settings(), config.data_options
    skip, clients, target = (
        settings.on_client_error == "skip",
        range(config.clients),
        plain(str(options["target"])),
    )
    guard = guarded(grid, LARGEST)
    nodes = Nodes(config.clients, settings.node_timeout, lenient=skip).wait_for(guard, clients)
    ttl, told = settings.round_timeout + GRACE, dict[int, Sums]()
    sent = {
        client: Message(
            RecordDict({"config": ConfigRecord({"version": VERSION})}), node, "query.statistics", ttl=ttl
        )
        for client, node in nodes.items()
    }
    incoming = Incoming(guard.send_and_receive([*sent.values()], timeout=settings.round_timeout), sent)

    def refuse(client: int, why: str) -> None:
        said = f"Client {client} is not in the statistics: {brief(why).rstrip('.')}."
        require(skip, f"{said} Correct its file, or set on_client_error: skip.", RunError)
        getLogger("flwr").log(WARNING, said)

    for client in sent:
        try:
            told[client] = _read(incoming.take(client), target)
        except ValueError as error:
            refuse(client, str(error))
    require(told, "No client has told sums of its rows, so there is no preprocessing; see the log.", RunError)
    signs = {sign: options.get(sign) for sign in ("delimiter", "decimal")}
    likelihood = LIKELIHOODS.resolve(config.likelihood)
    known = {key: options[key] for key in ("standardise", "missing") if key in options}
    unit = options.get("standardise_target", True) and getattr(likelihood, "scaled", False)
    made = joined(told, target, refuse, read=signs, standardise_target=unit, **known)
    return {
        "state": made,
        "sites": {str(client): (sums["client"], sums["rows"]) for client, sums in told.items()},
    }


def _read(answer: Message | None, target: str) -> Sums:
    """A client's sums, checked; a ValueError says why there are none."""
    require(answer is not None, "it has not answered before the timeout")
    reply = cast(Message, answer)
    require(not reply.has_error(), cause(reply.error) if reply.has_error() else "")
    record = reply.content.get("arrays")
    array = record.get("statistics") if isinstance(record, ArrayRecord) else None
    require(array is not None, "its answer has no statistics")
    try:
        sums = parsed(array.data)
    except ValueError as error:
        raise ValueError(f"its sums cannot be read ({error})") from error
    check_sums(sums, target)
    return cast(Sums, sums)
