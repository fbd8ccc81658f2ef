"""Messages outside of Flower's own runtimes, for a grid that runs clients by itself.

The fault: a message takes its run and its sender from an identity that only Flower's runtimes give to a
process, and only they can give it an id, or another time. Without the identity it cannot be made.

The test: ``test_faults.py::test_messages_need_an_identity_that_nobody_else_can_give``.
"""

from __future__ import annotations

from typing import Any

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.constant import ErrorCode as ErrorCode
from flwr.supercore.run import Run as Run
from flwr.supercore.task_identity import TaskIdentity

RUN_ID = 1


def claim_identity(run_id: int = RUN_ID) -> None:
    """Let this process make messages, as the server of a run."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, SUPERLINK_NODE_ID


def identify(message: Message, id: str) -> None:
    """Give a message its id."""
    message.metadata.__dict__["_message_id"] = id


def make_message(
    metadata: Metadata, content: RecordDict | None = None, error: Error | None = None
) -> Message:
    """A message with these metadata, and either content or an error."""
    kind: Any = Message
    made: Message = kind(metadata=metadata, content=content, error=error)
    return made
