"""A cohort's sum, from the clients' answers: how every engine comes to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fedpart.federated.protocol import Protocol
from fedpart.federated.traffic import update_bytes
from fedpart.updates.cohort import CohortSum, aggregate
from fedpart.updates.errors import ClientError, Refusal, skipped
from fedpart.updates.round import Round
from fedpart.updates.update import Update

Answer = Callable[[int], Update]
"""A client's update, checked; it raises a ClientError or a Refusal where there is none."""


def sum_cohort(protocol: Protocol, round: Round, cohort: Sequence[int], answer: Answer) -> CohortSum:
    """The sum of a cohort's answers, or what a defence makes of them.

    Args:
        cohort: ascending; each is asked for its answer once, in this order.
        answer: see :data:`Answer`.

    Raises:
        ClientError: a client has none, and the settings say ``fail``; with ``skip`` the sum lists it.
    """
    found = CohortSum(cohort=[*cohort])
    found.total = aggregate(cohort, partial(term, protocol, round, answer, found), round.of_all)
    return found


def term(protocol: Protocol, round: Round, answer: Answer, found: CohortSum, client: int) -> Update | None:
    """The client's term of the sum, whose bytes and norms ``found`` notes; None: it is skipped."""
    try:
        sent = answer(client)
        size = update_bytes(protocol, sent)
        update, found.norms[client] = protocol.term(client, sent, round)
    except (ClientError, Refusal) as error:
        if isinstance(error, Refusal):
            error = ClientError.refused(client, round.number, error)
        if protocol.settings.on_client_error == "fail":
            raise error from error.__cause__
        found.skipped.append(skipped(client, error))
        return None
    found.upload_bytes += size
    return update
