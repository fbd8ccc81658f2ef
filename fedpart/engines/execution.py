"""Ways to compute a cohort on this machine, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fedpart.data.dataset import Dataset
from fedpart.federated import protocol as federated
from fedpart.registry import Registry
from fedpart.updates.cohort import CohortSum
from fedpart.updates.round import Round


class Execution(Protocol):
    """How a cohort is computed; made of the run's protocol and its shards, by client."""

    def sum(self, round: Round, cohort: Sequence[int]) -> CohortSum:
        """The sum of the cohort's updates at the server's values.

        Raises:
            ClientError: a client failed, or its update was refused, and the settings say ``fail``; or the
                clients cannot be computed in this way.
        """


EXECUTIONS: Registry[Callable[[federated.Protocol, Sequence[Dataset]], Execution]] = Registry("execution")
