"""Why a client's update is missing or not taken, for machines in a word and for people in a sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedpart.checks import Misfit

LONGEST = 400  # characters of a sentence; what a client sends may be quoted in it
_FULL = re.compile("DefaultCPUAllocator: |(backend|error:) out of memory|_ALLOC_FAILED|Invalid buffer size")

DIVERGED = ("not_finite", "too_large", "loss")  # categories of what a rate that is too large brings


class StepError(ArithmeticError):
    """The server's step made no numbers of updates that had some; one sentence says who may be to blame."""


class Refusal(ValueError):
    """An upload, or a part of one, that does not fit what was asked for.

    Args:
        category: ``version``, ``fingerprint``, ``round``, ``client``, ``chunk`` (the header differs),
            ``malformed`` (a part is missing, of another type or cannot be read), ``partitions`` (others than
            were asked for), ``size``, ``dtype``, ``not_finite``, ``too_large`` (values), ``examples`` (their
            number) or ``loss``.
        reason: a clause that says what is wrong; what it quotes of an upload is cut, see :func:`brief`.
    """

    def __init__(self, category: str, reason: str) -> None:
        self.category, self.reason = category, brief(reason)
        super().__init__(category, self.reason)

    def __str__(self) -> str:
        return self.reason


class ClientError(RuntimeError):
    """A client could not compute its update, or it was refused; the message names both.

    category: see :class:`.Refusal`; or ``client_error``, ``no_answer``, ``late`` (it was not waited for).
    """

    category = "client_error"

    @classmethod
    def of(cls, client: int, round: int | None, cause: Exception) -> "ClientError":
        """The error of ``client``, in ``round`` if it is in one, whose cause is any exception."""
        if isinstance(cause, Misfit):
            return cls(brief(str(Misfit(cause.error, of=f" of client {client}"))))
        reason = brief(str(cause))
        when = "" if round is None else f" in round {round}"
        return cls(f"Client {client} failed{when}: {type(cause).__name__}: {reason}")

    @classmethod
    def refused(cls, client: int, round: int, refusal: Refusal) -> "ClientError":
        """The error of ``client`` whose update in ``round`` was refused."""
        error = cls(f"The update of client {client} in round {round} was refused: {refusal}.")
        error.category = refusal.category
        return error

    @classmethod
    def silent(cls, client: int, round: int) -> "ClientError":
        """The error of ``client`` that was asked in ``round`` and has not answered."""
        error = cls(f"Client {client} did not answer in round {round} before the timeout.")
        error.category = "no_answer"
        return error


@contextmanager
def blamed(client: int, round: int | None) -> Iterator[None]:
    """What fails within it is the client's: a :class:`ClientError` that names it, and the round. That there
    is no memory is not: the error stays one of its class, in a sentence."""
    try:
        yield
    except ClientError:
        raise
    except Refusal as refusal:
        raise ClientError.refused(client, round or 0, refusal) from refusal
    except Exception as error:
        if (full := out_of_memory(error)) is None:
            raise ClientError.of(client, round, error) from error
        lower = "one client's work does not fit: lower local.batch_size or samples, or set device: cpu."
        kind = MemoryError if isinstance(error, MemoryError) else type(error)  # numpy's takes a shape
        raise kind(f"{full}; {lower}") from error


def out_of_memory(error: Exception) -> str | None:
    """What an error says of memory that a GPU, MPS or the processor does not have; None: another error."""
    lacks = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # Python's, a GPU's
    plain = isinstance(error, RuntimeError) and not isinstance(error, ClientError)
    if not (lacks or (plain and _FULL.search(str(error)))):
        return None
    clauses = re.split(r"[.;]\s|\n", str(error))
    return next(filter(_FULL.search, clauses), clauses[0]).rstrip(".") or "no memory is left"


def skipped(client: int, error: Exception) -> dict[str, Any]:
    """A client that is left out of a round, as reports list it: ``client``, ``category`` and ``reason``."""
    category = getattr(error, "category", "client_error")
    return {"client": client, "category": category, "reason": brief(str(error))}


def brief(text: str) -> str:
    """The text in one line of printable characters, not too long."""
    plain = "".join(character if character.isprintable() else " " for character in text[: 2 * LONGEST])
    line = " ".join(plain.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
