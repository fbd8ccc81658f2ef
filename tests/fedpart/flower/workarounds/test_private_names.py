"""Flower's private names: how many of them we use, where, and that they are still there."""

import ast
import re

import httpx
import pytest
from flwr.app import Metadata
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER, TaskType
from flwr.supercore.protobuf.framing import frame_message
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supercore.state.schema.linkstate_models import LinkStateBase
from flwr.supercore.state.schema.objectstore_models import ObjectStoreBase
from flwr.superlink.servicer.fleet import fleet_handlers
from places import ROOT
from private_names import exists, private_names

from fedpart.flower.workarounds.database import CHILDREN, STORED
from fedpart.flower.workarounds.protocol import (
    CLIENT_APP,
    NODE_KEY,
    TASK_TOKEN,
    ApiCalls,
    message,
    patch,
    refusal,
)

MOST = 48  # names
METADATA = {"_message_id", "_reply_to_message_id"}  # of a message
ATTRIBUTES = {  # of modules and classes, which raise where there are none
    *("_mutation_session", "_on_task_tokens_expired", "_pull_and_store_message", "_runtime_client")
}
TABLES = {"message_ins", "message_res", "object_children", "objects"}  # of a SuperLink's database
WORKAROUNDS = ROOT / "fedpart" / "flower" / "workarounds"
ROOMS = ("fedpart", "server", "client", "simulations", "benchmarks")


def test_workarounds_alone_use_private_names_a_bounded_number_that_are_still_there():
    used = {file: private_names(file) for room in ROOMS for file in (ROOT / room).rglob("*.py")}
    assert {file for file, names in used.items() if names and WORKAROUNDS not in file.parents} == set()
    names = set().union(*used.values())
    assert len(names) <= MOST
    assert [name for name in names if not exists(name)] == []


def test_workarounds_reach_for_these_attributes_and_tables_which_are_still_there():
    code = "".join(file.read_text() for file in WORKAROUNDS.glob("*.py"))
    attributes = set(re.findall(r'(?:(?<!self)\.|")(_[a-z]\w*)', code))
    assert attributes == METADATA | ATTRIBUTES
    assert set(re.findall(r'(?:FROM |table="|table\(")(\w+)', code)) == TABLES
    assert vars(Metadata(1, "", 1, 1, "", "", 0.0, 1.0, "train")).keys() >= METADATA
    assert {*LinkStateBase.metadata.tables, *ObjectStoreBase.metadata.tables} >= TABLES
    for ours in (STORED, CHILDREN):
        assert ours.c.keys() == ObjectStoreBase.metadata.tables[ours.name].c.keys()


def test_nothing_is_put_in_the_place_of_what_is_not_there():
    with pytest.raises(AttributeError, match="push_everything"):
        patch(fleet_handlers, push_everything=print)


@pytest.mark.slow
def test_the_messages_that_are_named_are_those_of_the_protocol():
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    names = {name for file in files for name in named_messages(file)}
    assert {"ObjectTree", "ListNodesRequest", "ListNodesResponse"} <= names
    for name in names:
        assert message(name).DESCRIPTOR.full_name == f"flwr.proto.{name}"


def named_messages(file):
    """Messages of the protocol that a file names, and those of the calls that it makes."""
    for call in ast.walk(ast.parse(file.read_text())):
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
            made, name = ast.unparse(call.func), call.args[0].value
            if made in ("message", "of_protocol"):
                yield name
            elif made in ("self._call", "self._call.stream") and isinstance(name, str):
                yield from (f"{name}Response", *([] if call.args[1:] else [f"{name}Request"]))


def test_a_name_that_is_gone_is_noticed(tmp_path):
    (tmp_path / "file.py").write_text("from flwr.app import Message, nothing\nimport flwr.nowhere\n")
    assert private_names(tmp_path / "file.py") == {"flwr.app.nothing", "flwr.nowhere"}
    assert not any(map(exists, ("flwr.app.nothing", "flwr.nowhere.name")))


def calls(answer):
    """Of a server that answers so."""
    made = ApiCalls("control", "127.0.0.1:1", None, lambda: {"authorization": "Bearer me"}, insecure=True)
    given = {"base_url": made._client.base_url, "headers": made._client.headers}
    made._client = httpx.Client(transport=httpx.MockTransport(answer), **given)
    return made


def test_words_of_the_protocol_are_flowers():
    assert (NODE_KEY, TASK_TOKEN) == (FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER)
    assert CLIENT_APP == TaskType.CLIENT_APP


def test_a_call_is_what_flower_takes_for_it():
    seen = []

    def answer(request):
        seen.append(request)
        return httpx.Response(200, content=message("ListRunsResponse")(now="today").SerializeToString())

    assert calls(answer)("ListRuns", run_id=7).now == "today"
    (request,) = seen
    kind = PROTOBUF_REQUEST_TYPES["POST", request.url.path]
    assert kind.FromString(request.content).run_id == 7
    assert request.headers["authorization"] == "Bearer me"
    about, wrong = RuntimeVersionMetadata.from_metadata(list(request.headers.items()))
    assert wrong is None and about == RuntimeVersionMetadata.from_local_component("fedpart")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_is_read_in_whatever_pieces_it_comes(size):
    parts = [message("StreamLogsResponse")(log_output=text) for text in ("a", "b" * 300, "")]
    content = b"".join(frame_message(part) for part in parts)
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    made = calls(lambda request: httpx.Response(200, content=iter(pieces)))
    assert list(made.stream("StreamLogs", run_id=1)) == parts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"code": 23, "detail": "It is in use."}', "It is in use."),
        (b"[]", "status 400"),
        (b"?", "status 400"),
    ],
)
def test_a_refusal_says_why(content, says, stream):
    made = calls(lambda request: httpx.Response(400, content=content))
    with pytest.raises(httpx.HTTPStatusError) as refused:
        list(made.stream("StreamLogs", run_id=1)) if stream else made("ListNodes")
    assert refusal(refused.value.response) == says
