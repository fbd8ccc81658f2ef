"""A client's targets, looked at before they are computed with."""

from __future__ import annotations

from fedpart.data.dataset import Dataset
from fedpart.data.rounding import check_examples
from fedpart.task.task import Task


class Checked:
    """Clients' data whose targets have been looked at: once for each client and use, in this process.

    Args:
        task: whose likelihood looks.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._seen: set[tuple[int, str]] = set()

    def __call__(self, client: int, data: Dataset, use: str = "training") -> Dataset:
        """``data`` as they are.

        Raises:
            ValueError: see :meth:`.Likelihood.check` and :func:`.check_examples`.
        """
        if (client, use) not in self._seen:
            check_examples(data, self._task.dtype)
            with self._task.likelihood_at(None) as likelihood:
                likelihood.check(data.targets)
            self._seen.add((client, use))
        return data
