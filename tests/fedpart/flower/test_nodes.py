"""Nodes whose keys are registered: a key is one client's, whatever its node says."""

from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Error, Message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo

from fedpart.federated.wire import VERSION
from fedpart.flower import nodes
from fedpart.flower.nodes import Nodes, NodesError
from tests.flower_experiment import app
from tests.inprocess_grid import InProcessGrid

CLIENTS = 3


class RegisteredGrid(InProcessGrid):
    """Nodes with registered keys: of each its partition-id, and the name of its key."""

    def __init__(self, names):
        super().__init__(app, 0)
        self.names = {}
        for client, name in names:
            self.register(client, name)

    def register(self, client, name="", of=CLIENTS):
        node = self.join({"partition-id": client, "num-partitions": of})
        self.names[node] = name
        return node

    def get_nodes(self):
        return [NodeInfo(node_id=node, name=self.names[node]) for node in self.get_node_ids()]

    def client(self, client):
        return next(node for node, config in self.nodes.items() if config["partition-id"] == client)

    def named(self, name):
        return next(node for node, its in self.names.items() if its == name)


def honest():
    return [(client, f"client-{client}") for client in range(CLIENTS)]


def nodes_of(wait=0.0, lenient=True, **options):
    return Nodes(CLIENTS, wait=wait, lenient=lenient, **options)


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("name", ["client-3", "client-0", "somebody", ""])
def test_a_node_that_claims_the_number_of_another_is_refused_and_the_others_stay(name, lenient, caplog):
    grid = RegisteredGrid([*honest(), (1, name)])
    nodes = nodes_of(lenient=lenient).wait_for(grid, range(CLIENTS))
    assert nodes == {0: nodes[0], 1: grid.named("client-1"), 2: grid.named("client-2")}
    assert grid.names[nodes[0]] == "client-0"


def test_its_own_number_is_missing_then():
    grid = RegisteredGrid([(0, "client-0"), (0, "client-1"), (2, "client-2")])
    with pytest.raises(NodesError, match=r"2 of the 3 configured clients are connected \(missing: 1\)"):
        nodes_of(lenient=False).wait_for(grid, range(CLIENTS))


def test_a_node_that_does_not_answer_holds_nothing_up_and_is_in_once_it_has_answered():
    grid = RegisteredGrid(honest())
    silent, pull, held = grid.named("client-1"), grid.pull_messages, []

    def hold(ids):
        answers = pull(ids)
        held.extend(one for one in answers if one.metadata.src_node_id == silent)
        return [one for one in answers if one.metadata.src_node_id != silent]

    grid.pull_messages = hold
    nodes = nodes_of(1000.0)
    assert list(nodes.present(grid)) == list(nodes.present(grid)) == [0, 2]
    grid.pull_messages = lambda ids: held
    assert list(nodes.present(grid)) == [0, 1, 2]
    assert len(grid.sent) == CLIENTS, "nobody is asked twice"


