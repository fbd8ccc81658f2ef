"""Labels: what methods ask of a task whose logits of classes they look into."""

from __future__ import annotations

from fedpart.task.task import Task


def check_logits(task: Task, what: str) -> None:
    """Refuse a task whose outputs are not the logits of one class per example.

    Args:
        what: a clause that says what is done with them, for the message.

    Raises:
        ValueError: one sentence.
    """
    if (found := (task.likelihood_name, task.average)) != ("classification", "logits"):
        raise ValueError(
            f"{what} of classes, but the likelihood is {found[0]} with the average {found[1]}; use "
            f"classification with average logits, or leave that option out."
        )
