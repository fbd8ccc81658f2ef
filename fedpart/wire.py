"""Wire form: what server and client exchange in a round, as named arrays and plain scalars of any transport.

Instruction: arrays ``w`` (all of it, in partition order) and ``psi``; the header; ``jobs`` as JSON.
Reply: arrays ``w`` (w_k..w_C, the changes of the trained partitions as one vector) and ``psi`` (its
gradient), each only if it was asked for; scalars ``examples`` and ``loss``; the header, echoed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedpart.jobs import Job
from fedpart.protocol import Protocol
from fedpart.update import Update

VERSION = 1  # of this wire form; a side that does not speak it is refused


@dataclass(frozen=True)
class Header:
    """What an instruction says and its reply must echo.

    Attributes:
        version: of the wire form.
        fingerprint: of the protocol: settings, shapes and assignment.
        round: 1..; client: 0..N-1; chunk: 1..C.
    """

    version: int
    fingerprint: str
    round: int
    client: int
    chunk: int

    @classmethod
    def of(cls, protocol: Protocol, round: int, client: int) -> Header:
        """The header that ``protocol`` gives to ``client`` in ``round``."""
        return cls(VERSION, protocol.fingerprint, round, client, protocol.chunk(client))

    @classmethod
    def read(cls, scalars: Mapping[str, Any]) -> Header:
        """The header among a message's scalars.

        Raises:
            ValueError: a field is missing or has another type.
        """
        for field in fields(cls):
            kind = str if field.name == "fingerprint" else int
            if type(scalars.get(field.name)) is not kind:
                found = repr(scalars[field.name]) if field.name in scalars else "missing"
                raise ValueError(f"the {field.name} in its header is {found}, not of type {kind.__name__}")
        return cls(**{field.name: scalars[field.name] for field in fields(cls)})

    def scalars(self) -> dict[str, Any]:
        """Inverse of :meth:`read`."""
        return asdict(self)

    def check(self, received: Header) -> None:
        """Compare with the header that was received.

        Raises:
            ValueError: names the first field that differs.
        """
        for name, expected in asdict(self).items():
            if (found := getattr(received, name)) != expected:
                raise ValueError(f"its {name} is {found!r} where {expected!r} is expected")


def encode_jobs(jobs: Iterable[Job]) -> str:
    """Jobs as JSON."""
    return json.dumps([job.to_dict() for job in jobs], separators=(",", ":"))


def decode_jobs(text: Any) -> list[Job]:
    """Inverse of :func:`encode_jobs`.

    Raises:
        ValueError: this is no list of jobs.
    """
    data = json.loads(text) if isinstance(text, str) else text
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise ValueError(f"This is not a list of jobs: {text!r}.")
    return [Job.from_dict(item) for item in data]


def encode_state(w: torch.Tensor, psi: torch.Tensor) -> dict[str, NDArray[Any]]:
    """The server's values for an instruction: ``w [size]``, ``psi [P]``."""
    return {"w": w.detach().cpu().numpy(), "psi": psi.detach().cpu().numpy()}


def decode_state(arrays: Mapping[str, NDArray[Any]], protocol: Protocol) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse of :func:`encode_state`; the arrays are not copied.

    Raises:
        ValueError: lengths or dtypes do not fit the protocol.
    """
    _check_arrays(arrays, {"w": protocol.partition.space.size, "psi": protocol.task.psi_space.size}, protocol)
    return torch.from_numpy(arrays["w"]), torch.from_numpy(arrays["psi"])


def encode_update(update: Update) -> dict[str, NDArray[Any]]:
    """The arrays of a client's reply; its scalars are ``update.examples`` and ``update.loss``."""
    arrays = {}
    if update.deltas:
        arrays["w"] = update.flat().cpu().numpy()
    if update.psi is not None:
        arrays["psi"] = update.psi.cpu().numpy()
    return arrays


def npy_bytes(array: NDArray[Any]) -> bytes:
    """What ``numpy.save`` writes for ``array [n]``, in one copy where it makes several."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    return b"".join((head.getvalue(), array.view(np.uint8).data))


def decode_update(
    arrays: Mapping[str, NDArray[Any]], scalars: Mapping[str, Any], protocol: Protocol, jobs: Sequence[Job]
) -> Update:
    """A client's update, checked; it takes over the arrays, which must be the caller's own.

    Args:
        arrays, scalars: of the reply.
        protocol: of the run.
        jobs: that the client was sent.

    Raises:
        ValueError: it does not fit what was asked for: arrays, lengths, dtypes, values that are not finite.
    """
    trained = sorted(job.partition for job in jobs if job.partition is not None)
    sizes = [protocol.partition.sizes[j - 1] for j in trained]
    wanted = {"w": sum(sizes)} if trained else {}
    psi_size = protocol.task.psi_space.size if any(job.psi for job in jobs) else None
    if psi_size is not None:
        wanted["psi"] = psi_size
    _check_arrays(arrays, wanted, protocol)
    examples, loss = scalars.get("examples"), scalars.get("loss")
    if type(examples) is not int or type(loss) is not float:
        raise ValueError(f"its examples and loss are {examples!r} and {loss!r}, no integer and real number")
    parts = torch.split(torch.from_numpy(arrays["w"]), sizes) if trained else ()
    update = Update(
        deltas=dict(zip(trained, parts, strict=True)),
        psi=None if psi_size is None else torch.from_numpy(arrays["psi"]),
        examples=examples,
        loss=loss,
    )
    protocol.check(update, jobs)
    return update


def _check_arrays(arrays: Mapping[str, NDArray[Any]], sizes: Mapping[str, int], protocol: Protocol) -> None:
    if set(arrays) != set(sizes):
        raise ValueError(f"it holds the arrays {sorted(arrays)} where {sorted(sizes)} are expected")
    dtype = np.dtype(np.float64 if protocol.task.dtype == torch.float64 else np.float32)
    for name, size in sizes.items():
        if arrays[name].shape != (size,):
            raise ValueError(f"{name} has shape {arrays[name].shape} where {(size,)} is expected")
        if arrays[name].dtype != dtype:
            raise ValueError(f"{name} has dtype {arrays[name].dtype} where {dtype} is expected")
