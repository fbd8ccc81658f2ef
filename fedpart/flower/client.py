"""The Flower ClientApp: says which client it is, and executes the jobs of a round on that client's shard."""

import typing
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpart.checks import require
from fedpart.data.given import Examples, Shards
from fedpart.engines.evaluation import evaluate
from fedpart.engines.executor import Executor
from fedpart.federated import wire
from fedpart.federated.protocol import Protocol
from fedpart.training.local import TrainFn
from fedpart.updates.client_state import NONE, ClientState
from fedpart.updates.errors import blamed
from fedpart.updates.update import Round


class ClientSide(typing.Protocol):
    """What a client needs of an experiment."""

    @property
    def protocol(self) -> Protocol:
        """The policies, equal to the server's."""

    @property
    def shards(self) -> Sequence[Examples]:
        """``shards[client]`` is the client's data, a DataLoader, say; anything with ``__getitem__``."""


Build = Callable[[Mapping[str, Any]], ClientSide]
"""Builds the experiment from Flower's run config."""
Keep = Callable[[Mapping[str, Any]], Path]
"""Where clients keep their residuals, given the run config."""


class _Clients:
    """The clients of an experiment in this process: built once, with the values of the last round."""

    def __init__(self, experiment: ClientSide, folder: Path | None, train_fn: TrainFn | None = None) -> None:
        self.protocol, self.shards = experiment.protocol, Shards(experiment.shards)
        self.executor, self.residuals = Executor(self.protocol, train_fn), None
        if self.protocol.settings.keeps:
            if folder is None:
                why = "a client keeps a file, for error_feedback or the way to combine clients of the method"
                raise ValueError(f"In this run {why}; give make_client_app() a folder for it, with keep=....")
            self.residuals = ClientState(folder, self.protocol.fingerprint)
        self._last: tuple[tuple[Any, ...], Round] | None = None

    def round(self, number: int, client: int, record: ArrayRecord, **tried: Any) -> Round:
        """The server's values; the same object for the clients of a round, if their networks are the same."""
        architecture = self.protocol.architectures[client]
        values = (number, architecture, *tried.values(), *(record[name].data for name in sorted(record)))
        if self._last is None or self._last[0] != values:
            arrays = {name: array.numpy() for name, array in record.items()}
            w, psi, *more = wire.decode_state(arrays, self.protocol, client)
            self._last = values, Round(number, w, psi, self.residuals, next(iter(more), None), **tried)
        return self._last[1]


@lru_cache(maxsize=1)  # the module's own, as Flower's Ray engine copies apps
def _clients(
    build: Build, keep: Keep | None, train_fn: TrainFn | None, run_config: tuple[tuple[str, Any], ...]
) -> _Clients:
    _clients.cache_clear()  # the data of the experiment before are not kept while these are read
    folder = None if keep is None else keep(dict(run_config))
    return _Clients(build(dict(run_config)), folder, train_fn)


def make_client_app(
    build: Build, keep: Keep | None = None, train_fn: TrainFn | None = None,
    tell: Callable[[Mapping[str, Any], int], bytes] | None = None,
) -> ClientApp:  # fmt: skip
    """A ClientApp for the experiment that ``build`` makes of the run config.

    Args:
        build: a function of a module, called once per process and run config; see :class:`ClientSide`.
            Engines agree to the bit only at equal numbers of torch threads, so it should set that number too.
        keep: gives the folder in which the clients of this machine keep files, with ``error_feedback``, from
            one message to the next.
        train_fn: a client's own training step, in the place of SGD with the settings ``local``; see
            :class:`.TrainFn`. The server need not know of it.
        tell: of the run config and a client's number what it says of its data when it is asked for
            ``statistics``; what a message says of these is in the run config afterwards.
    """
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        """Which client this node is."""
        number, total = client_number(context)
        answer = ConfigRecord({"version": wire.VERSION, "client": number, "clients": total})
        return Message(RecordDict({"config": answer}), reply_to=message)

    @app.query("statistics")
    def told(message: Message, context: Context) -> Message:
        """What this client says of its data."""
        said = b"" if tell is None else tell(context.run_config, client_number(context)[0])
        array = Array("uint8", (len(said),), "numpy.ndarray", said)
        return Message(RecordDict({"arrays": ArrayRecord({"statistics": array})}), reply_to=message)

    def asked(message: Message, context: Context) -> tuple[_Clients, wire.Header, Round]:
        """The clients of this process, and the header and the values of a message to one of them."""
        config = cast(ConfigRecord, message.content["config"])
        run_config = context.run_config | {key: config[key] for key in config if key == "statistics"}
        clients = _clients(build, keep, train_fn, tuple(sorted(run_config.items())))
        received = wire.Header.read(config)
        header = wire.Header.of(clients.protocol, received.round, client_number(context)[0])
        try:
            header.check(received)
        except ValueError as error:
            same = "start both with the same configuration and the same version of fedpart."
            raise ValueError(f"The server's message does not fit this client: {error}; {same}") from error
        if clients.residuals is not None:
            clients.residuals.versions[header.client] = _versions(config.get("residuals"))
        record = cast(ArrayRecord, message.content["arrays"])
        tried = {key: config[key] for key in ("local_rate", "trial") if key in config}
        return clients, header, clients.round(header.round, header.client, record, **tried)

    def answer(message: Message, header: wire.Header, **records: Any) -> Message:
        return Message(RecordDict({**records, "config": ConfigRecord(header.scalars())}), reply_to=message)

    @app.evaluate()
    def evaluate_(message: Message, context: Context) -> Message:
        """What this client makes of the network, on what it holds out of training."""
        clients, header, round = asked(message, context)
        with blamed(header.client, header.round):
            score = evaluate(clients.executor, round, header.client, clients.shards[header.client])
        return answer(message, header, metrics=MetricRecord({**wire.score_scalars(score)}))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """One round of this client."""
        clients, header, round = asked(message, context)
        config = cast(ConfigRecord, message.content["config"])
        jobs = wire.decode_jobs(config["jobs"])
        with blamed(header.client, header.round):
            update = clients.executor.run(round, header.client, clients.shards[header.client], jobs)
        arrays = {  # as Array(part), four times as fast
            name: Array(str(part.dtype), part.shape, "numpy.ndarray", wire.npy_bytes(part))
            for name, part in wire.encode_update(update).items()
        }
        metrics = MetricRecord({**wire.update_scalars(update)})
        return answer(message, header, arrays=ArrayRecord(arrays), metrics=metrics)

    return app


def _versions(value: Any) -> tuple[int, ...]:
    """See :class:`.ClientState`; they become names of files."""
    if not isinstance(value, list) or len(value) != len(NONE) or any(type(n) is not int for n in value):
        raise ValueError(f"The server's message has no rounds of residuals, but {value!r}.")
    return tuple(value)


def client_number(context: Context) -> tuple[int, int]:
    """Number of this client and of all clients, from the node's configuration."""
    client, clients = (context.node_config.get(key) for key in ("partition-id", "num-partitions"))
    known = type(client) is int and type(clients) is int
    said = f"partition-id and num-partitions are {client!r} and {clients!r}"
    start = "start it with --node-config 'partition-id=0 num-partitions=2', or your own numbers."
    require(known, f"This node does not know which client it is: {said}; {start}")
    return cast(int, client), cast(int, clients)
