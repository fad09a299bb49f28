"""MCP servers on the hub: in this process, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer

from langgraph_durable.errors import (
    BadInput,
    NotApproved,
    ToolError,
    ToolUnreachable,
    UnknownTool,
)
from langgraph_durable.integrations.mcp import McpServer
from langgraph_durable.runs import Effect
from langgraph_durable.tools import (
    Approval,
    CallInfo,
    ToolHub,
    digest,
)

sys.path.insert(0, str(Path(__file__).parent))
from mcp_billing import make_server  # also started as a script of its own

SCRIPT = str(Path(__file__).with_name("mcp_billing.py"))
INFO = CallInfo("run_1", "t_acme", "support", "refund:1", fencing_token=7)
PAY = {"invoice": "inv_1", "cents": 4200}
EFFECTS = {
    "invoices": "read",
    "refund": "idempotent",
    "slow": "once",
    "fail": "read",
    "text": "read",
    "picture": "read",
    "die": "once",
}


def stdio() -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=[SCRIPT, "stdio"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def http(port: int) -> Iterator[str]:
    """Run the billing server over HTTP in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "http", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < until, "the server did not start"
                assert process.poll() is None, "the server ended"
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def log() -> list[Any]:
    return []


@pytest.fixture
def local(log: list[Any]) -> MCPServer[Any]:
    return make_server(log)


async def mounted(target: Any, **options: Any) -> ToolHub:
    hub = ToolHub()
    timeout = options.pop("timeout_seconds", 20)
    options.setdefault("effects", EFFECTS)
    hub.mount(McpServer("billing", target, timeout_seconds=timeout), **options)
    return hub


@pytest.fixture
async def hub(local: MCPServer[Any]) -> AsyncIterator[ToolHub]:
    made = await mounted(local)
    yield made
    await made.aclose()


# --- what reaches the server -----------------------------------------------------------


@pytest.mark.promise("S-41")
@pytest.mark.promise("S-16")
async def test_key_token_and_approval_reach_the_server(hub):
    ask = Approval("ap_1", "t_acme", "run_1", "refund:1", "billing.refund", digest(PAY))
    answer = await hub.call("refund", PAY, replace(INFO, approval=ask))
    assert (answer["key"], answer["token"]) == ("run_1:refund:1", 7)
    assert answer["meta"] == {
        "langgraph-durable/idempotency_key": "run_1:refund:1",
        "langgraph-durable/fencing_token": 7,
        "langgraph-durable/run_id": "run_1",
        "langgraph-durable/tenant": "t_acme",
        "langgraph-durable/approval_id": "ap_1",
    }


async def test_a_model_never_sees_nor_chooses_the_key(hub, log):
    await hub.ready()
    (shown,) = [t["function"] for t in hub.as_langchain(["refund"])]
    assert set(shown["parameters"]["properties"]) == set(shown["parameters"]["required"])
    assert set(shown["parameters"]["properties"]) == {"invoice", "cents"}
    for extra in ("idempotency_key", "fencing_token"):
        with pytest.raises(BadInput, match="made by the runtime"):
            await hub.call("refund", {**PAY, extra: "mine"}, INFO)
    with pytest.raises(BadInput, match="'cents'"):
        await hub.call("refund", {**PAY, "cents": "all"}, INFO)
    assert log == []


# --- what comes back -------------------------------------------------------------------


async def test_results_are_plain_values(hub):
    found = await hub.call("billing.invoices", {"customer": "c"}, INFO)
    assert found["invoices"] == [{"id": "inv_1", "cents": 4200}]
    assert await hub.call("text", {}, INFO) == "one\ntwo"
    (picture,) = await hub.call("picture", {}, INFO)
    assert (picture["type"], picture["mimeType"]) == ("image", "image/png")


async def test_an_error_that_the_tool_reports_is_a_tool_error(hub):
    with pytest.raises(ToolError, match="the invoice is closed") as caught:
        await hub.call("fail", {}, INFO)
    assert (caught.value.tool, caught.value.key) == ("billing.fail", "refund:1")
    assert not isinstance(caught.value, ToolUnreachable)


# --- whom to believe -------------------------------------------------------------------


@pytest.mark.promise("S-70")
async def test_an_undeclared_tool_of_an_untrusted_server_is_refused(local, log):
    hub = await mounted(local, effects={"invoices": "read"})
    with pytest.raises(BadInput, match="effects="):
        await hub.call("refund", PAY, INFO)
    assert log == []
    await hub.aclose()


async def test_a_trusted_servers_annotations_are_effects(local):
    hub = await mounted(local, effects={}, trusted=True)
    await hub.ready()
    said = {spec.name: (spec.effect, spec.asks) for spec in hub.specs()}
    assert said["invoices"] == (Effect.READ, False)  # a read destroys nothing, whatever it says
    assert said["refund"] == (Effect.IDEMPOTENT, True)
    assert said["slow"] == (Effect.ONCE, False)
    with pytest.raises(NotApproved):
        await hub.call("refund", PAY, INFO)
    await hub.aclose()


