"""Wire form: what server and client exchange in a round, as named arrays and plain scalars of any transport.

Instruction: arrays ``w`` (what the client's network has of it, in partition order; rounded to 16 bits, the
bits as int16, with ``download``), ``psi``, and where clients step along them, as with scaffold, ``variates``
in the order of ``w``; the header; ``jobs`` as JSON; where clients keep something ``residuals``, the rounds
that :class:`.ClientState` lists for the client.
Reply: arrays ``w`` (the changes of the trained partitions, ascending, as one vector) and ``psi`` (its
gradient), each only if it was asked for; with an upload codec ``w`` is bytes, partition after partition;
scalars ``examples``, ``loss`` and, where a job has one to tell
(:meth:`.Protocol.unseen`), ``unseen_loss``; without privacy what it has cost, ``visited`` and ``seconds``;
the header, echoed.
In an evaluation the instruction has no ``jobs``, and the reply no arrays: its scalars are ``examples``,
``nll`` (their sum, nats) and, where there are classes, ``correct``."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import starmap
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedpart.checks import require
from fedpart.federated.evaluation import check_score
from fedpart.federated.protocol import Protocol
from fedpart.partition.partition import Partition
from fedpart.task.gradients import Job
from fedpart.task.held_out import HeldOutScore, has_hits
from fedpart.training.files import parsed
from fedpart.updates.errors import Refusal, brief
from fedpart.updates.update import LARGEST, PSI, Update, check_form, named

HEADER = 1000  # characters of an array's header at most; ours have about 60


class Form(NamedTuple):
    """Length and dtype of an array of a message."""

    size: int
    dtype: np.dtype[Any]


def npy_bytes(array: NDArray[Any]) -> bytes:
    """What ``numpy.save`` writes for ``array [n]``, in one copy where it makes several."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    return b"".join((head.getvalue(), array.view(np.uint8).data))


def read_npy(name: str, data: bytes, form: Form) -> NDArray[Any]:
    """An array of that form as :func:`npy_bytes` leaves it, copied.

    What the data declare is compared with what is expected before memory is asked for; nothing is unpickled.
    """
    stream = io.BytesIO(data)
    try:
        require(np.lib.format.read_magic(stream) == (1, 0), "it is not of format 1.0")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=HEADER)
    except Exception as error:  # whatever numpy makes of foreign bytes
        raise Refusal("malformed", f"its array {name} cannot be read ({error})") from error
    check_form(name, shape, dtype, *form)
    length, wanted = len(data) - stream.tell(), form.size * dtype.itemsize
    if length != wanted:
        raise Refusal("size", f"its array {name} cannot be read (it has {length} bytes of {wanted})")
    return np.frombuffer(data, dtype, form.size, stream.tell()).copy()


def check_arrays(arrays: Mapping[str, NDArray[Any]], forms: Mapping[str, Form]) -> None:
    """Refuse arrays of other names or forms, with a :class:`.Refusal`."""
    check_names(arrays, forms)
    for name, form in forms.items():
        check_form(name, arrays[name].shape, arrays[name].dtype, *form)


def check_names(arrays: Mapping[str, Any], forms: Mapping[str, Form]) -> None:
    """Refuse arrays by other names than those of ``forms``."""
    if set(arrays) != set(forms):
        few = sorted(name[:40] for name in arrays)[:5]
        reason = f"it holds the arrays {few}, {len(arrays)} of them, where {sorted(forms)} are expected"
        raise Refusal("partitions", reason)


VERSION = 2  # of this wire form; a side that does not speak it is refused


