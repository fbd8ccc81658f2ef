"""Nodes whose keys are registered: a key is one client's, whatever its node says."""

import pytest
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo

from server.nodes import Nodes, NodesError
from tests.flower_experiment import app
from tests.inprocess_grid import InProcessGrid

CLIENTS = 3


class RegisteredGrid(InProcessGrid):
    """A grid of nodes with registered keys.

    Args:
        names: of the registrations, by what the node says of itself, its partition-id.
    """

    def __init__(self, names):
        super().__init__(app, 0)
        self.names = {}
        for client, name in names:
            node = self.join({"partition-id": client, "num-partitions": CLIENTS})
            self.names[node] = name

    def get_nodes(self):
        return [NodeInfo(node_id=node, name=self.names[node]) for node in self.get_node_ids()]

    def named(self, name):
        return next(node for node, its in self.names.items() if its == name)


def honest():
    return [(client, f"client-{client}") for client in range(CLIENTS)]


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("name", ["client-3", "client-0", "somebody", ""])
def test_a_node_that_claims_the_number_of_another_is_refused_and_the_others_stay(name, lenient, caplog):
    grid = RegisteredGrid([*honest(), (1, name)])
    nodes = Nodes(CLIENTS, wait=0.0, lenient=lenient).wait_for(grid, range(CLIENTS))
    assert nodes == {0: nodes[0], 1: grid.named("client-1"), 2: grid.named("client-2")}
    assert grid.names[nodes[0]] == "client-0"


def test_its_own_number_is_missing_then():
    grid = RegisteredGrid([(0, "client-0"), (0, "client-1"), (2, "client-2")])
    with pytest.raises(NodesError, match=r"2 of the 3 configured clients are connected \(missing: 1\)"):
        Nodes(CLIENTS, wait=0.0, lenient=False).wait_for(grid, range(CLIENTS))


def test_a_node_that_does_not_answer_holds_nothing_up_and_is_in_once_it_has_answered():
    grid = RegisteredGrid(honest())
    silent, pull, held = grid.named("client-1"), grid.pull_messages, []

    def hold(ids):
        answers = pull(ids)
        held.extend(one for one in answers if one.metadata.src_node_id == silent)
        return [one for one in answers if one.metadata.src_node_id != silent]

    grid.pull_messages = hold
    nodes = Nodes(CLIENTS, wait=1000.0, lenient=True)
    assert list(nodes.present(grid)) == list(nodes.present(grid)) == [0, 2]
    grid.pull_messages = lambda ids: held
    assert list(nodes.present(grid)) == [0, 1, 2]
    assert len(grid.sent) == CLIENTS, "nobody is asked twice"


@pytest.mark.parametrize("code", [ErrorCode.NODE_UNAVAILABLE, ErrorCode.CLIENT_APP_CRASHED])
def test_a_node_whose_answer_got_lost_is_asked_again(code):
    grid = RegisteredGrid(honest())
    answer, killed = grid._answer, grid.named("client-1")

    def once(message):
        if message.metadata.dst_node_id == killed and len(grid.sent) <= CLIENTS:
            return Message(Error(code=code), reply_to=message)
        return answer(message)

    grid._answer = once
    nodes = Nodes(CLIENTS, wait=0.0, lenient=False)
    assert list(nodes.present(grid)) == [0, 2]
    assert list(nodes.present(grid)) == [0, 1, 2]


def test_names_that_are_no_clients_bind_nothing():
    grid = RegisteredGrid([(client, f"machine {client}") for client in range(CLIENTS)])
    assert list(Nodes(CLIENTS, wait=0.0, lenient=False).present(grid)) == [0, 1, 2]
