"""A SuperLink's side of the Runtime API, with nodes behind it that may push any tree of objects."""

from flwr.app import Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse, PushObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import GetNodesResponse, PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, validate_object_content
from flwr.superlink.grid.http_grid import HttpGrid
from inprocess_grid import InProcessGrid

from fedpart.flower.workarounds.objects import RUN_ID, Run, identify


class Link:
    """What a real one answers, as far as a grid asks; ``tamper`` changes replies before they are pushed."""

    def __init__(self, nodes: InProcessGrid, tamper=None):
        self.nodes, self.tamper = nodes, tamper
        self.objects: dict[str, bytes] = {}
        self.held = set()  # ids of objects that have been announced and not pushed
        self.unasked, self.confirmed = [], []  # replies that come with what is pulled next; ids
        self.instructions: dict[str, ObjectTree] = {}

    def grid(self):
        """Flower's own, connected to this."""
        grid = HttpGrid(token="token")
        grid._client = self
        grid.set_run(Run.create_empty(RUN_ID))
        return grid

    def store(self, content):
        validate_object_content(content)
        self.objects[get_object_id(content)] = content

    def GetNodes(self, request):
        return GetNodesResponse(nodes=[NodeInfo(node_id=node) for node in self.nodes.nodes])

    def PushMessages(self, request):
        trees = request.message_object_trees
        self.instructions |= {tree.object_id: tree for tree in trees}
        wanted = {node.object_id for tree in trees for node in iterate_object_tree(tree)}
        return PushAppMessagesResponse(
            message_ids=[tree.object_id for tree in trees], objects_to_push=wanted, session_id="session"
        )

    def PushObject(self, request):
        self.store(request.object_content)
        return PushObjectResponse(stored=True)

    def PullMessages(self, request):
        asked = [id for id in self.instructions if id in request.message_ids]
        replies = [*(self.answer(self.instructions.pop(id)) for id in asked), *self.unasked]
        self.unasked = []
        return PullAppMessagesResponse(
            messages_list=[proto for proto, _ in replies], message_object_trees=[tree for _, tree in replies]
        )

    def answer(self, tree):
        contents = {node.object_id: self.objects[node.object_id] for node in iterate_object_tree(tree)}
        instruction = inflate_object_from_contents(tree.object_id, contents)
        identify(instruction, tree.object_id)
        reply = self.nodes._answer(instruction)
        root = reply
        if self.tamper is not None and reply.metadata.message_type == "train":
            root = self.tamper(reply) or reply
        return self.push(reply, root)

    def push(self, reply, root):
        """A node announces ``reply``, and pushes the objects of which ``root`` consists."""
        for part in get_all_nested_objects(root).values():
            self.store(part.deflate())
        metadata = reply.metadata
        proto = message_to_proto(Message(metadata=metadata, content=RecordDict()))
        proto.metadata.message_id = root.object_id
        return proto, get_object_tree(root)

    def PullObject(self, request):
        if request.object_id in self.held:
            return PullObjectResponse(object_found=True, object_available=False)
        found = request.object_id in self.objects
        return PullObjectResponse(
            object_found=found,
            object_available=found,
            object_content=self.objects.get(request.object_id, b""),
        )

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)