@dataclass(frozen=True)
class Header:
    """What an instruction says and its reply must echo."""

    version: int  # of the wire form
    fingerprint: str  # of the protocol: settings, shapes and assignment
    round: int
    client: int
    chunk: int

    @classmethod
    def of(cls, protocol: Protocol, round: int, client: int) -> Header:
        """The header that ``protocol`` gives to ``client`` in ``round``."""
        return cls(VERSION, protocol.echo, round, client, protocol.chunk(client))

    @classmethod
    def read(cls, scalars: Mapping[str, Any]) -> Header:
        """The header among a message's scalars."""
        for field in fields(cls):
            kind = str if field.name == "fingerprint" else int
            if type(scalars.get(field.name)) is not kind:
                value = repr(scalars[field.name]) if field.name in scalars else "missing"
                reason = f"the {field.name} in its header is {value}, not of type {kind.__name__}"
                raise Refusal("malformed", reason)
        return cls(**{field.name: scalars[field.name] for field in fields(cls)})

    def scalars(self) -> dict[str, Any]:
        """Inverse of :meth:`read`."""
        return asdict(self)

    def check(self, received: Header) -> None:
        """Compare with the header that was received."""
        for name, expected in asdict(self).items():
            if (value := getattr(received, name)) != expected:
                raise Refusal(name, f"its {name} is {value!r} where {expected!r} is expected")


def encode_jobs(jobs: Iterable[Job]) -> str:
    """Jobs as JSON."""
    return json.dumps([asdict(job) for job in jobs], separators=(",", ":"))


def decode_jobs(text: Any) -> list[Job]:
    """Inverse of :func:`encode_jobs`."""
    try:
        data = parsed(text) if isinstance(text, str) else text
    except ValueError:
        data = None
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise ValueError(brief(f"This is not a list of jobs: {text!r}."))
    try:
        return [Job.from_dict(item) for item in data]
    except ValueError as error:
        raise ValueError(brief(str(error))) from None


def encode_state(
    w: torch.Tensor, psi: torch.Tensor, protocol: Protocol, partition: Partition, *variates: torch.Tensor
) -> dict[str, NDArray[Any]]:
    """The server's values for an instruction to clients with a network: ``w [needed]``, ``psi [P]``, and the
    mean of the clients' variates ``[needed]``, if it is sent along."""
    narrow, w = protocol.download, partition.of_server(w.detach())
    w = w if narrow is None else w.to(narrow).view(torch.int16)
    values = [w, psi.detach(), *map(partition.of_server, variates)]
    return {n: tensor.cpu().numpy() for n, tensor in zip(("w", "psi", "variates"), values, strict=False)}


def decode_state(
    arrays: Mapping[str, NDArray[Any]], protocol: Protocol, client: int
) -> tuple[torch.Tensor, ...]:
    """Inverse of :func:`encode_state` for a client's network: ``w`` in the server's order, ``psi``, and the
    variates, if there are any.

    The arrays are not copied where all have one network and nothing is rounded."""
    partition, narrow, dtype = protocol.partition_of(client), protocol.download, _dtype(protocol)
    of_w = Form(partition.needed, dtype if narrow is None else np.dtype(np.int16))
    forms = {"w": of_w, "psi": Form(protocol.task.psi_space.size, dtype)}
    more = {"variates": Form(partition.needed, dtype)} if protocol.settings.combination.sends else {}
    check_arrays(arrays, forms | more)
    w, psi, *variates = (torch.from_numpy(arrays[name]) for name in forms | more)
    w = partition.for_client(w if narrow is None else w.view(narrow)).to(psi.dtype)  # all of it is rounded
    return w, psi, *map(partition.for_client, variates)


def encode_update(update: Update) -> dict[str, NDArray[Any]]:
    """The arrays of a client's reply; its scalars are those of :func:`update_scalars`."""
    arrays = {}
    if cells := update.encoded or update.cells:
        parts = [cells[j] for j in sorted(cells)]
        arrays["w"] = (parts[0] if len(parts) == 1 else torch.cat(parts)).cpu().numpy()
    if update.psi is not None:
        arrays["psi"] = update.psi.cpu().numpy()
    return arrays


def update_scalars(update: Update) -> dict[str, int | float]:
    """The scalars of a client's reply."""
    scalars: dict[str, int | float] = {"examples": update.examples, "loss": update.loss}
    if update.unseen_examples:
        scalars["unseen_loss"] = update.unseen_loss
    if update.visited:
        scalars |= {"visited": update.visited, "seconds": update.seconds}
    return scalars


