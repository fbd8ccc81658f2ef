"""Calls of Flower's APIs: where they go, what a stream of answers is made of, what a refusal says."""

import httpx
import pytest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER, TaskType
from flwr.supercore.protobuf.framing import frame_message
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from fedpart.flower.workarounds.protocol import CLIENT_APP, NODE_KEY, TASK_TOKEN, ApiCalls, message, refusal


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
