"""A SuperNode's state with a message, and the task of the ClientApp that is to answer it."""

from datetime import timedelta
from types import SimpleNamespace

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import Status
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.superexec.executor import ExecutionSpec
from flwr.supernode import start_client_internal

from fedpart.flower.workarounds.objects import RUN_ID, claim_identity, identify

REQUEST = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])


class OneMessage:
    """The message has come, and its task has been acquired; ``kind`` is the class of the state."""

    def __init__(self, kind):
        claim_identity()
        self.state = kind(InMemoryObjectStore())
        self.state.set_node_id(1)
        self.message = Message(RecordDict(), 1, "train")
        identify(self.message, self.message.object_id)
        self.task = self.new_task()
        self.state.store_message(self.message)

    def new_task(self):
        task = self.state.create_task(TaskType.CLIENT_APP, RUN_ID, "hash")
        assert self.state.claim_task(task) and self.state.activate_task(task)
        return task

    def fetched(self):
        assert self.state.get_messages_legacy(run_ids=[RUN_ID], is_reply=False) == [self.message]

    def reply(self):
        """An answer whose objects are to come."""
        reply = Message(RecordDict({"part": ConfigRecord({"a": 1})}), reply_to=self.message)
        identify(reply, reply.object_id)
        session = self.state.start_session(RUN_ID)
        assert self.state.store_message_and_object_tree(reply, get_object_tree(reply), session)[0]
        return reply

    def put(self, reply):
        """The objects of a reply come."""
        for id, object in get_all_nested_objects(reply).items():
            self.state.object_store.put(id, object.deflate())

    def forget(self, task):
        """Nobody says any more that a task is under way."""
        self.state.task_token_store[task].active_until = now() - timedelta(seconds=1)

    def replies(self):
        return self.state.get_messages_legacy(is_reply=True)

    def pending(self):
        return self.state.get_tasks(statuses=[Status.PENDING])


def clientapp(task):
    """What an executor is told of a ClientApp's task."""
    token = f"token-{task}"
    return ExecutionSpec(TaskType.CLIENT_APP, "127.0.0.1:1", token, True, None, False, None, False, task)


def receive_until_the_run_ends(node):
    """Flower's SuperNode receives a message whose parts it is refused, since the run has ended."""

    def refuse(*_):
        raise RunNotRunningException

    message = Message(RecordDict(), 1, "train")
    identify(message, "f" * 64)
    received = message, ObjectTree(object_id="f" * 64)
    node.state.get_run = lambda run: SimpleNamespace(fab_hash="hash", primary_task_type=TaskType.SERVER_APP)
    return start_client_internal._pull_and_store_message(
        state=node.state, object_store=node.state.object_store, node_config={}, receive=lambda: received,
        get_run=refuse, get_fab=refuse, pull_object=refuse, confirm_message_received=refuse,
        trusted_entities=None,
    )  # fmt: skip