def decode_update(
    arrays: Mapping[str, NDArray[Any]], scalars: Mapping[str, Any], protocol: Protocol, client: int,
    jobs: Sequence[Job], limit: float = LARGEST,
) -> Update:  # fmt: skip
    """A client's update from its reply to ``jobs``, checked; it takes over the arrays, the caller's own."""
    check_arrays(arrays, upload_forms(protocol, client, jobs))
    examples, loss = scalars.get("examples"), scalars.get("loss")
    if type(examples) is not int or type(loss) is not float:
        reason = f"its examples and loss are {examples!r} and {loss!r}, no integer and real number"
        raise Refusal("malformed", reason)
    unseen = protocol.unseen(client, jobs) is not None
    unseen_loss = scalars.get("unseen_loss") if unseen else 0.0
    if type(unseen_loss) is not float:
        raise Refusal("malformed", f"its unseen_loss is {unseen_loss!r}, no real number")
    told = not protocol.private
    visited, seconds = (scalars.get(name, 0) if told else 0 for name in ("visited", "seconds"))
    if type(visited) is not int or type(seconds) not in (int, float):
        reason = f"its visited and seconds are {visited!r} and {seconds!r}, no integer and number"
        raise Refusal("malformed", reason)
    psi = {PSI: torch.from_numpy(arrays["psi"])} if "psi" in arrays else {}
    update = Update(
        psi | _decoded(arrays, _cells(protocol.upload_sizes(client, jobs)), protocol),
        examples=examples,
        loss=loss,
        unseen_loss=unseen_loss,
        unseen_examples=examples if unseen else 0,
        visited=visited,
        seconds=float(seconds),
    )
    protocol.check(update, limit)
    return update


def score_scalars(score: HeldOutScore) -> dict[str, int | float]:
    """The scalars of a client's reply in an evaluation."""
    return {name: value for name, value in score._asdict().items() if value is not None}


def decode_score(scalars: Mapping[str, Any], protocol: Protocol) -> HeldOutScore:
    """Inverse of :func:`score_scalars`, checked."""
    examples, nll, correct = (scalars.get(name) for name in ("examples", "nll", "correct"))
    if type(examples) is not int or type(nll) is not float or type(correct) not in (int, float, NoneType):
        numbers = f"{examples!r}, {nll!r} and {correct!r}"
        reason = f"its examples, nll and correct are {numbers}, no integer, real number and number"
        raise Refusal("malformed", reason)
    score = HeldOutScore(examples, nll, correct)
    check_score(score, has_hits(protocol.task), protocol.settings.max_examples)
    return score


def upload_forms(protocol: Protocol, client: int, jobs: Sequence[Job]) -> dict[str, Form]:
    """Names and forms of the arrays in the client's answer to ``jobs``."""
    sizes, forms = protocol.upload_sizes(client, jobs), dict[str, Form]()
    if cells := _cells(sizes):
        of_weights = _dtype(protocol) if protocol.codec is None else np.dtype(np.uint8)
        size = sum(starmap(protocol.bytes_of, cells.items())) // of_weights.itemsize
        forms["w"] = Form(size, of_weights)
    return {**forms, "psi": Form(sizes[PSI], _dtype(protocol))} if PSI in sizes else forms


def _cells(sizes: Mapping[int, int]) -> dict[int, int]:
    """Of the numbers of an answer's parts those of cells, ascending."""
    return {part: size for part, size in sizes.items() if part != PSI}


def _decoded(
    arrays: Mapping[str, NDArray[Any]], cells: Mapping[int, int], protocol: Protocol
) -> dict[int, torch.Tensor]:
    """The changes of cells from the array ``w`` that holds them, if any were asked for."""
    if not cells:
        return {}
    w = torch.from_numpy(arrays["w"])
    if protocol.codec is None:
        return dict(zip(cells, torch.split(w, list(cells.values())), strict=True))
    parts = torch.split(w, [*starmap(protocol.bytes_of, cells.items())])
    try:
        changes = {
            j: protocol.codec.decode(data, size, protocol.task.dtype)
            for data, (j, size) in zip(parts, cells.items(), strict=True)
        }
    except Exception as error:  # whatever a codec makes of foreign bytes
        raise Refusal("malformed", f"its array w cannot be decoded ({error})") from error
    for j, change in changes.items():
        check_form(named(j), change.shape, change.dtype, cells[j], protocol.task.dtype)
    return changes


def _dtype(protocol: Protocol) -> np.dtype[Any]:
    return np.dtype(np.float64 if protocol.task.dtype == torch.float64 else np.float32)