async def test_a_declaration_beats_an_annotation(local):
    hub = await mounted(local, effects={"refund": "once"}, trusted=True)
    await hub.ready()
    assert (hub.spec("refund").effect, hub.spec("refund").asks) == (Effect.ONCE, False)
    await hub.aclose()


async def test_a_tool_that_the_server_has_not_is_unknown(local):
    hub = await mounted(local, effects={"refnud": "once", "invoices": "read"})
    with pytest.raises(UnknownTool, match=r"billing\.invoices"):
        await hub.call("refnud", {}, INFO)
    await hub.aclose()


# --- the session -----------------------------------------------------------------------


async def test_many_tasks_share_one_session_and_any_may_be_cancelled(hub, log):
    slow = asyncio.create_task(hub.call("slow", {"seconds": 30}, INFO))
    while "slow" not in log:  # noqa: ASYNC110  # the tool runs on the same loop, and tells nobody
        await asyncio.sleep(0.01)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    calls = [hub.call("invoices", {"customer": str(n)}, INFO) for n in range(20)]
    assert len(await asyncio.gather(*calls)) == 20


async def test_an_overdue_answer_leaves_the_outcome_unknown_and_the_session_whole(local, log):
    hub = await mounted(local, timeout_seconds=0.2)
    with pytest.raises(ToolUnreachable, match="may have run") as late:
        await hub.call("slow", {"seconds": 30}, INFO)
    assert late.value.outcome_unknown
    assert log == ["slow"]
    assert await hub.call("text", {}, INFO) == "one\ntwo"
    await hub.aclose()


def test_each_event_loop_has_a_session_of_its_own(local):
    hub = ToolHub()
    hub.mount(McpServer("billing", local), effects=EFFECTS)
    for _ in range(2):
        # ended by the loop's own end, not by aclose
        assert asyncio.run(hub.call("text", {}, INFO)) == "one\ntwo"


async def test_a_closed_session_is_opened_again(hub):
    assert await hub.call("text", {}, INFO) == "one\ntwo"
    await hub.aclose()
    await hub.aclose()
    assert await hub.call("text", {}, INFO) == "one\ntwo"


async def test_a_server_that_cant_be_started_is_unreachable_and_nothing_was_called():
    missing = StdioServerParameters(command="/no/such/command")
    hub = await mounted(missing)
    for _ in range(2):
        with pytest.raises(ToolUnreachable, match="can't be reached") as down:
            await hub.call("text", {}, INFO)
        assert not down.value.outcome_unknown
    await hub.aclose()


async def test_a_server_that_never_answers_is_unreachable_in_time():
    silent = StdioServerParameters(
        command=sys.executable, args=["-c", "import time; time.sleep(60)"]
    )
    server = McpServer("billing", silent, connect_timeout_seconds=0.5)
    with pytest.raises(ToolUnreachable, match="can't be reached"):
        await server.tools()
    await server.aclose()


async def test_over_stdio_a_dead_server_is_started_again():
    hub = await mounted(stdio())
    first = await hub.call("invoices", {"customer": "c"}, INFO)
    with pytest.raises(ToolUnreachable) as broken:
        await hub.call("die", {}, INFO)
    assert broken.value.outcome_unknown
    second = await hub.call("invoices", {"customer": "c"}, INFO)
    assert second["pid"] != first["pid"]
    await hub.aclose()


async def test_over_http_a_restarted_server_is_reached_again():
    port = free_port()
    hub = await mounted(f"http://127.0.0.1:{port}/mcp")
    with pytest.raises(ToolUnreachable, match="can't be reached") as down:
        await hub.call("refund", PAY, INFO)
    assert not down.value.outcome_unknown
    with http(port):
        answer = await hub.call("refund", PAY, INFO)
        assert answer["key"] == "run_1:refund:1"
        with pytest.raises(ToolUnreachable) as broken:
            await hub.call("die", {}, INFO)
        assert broken.value.outcome_unknown
    for _ in range(2):
        with pytest.raises(ToolUnreachable):
            await hub.call("text", {}, INFO)
    with http(port):
        assert await hub.call("text", {}, INFO) == "one\ntwo"
    await hub.aclose()


async def test_a_transport_of_the_callers_own_is_made_for_each_session():
    made = []
    with http(free_port()) as url:

        def transport() -> Any:
            made.append(url)
            return streamable_http_client(url)

        hub = await mounted(transport)
        assert await hub.call("text", {}, INFO) == "one\ntwo"
        await hub.aclose()
        assert await hub.call("text", {}, INFO) == "one\ntwo"
        await hub.aclose()
    assert len(made) == 2
