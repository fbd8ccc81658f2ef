"""Flower's private names: which of them we use, where, and that they are still there."""

import re

import pytest
from flwr.app import Metadata
from flwr.supercore.state.schema.linkstate_models import LinkStateBase
from flwr.supercore.state.schema.objectstore_models import ObjectStoreBase
from places import ROOT
from private_names import exists, private_names

USED = """
flwr.app.message.arraychunk: ArrayChunk
flwr.app.message.message: make_message
flwr.app.metadata: validate_message_type
flwr.cli.build: build_fab_from_disk
flwr.common.constant: ACCESS_TOKEN_KEY ErrorCode FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE SUPERLINK_NODE_ID
    Status SubStatus
flwr.common.serde: array_to_proto fab_to_proto recorddict_to_proto user_config_from_proto
    user_config_to_proto
flwr.common.serde_utils: error_to_proto metadata_from_proto metadata_to_proto
flwr.proto.control_pb2: ListNodesRequest ListRunsRequest RegisterNodeRequest StartRunRequest
    StreamLogsRequest UnregisterNodeRequest
flwr.proto.fleet_pb2: PullMessagesRequest PullMessagesResponse PushMessagesRequest PushMessagesResponse
flwr.proto.message_pb2: ConfirmMessageReceivedRequest Message ObjectTree PushObjectRequest
    PushObjectResponse
flwr.proto.node_pb2: NodeInfo
flwr.proto.runtime_pb2: AcquireTaskRequest AcquireTaskResponse PullAppMessagesRequest
    PullAppMessagesResponse PushAppMessagesRequest
flwr.proto.task_pb2: Task
flwr.server.superlink.linkstate: LinkState SqlLinkState
flwr.supercore.app_utils: start_parent_process_monitor
flwr.supercore.auth.typing: AccountInfo
flwr.supercore.cli.flower_superexec: flower_superexec
flwr.supercore.constant: FLEET_HTTP_PUBLIC_KEY_HEADER TASK_TOKEN_HEADER TaskType
flwr.supercore.control: ControlHttpClient
flwr.supercore.corestate: sql_corestate
flwr.supercore.date: now
flwr.supercore.error.base: FlowerError
flwr.supercore.exit.exit_handler: trigger_exit_handlers
flwr.supercore.fab: Fab
flwr.supercore.inflatable.inflatable_object: get_object_body get_object_head_values_from_object_content
    get_object_id get_object_tree get_object_type_from_object_content iterate_object_tree
flwr.supercore.inflatable.inflatable_protobuf_utils: make_pull_object_fn_protobuf
flwr.supercore.inflatable.inflatable_utils: ObjectPullError ObjectUnavailableError
    inflate_object_from_contents pull_objects
flwr.supercore.interceptors: RuntimeTokenHttpInterceptor RuntimeVersionHttpInterceptor
flwr.supercore.object_store: NoObjectInStoreError ObjectStore
flwr.supercore.object_store.sql_object_store: SqlObjectStore
flwr.supercore.primitives.asymmetric: public_key_to_bytes
flwr.supercore.run: Run RunNotRunningException
flwr.supercore.runtime.runtime_http_client: RuntimeHttpClient
flwr.supercore.state.schema.objectstore_models: ObjectChild StoredObject
flwr.supercore.superexec: run_superexec
flwr.supercore.superexec.executor: ExecutionSpec LaunchResult SubprocessExecutor subprocess_executor
flwr.supercore.superexec.plugin: AutoExecPlugin
flwr.supercore.task_identity: TaskIdentity
flwr.supercore.tls: validate_and_resolve_root_certificates
flwr.supercore.utils: int64_to_uint64
flwr.superlink: extensions
flwr.superlink.auth_plugin: NoOpControlAuthnPlugin
flwr.superlink.cli: flower_superlink
flwr.superlink.dependencies.linkstate: get_linkstate
flwr.superlink.grid: http_grid
flwr.superlink.grid.http_grid: HttpGrid
flwr.superlink.routers.control.middlewares: CONTROL_AUTH_ROUTE_KEYS
flwr.superlink.routers.fleet: node_auth
flwr.superlink.servicer.fleet: fleet_handlers
flwr.superlink.servicer.runtime: runtime_handlers
flwr.supernode: start_client_internal
flwr.supernode.cli: flower_supernode
flwr.supernode.nodestate: nodestate_factory
flwr.supernode.nodestate.in_memory_nodestate: InMemoryNodeState
flwr.supernode.runtime: run_clientapp
flwr.supernode.servicer.runtime: runtime_handlers
"""  # a module, and names in it
PATCHED = (  # that we call, replace, set or inherit, and that no import mentions
    "flwr.superlink.cli.flower_superlink.load_control_authn_plugin",
    "flwr.superlink.cli.flower_superlink.flower_superlink",
    "flwr.superlink.cli.flower_superlink.uvicorn",
    "flwr.superlink.extensions.get_middleware",
    "flwr.superlink.routers.fleet.node_auth.authenticate_node",
    "flwr.superlink.servicer.fleet.fleet_handlers.check_abort",
    "flwr.superlink.servicer.fleet.fleet_handlers.push_messages",
    "flwr.superlink.servicer.runtime.runtime_handlers.push_messages",
    "flwr.supercore.object_store.sql_object_store.SqlObjectStore._mutation_session",
    "flwr.superlink.grid.http_grid.HttpGrid._runtime_client",
    "flwr.superlink.servicer.fleet.fleet_handlers.push_object",
    "flwr.superlink.servicer.fleet.fleet_handlers.pull_messages",
    "flwr.superlink.servicer.runtime.runtime_handlers.push_object",
    "flwr.superlink.servicer.runtime.runtime_handlers.pull_messages",
    "flwr.supernode.servicer.runtime.runtime_handlers.acquire_task",
    "flwr.supernode.nodestate.nodestate_factory.InMemoryNodeState",
    "flwr.supernode.nodestate.in_memory_nodestate.InMemoryNodeState._on_task_tokens_expired",
    "flwr.supernode.start_client_internal._pull_and_store_message",
    "flwr.supernode.start_client_internal.time",
    "flwr.supercore.superexec.run_superexec.get_executor",
    "flwr.supercore.superexec.run_superexec.AutoExecPlugin",
    "flwr.supercore.superexec.run_superexec.time",
    "flwr.supercore.superexec.executor.subprocess_executor.subprocess",
    "flwr.supercore.corestate.sql_corestate.secrets",
    "flwr.supercore.corestate.sql_corestate.SqlCoreState.claim_task",
    "flwr.supercore.corestate.sql_corestate.SqlCoreState.get_task_by_token",
    "flwr.supernode.runtime.run_clientapp.run_clientapp",
    "flwr.supernode.runtime.run_clientapp.push_task_output",
    "flwr.supernode.runtime.run_clientapp.flwr_exit",
)
METADATA = {"_message_id", "_reply_to_message_id"}  # of a message
TABLES = {"message_ins", "message_res", "objects"}  # of a SuperLink's database
MEASURED = {"flwr.supernode.cli", "flwr.supernode.runtime.run_clientapp"}  # how long their imports take
WORKAROUNDS = ROOT / "fedpart" / "flower" / "workarounds"
MEASURES = ROOT / "benchmarks" / "costs" / "client_start.py"
ABUSES = {
    ROOT / "benchmarks" / "checks" / name for name in ("hostile_node.py", "object_trees.py", "unruly_node.py")
}
ROOMS = ("fedpart", "server", "client", "simulations", "benchmarks")