def test_so_many_are_asked_at_a_time_and_who_does_not_answer_holds_up_the_others_for_seconds(monkeypatch):
    monkeypatch.setattr(nodes, "TOGETHER", 2)
    clock = [100.0]
    monkeypatch.setattr(nodes, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    grid = RegisteredGrid(honest())
    pull, grid.pull_messages = grid.pull_messages, lambda ids: []
    clients = nodes_of(1000.0)
    assert not clients.present(grid) and not clients.present(grid)
    assert len(grid.sent) == 2
    clock[0] += nodes.PATIENCE
    assert not clients.present(grid)
    assert len(grid.sent) == CLIENTS
    grid.pull_messages = pull
    assert list(clients.present(grid)) == [0, 1, 2]


def test_two_nodes_that_are_there_together_are_not_the_same_client_though_they_are_asked_apart(monkeypatch):
    monkeypatch.setattr(nodes, "TOGETHER", 1)
    grid = RegisteredGrid([(0, ""), (0, ""), (2, "")])
    clients = nodes_of(1000.0, lenient=False)
    with pytest.raises(NodesError, match=r"both say that they are client 0"):
        for _ in range(CLIENTS):
            clients.present(grid)


@pytest.mark.parametrize("code", [ErrorCode.NODE_UNAVAILABLE, ErrorCode.CLIENT_APP_CRASHED])
def test_a_node_whose_answer_got_lost_is_asked_again(code):
    grid = RegisteredGrid(honest())
    answer, killed = grid._answer, grid.named("client-1")

    def once(message):
        if message.metadata.dst_node_id == killed and len(grid.sent) <= CLIENTS:
            return Message(Error(code=code), reply_to=message)
        return answer(message)

    grid._answer = once
    nodes = nodes_of(lenient=False)
    assert list(nodes.present(grid)) == [0, 2]
    assert list(nodes.present(grid)) == [0, 1, 2]


def test_names_that_are_no_clients_bind_nothing():
    grid = RegisteredGrid([(client, f"machine {client}") for client in range(CLIENTS)])
    assert list(nodes_of(lenient=False).present(grid)) == [0, 1, 2]


def test_any_name_of_a_client_binds_and_goes_on_binding():
    grid = RegisteredGrid([(0, "client-7")])
    nodes = nodes_of()
    assert nodes.present(grid) == {}
    grid.leave(0)
    grid.register(0, "machine")
    assert nodes.present(grid) == {}
    mine = grid.register(0, "client-0")
    assert nodes.present(grid) == {0: mine}


def test_nodes_without_such_names_leave_when_the_first_one_comes():
    grid = RegisteredGrid([(0, "machine"), (1, "")])
    nodes = nodes_of()
    assert list(nodes.present(grid)) == [0, 1]
    mine = grid.register(2, "client-2")
    assert nodes.present(grid) == nodes.present(grid) == {2: mine}


def test_late_joiners_without_any_of_the_run_are_of_another_federation():
    grid = RegisteredGrid([])
    for client in range(2 * CLIENTS):
        grid.register(client, of=2 * CLIENTS)
    nodes = nodes_of(late=True)
    says = r"^After 0 .* 0 of the 3 .* Refused: A node was started for 6 clients"
    with pytest.raises(NodesError, match=says):
        nodes.wait_for(grid, range(CLIENTS))
    mine = grid.register(1)
    assert nodes.present(grid) == {1: mine, **{client: grid.client(client) for client in (3, 4, 5)}}
    grid.leave(1)
    grid.leave(1)
    assert list(nodes.present(grid)) == [3, 4, 5], "the run has been seen"


def test_who_waits_is_told_why_nobody_is_there(monkeypatch, caplog):
    monkeypatch.setattr(nodes, "PROGRESS_SECONDS", 0.0)
    grid = RegisteredGrid([])
    for client in range(CLIENTS):
        grid.register(client, f"client-{client}", of=6)
    with caplog.at_level("INFO", "flwr"), pytest.raises(NodesError):
        nodes_of(0.1).wait_for(grid)
    assert "Waiting for clients: 0 of 3 are there. Refused: A node was started for 6 clients" in caplog.text


@pytest.mark.parametrize(
    ("client", "taken"), [(CLIENTS + 9_999, True), (CLIENTS + 10_000, False), (10**12, False)]
)
def test_late_joiners_have_numbers_that_chunks_can_be_kept_for(client, taken):
    grid = RegisteredGrid(honest())
    grid.register(client, f"client-{client}", of=10**13)
    nodes = nodes_of(late=True)
    assert (client in nodes.present(grid)) is taken
    assert list(nodes_of().present(grid)) == [0, 1, 2]


def test_any_one_client_is_enough_where_anybody_is_waited_for():
    grid = RegisteredGrid([(2, "client-2")])
    assert list(nodes_of(1000.0).wait_for(grid)) == [2]
    with pytest.raises(NodesError, match="missing: 0, 1, 2"):
        nodes_of().wait_for(RegisteredGrid([]))


@pytest.mark.parametrize("answer", [{}, {"client": True}, {"client": 1.0}, {"client": [1]}, {"clients": "3"}])
def test_answers_that_are_no_numbers_are_refused(answer, monkeypatch):
    grid = RegisteredGrid(honest())
    ask = grid._answer

    def odd(message):
        reply = ask(message)
        if reply.metadata.src_node_id == grid.named("client-1"):
            known = {"version": VERSION, "client": 1, "clients": 3}
            reply.content["config"] = ConfigRecord({**known, **answer} if answer else {})
        return reply

    monkeypatch.setattr(grid, "_answer", odd)
    assert list(nodes_of().present(grid)) == [0, 2]
