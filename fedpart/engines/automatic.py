"""Automatic execution: what computes a cohort best where the run computes."""

import warnings
from collections.abc import Callable, Sequence

from fedpart.data.dataset import Dataset
from fedpart.engines.alike import NotTogether
from fedpart.engines.fused import FusedRunner
from fedpart.engines.grouped import GroupedRunner
from fedpart.engines.local import EXECUTIONS, Execution, Loop
from fedpart.federated.cohorts import CohortSum
from fedpart.federated.protocol import Protocol
from fedpart.updates.update import Round

ALONE = ("cpu",)  # kinds of devices on which clients are computed one after another
Way = Callable[[Protocol, Sequence[Dataset]], Execution]
WAYS: dict[str, Way] = {"fused": FusedRunner, "grouped": GroupedRunner, "loop": Loop}  # the best first


@EXECUTIONS.register("auto")
def automatic(protocol: Protocol, shards: Sequence[Dataset]) -> Execution:
    """What computes cohorts where ``device`` is."""
    alone = protocol.settings.device.partition(":")[0] in ALONE
    return (Loop if alone else Automatic)(protocol, shards)


class Automatic:
    """The first of ``WAYS`` that takes the run; ``remark``: a line on which that is, and why."""

    def __init__(self, protocol: Protocol, shards: Sequence[Dataset]) -> None:
        self._run, self._left, self._refused = (protocol, shards), [*WAYS.items()], ""
        self._way = self._next()

    def _next(self) -> Execution:
        name, way = self._left.pop(0)
        try:
            self.remark = f"Clients are computed by execution: {name}{self._refused}."
            return way(*self._run)
        except ValueError as error:
            return self._after(error)

    def _after(self, error: Exception) -> Execution:
        """The next way, instead of one that refuses the run."""
        if not self._left:
            raise error
        name = [*WAYS][-len(self._left) - 1]
        self._refused += f"; not {name}: {str(error).partition(';')[0].rstrip('.')}"
        return self._next()

    def sum(self, round: Round, cohort: Sequence[int]) -> CohortSum:
        """See :meth:`.Execution.sum`."""
        try:
            return self._way.sum(round, cohort)
        except NotTogether as error:
            self._way = self._after(error)
            warnings.warn(self.remark, RuntimeWarning, stacklevel=2)
            return self.sum(round, cohort)