def expected():
    """What ``USED`` lists, each with its module."""
    module = ""
    for word in USED.split():
        if word.endswith(":"):
            module = word[:-1]
        else:
            yield f"{module}.{word}"


def test_workarounds_use_these_and_nobody_else_any():
    used = {file: private_names(file) for room in ROOMS for file in (ROOT / room).rglob("*.py")}
    ours = [names for file, names in used.items() if WORKAROUNDS in file.parents]
    assert set().union(*ours) == set(expected())
    others = {file: names for file, names in used.items() if names and WORKAROUNDS not in file.parents}
    assert {file: names for file, names in others.items() if file not in ABUSES} == {MEASURES: MEASURED}


def test_workarounds_reach_for_these_attributes_and_tables_which_are_still_there():
    code = "".join(file.read_text() for file in WORKAROUNDS.glob("*.py"))
    attributes = set(re.findall(r'(?:(?<!self)\.|")(_[a-z]\w*)', code))
    assert attributes == METADATA | {name.rpartition(".")[2] for name in PATCHED if "._" in name}
    assert set(re.findall(r'(?:FROM |table=")(\w+)', code)) == TABLES
    assert vars(Metadata(1, "", 1, 1, "", "", 0.0, 1.0, "train")).keys() >= METADATA
    assert {*LinkStateBase.metadata.tables, *ObjectStoreBase.metadata.tables} >= TABLES


@pytest.mark.parametrize("name", sorted({*expected(), *PATCHED, *MEASURED}))
def test_it_is_still_there(name):
    assert exists(name)


def test_a_name_that_is_gone_is_noticed(tmp_path):
    (tmp_path / "file.py").write_text("from flwr.app import Message, nothing\nimport flwr.nowhere\n")
    assert private_names(tmp_path / "file.py") == {"flwr.app.nothing", "flwr.nowhere"}
    assert not any(map(exists, ("flwr.app.nothing", "flwr.nowhere.name")))
