"""Two runs on one thread, a lease that is stolen, a cancel in the middle of a call."""

from __future__ import annotations

import asyncio
import operator
import threading
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from shop import AGENT, Shop, succeeded, waits

from langgraph_durable import Status, ToolHub, Worker, current_run
from langgraph_durable.errors import Conflict


class Notes(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]
    name: str


def chain(**nodes: Any) -> StateGraph[Notes]:
    graph = StateGraph(Notes)
    last = START
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(last, name)
        last = name
    return graph


# --- H-10 --------------------------------------------------------------------------------


def append(state: Notes) -> Notes:
    return {"notes": [state["name"]]}


@pytest.mark.promise("H-10")
def test_a_later_run_continues_the_conversation_of_its_thread(any_shop: Shop) -> None:
    shop = any_shop
    shop.deploy(chain(append=append), "graph")
    thread = f"t-{shop.url[-12:]}"
    shop.submit({"name": "r1"}, thread=thread)
    shop.submit({"name": "r2"}, thread=thread)
    assert succeeded(shop.work())["notes"] == ["r1", "r2"]


@pytest.mark.promise("H-10")
def test_two_workers_never_hold_one_thread_together(any_shop: Shop) -> None:
    shop = any_shop
    at_once, most = [0], [0]

    async def slow(state: Notes) -> Notes:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        await asyncio.sleep(0.1)
        at_once[0] -= 1
        return {"notes": [state["name"]]}

    shop.deploy(chain(slow=slow), "graph")
    for name in ("r1", "r2", "r3"):
        shop.submit({"name": name}, thread="shared")
    workers = [
        threading.Thread(target=Worker(shop.durable, lease_seconds=20).run_until_idle)
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert succeeded(shop.work())["notes"] == ["r1", "r2", "r3"]
    assert most == [1]


@pytest.mark.promise("H-10")
def test_a_run_that_waits_keeps_its_thread(shop: Shop) -> None:
    def gate(state: Notes) -> Notes:
        return {"notes": [f"{state['name']}: {interrupt(state['name'])}"]}

    shop.deploy(chain(gate=gate), "graph")
    first = shop.begin({"name": "r1"}, thread="t")
    waits(first)
    second = shop.submit({"name": "r2"}, thread="t")
    assert shop.work().status is Status.QUEUED
    shop.run_id = first.id
    shop.answer("one")
    shop.run_id = second
    waits(shop.work())
    assert succeeded(shop.answer("two"))["notes"] == ["r1: one", "r2: two"]


@pytest.mark.promise("H-10")
def test_a_second_run_is_refused_if_the_agent_says_so(shop: Shop) -> None:
    shop.deploy(chain(gate=lambda _: {"notes": [interrupt("?")]}), "graph", {"on_busy": "refuse"})
    shop.begin({"name": "r1"}, thread="t")
    with pytest.raises(Conflict, match="busy"):
        shop.durable.submit(AGENT, {"name": "r2"}, thread="t")


@pytest.mark.promise("H-10")
@pytest.mark.parametrize(
    ("one", "other"), [(("acme", "t"), ("globex", "t")), (("a/b", "d"), ("a", "b/d"))]
)
def test_two_tenants_with_one_thread_name_do_not_meet(
    shop: Shop, one: tuple[str, str], other: tuple[str, str]
) -> None:
    shop.deploy(chain(append=append), "graph")
    for tenant, thread in (one, other):
        shop.submit({"name": tenant}, tenant=tenant, thread=thread)
    assert succeeded(shop.work())["notes"] == [other[0]]


# --- H-09 --------------------------------------------------------------------------------


@pytest.mark.promise("H-09")
@pytest.mark.parametrize("when", ["in a node", "before a step"])
def test_a_worker_whose_lease_was_taken_writes_nothing(
    any_shop: Shop, mode: str, when: str
) -> None:
    shop = any_shop
    ran: list[str] = []
    stolen = [False]

    async def first(_state: Notes) -> Notes:
        ran.append("first")
        if not stolen[0]:
            stolen[0] = True
            await asyncio.to_thread(shop.steal)
        if when == "before a step":
            await current_run().once("step", lambda: ran.append("step"))
        return {"notes": ["first"]}

    async def second(_state: Notes) -> Notes:
        ran.append("second")
        return {"notes": ["second"]}

    shop.deploy(chain(first=first, second=second), mode)
    shop.submit({"notes": []})
    Worker(shop.durable, lease_seconds=20).run_once()
    run = shop.run
    assert (run.status, run.worker, run.output) == (Status.RUNNING, "thief", None)
    assert "second" not in ran or (mode, when) == ("steps", "in a node")
    assert shop.journal == {}
    shop.expire_lease()
    shop.restart()
    assert succeeded(shop.work())["notes"] == ["first", "second"]


# --- H-11 --------------------------------------------------------------------------------


def cancel_when(shop: Shop, begun: threading.Event) -> list[Status]:
    """Cancel the run as soon as a call is under way; returns what was seen meanwhile."""
    seen: list[Status] = []

    def go() -> None:
        assert begun.wait(10)
        shop.durable.cancel(shop.run_id, by="mei")
        for _ in range(8):
            seen.append(shop.run.status)
            time.sleep(0.05)

    threading.Thread(target=go).start()
    return seen


@pytest.mark.promise("H-11")
@pytest.mark.parametrize("kind", ["sync node", "sync tool of a ToolNode", "step"])
def test_a_cancel_waits_for_the_call_and_stands(shop: Shop, mode: str, kind: str) -> None:
    begun, log = threading.Event(), []

    def slow() -> str:
        begun.set()
        time.sleep(0.9)
        log.append("effect")
        return "done"

    @tool
    def lookup() -> str:
        """Look."""
        return slow()

    hub = ToolHub()
    hub.add(slow, effect="once", name="slow")

    def model(state: MessagesState) -> dict[str, Any]:
        """A model that refuses a conversation with calls that nobody answered."""
        answered = {m.tool_call_id for m in state["messages"] if isinstance(m, ToolMessage)}
        calls = [
            c["id"] for m in state["messages"] if isinstance(m, AIMessage) for c in m.tool_calls
        ]
        assert set(calls) <= answered, "an assistant message with tool_calls must be answered"
        if calls:
            return {"messages": [AIMessage("hello again")]}
        call = {"name": "lookup", "args": {}, "id": "call-1"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    async def call_step(_state: MessagesState) -> dict[str, Any]:
        await current_run().tool("slow", "slow", {})
        return {}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    node = {"sync node": lambda _: slow() and {}, "step": call_step}
    graph.add_node("act", node.get(kind) or ToolNode([lookup]))
    graph.add_node("later", lambda _: log.append("later") or {})
    graph.add_edge(START, "model")
    graph.add_conditional_edges(
        "model", lambda s: "act" if s["messages"][-1].tool_calls else "__end__", ["act", "__end__"]
    )
    graph.add_edge("act", "later")
    shop.deploy(graph, mode, tools=hub)
    shop.submit({"messages": [("user", "hi")]}, thread="t")
    seen = cancel_when(shop, begun)
    Worker(shop.durable, lease_seconds=1.5).run_once()
    assert shop.run.status is Status.CANCELLED
    assert Status.CANCELLING in seen
    assert Status.CANCELLED not in seen[:3]
    assert log == ["effect"]
    if kind == "step":
        assert shop.journal["slow"].state == "recorded"
    output = succeeded(shop.begin({"messages": [("user", "are you there?")]}, thread="t"))
    if mode == "graph":
        assert output["messages"][-1].content == "hello again"


@pytest.mark.promise("H-11")
def test_a_node_that_swallows_its_cancellation_is_the_last(shop: Shop, mode: str) -> None:
    begun, log = threading.Event(), []

    async def stubborn(_state: Notes) -> Notes:
        begun.set()
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            log.append("swallowed")
        return {"notes": ["stubborn"]}

    async def later(_state: Notes) -> Notes:
        log.append("later")
        return {"notes": ["later"]}

    shop.deploy(chain(stubborn=stubborn, later=later), mode)
    shop.submit({"notes": []})
    cancel_when(shop, begun)
    Worker(shop.durable, lease_seconds=1.5).run_once()
    assert shop.run.status is Status.CANCELLED
    assert log == ["swallowed"]
    assert shop.run.output is None


@pytest.mark.promise("H-11")
def test_a_run_that_waits_is_cancelled_at_once_and_its_thread_is_free(
    shop: Shop, mode: str
) -> None:
    shop.deploy(chain(gate=lambda s: {"notes": [interrupt(s["name"])]}), mode)
    waits(shop.begin({"name": "r1"}, thread="t"))
    assert shop.durable.cancel(shop.run_id, by="mei") is Status.CANCELLED
    waits(shop.begin({"name": "r2"}, thread="t"))
    assert [q.payload for q in shop.asked] == ["r2"]
    assert succeeded(shop.answer("ok"))["notes"] == ["ok"]


# --- H-20 --------------------------------------------------------------------------------


@pytest.mark.promise("H-20")
def test_python_3_10_is_refused_at_install() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["requires-python"] == ">=3.11"


@pytest.mark.promise("H-20")
@pytest.mark.parametrize("takes_config", [False, True])
def test_async_nodes_and_tools_reach_the_run_with_and_without_config(
    shop: Shop, mode: str, takes_config: bool
) -> None:
    if takes_config:

        async def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
            return await _talk("node")

        @tool
        async def ask(config: RunnableConfig) -> str:
            """Ask."""
            return str((await _talk("tool"))["messages"][0].content)

    else:

        async def node(state: MessagesState) -> dict[str, Any]:  # type: ignore[misc]
            return await _talk("node")

        @tool
        async def ask() -> str:
            """Ask."""
            return str((await _talk("tool"))["messages"][0].content)

    async def _talk(who: str) -> dict[str, Any]:
        answer = interrupt(who)
        step = await current_run().once(f"step:{who}", lambda: f"step of {who}")
        call = {"name": "ask", "args": {}, "id": "call-1"}
        return {"messages": [AIMessage(f"{answer}, {step}", tool_calls=[call])]}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_node("tools", ToolNode([ask]))
    graph.add_edge(START, "node")
    graph.add_edge("node", "tools")
    shop.deploy(graph, mode)
    waits(shop.begin({"messages": []}))
    waits(shop.answer("one"))
    messages = succeeded(shop.answer("two"))["messages"]
    assert [m.content for m in messages] == ["one, step of node", "two, step of tool"]
