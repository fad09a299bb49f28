"""A deploy took away what a parked run needs (H-07): it never passes for finished."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt
from shop import Shop, failed, succeeded, waits

from langgraph_durable import Decision, Status, ToolHub, Worker, current_run

pytestmark = pytest.mark.promise("H-07")


class Notes(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]


def hub() -> ToolHub:
    tools = ToolHub()

    @tools.tool(effect="read", asks=True)
    def pay(cents: int) -> str:
        return f"paid {cents}"

    return tools


async def put(way: str, suffix: str = "") -> Any:
    if way == "interrupt":
        return interrupt("go on?")
    if way == "ctx.ask":
        return await current_run().ask(f"ask{suffix}", "go on?")
    return await current_run().tool(f"pay{suffix}", "pay", {"cents": 5})


async def before(_state: Notes) -> Notes:
    return {"notes": ["before"]}


async def after(_state: Notes) -> Notes:
    return {"notes": ["after"]}


def gate(way: str) -> Callable[[Notes], Any]:
    async def node(_state: Notes) -> Notes:
        return {"notes": [await put(way)]}

    return node


def plain(name: str, way: str) -> StateGraph[Notes]:
    graph = StateGraph(Notes)
    graph.add_node(before)
    graph.add_node(name, gate(way))
    graph.add_node(after)
    graph.add_edge(START, "before")
    graph.add_edge("before", name)
    graph.add_edge(name, "after")
    graph.add_edge("after", END)
    return graph


def in_subgraph(name: str, way: str) -> StateGraph[Notes]:
    inner = StateGraph(Notes)
    inner.add_node(name, gate(way))
    inner.add_edge(START, name)
    graph = StateGraph(Notes)
    graph.add_node("sub", inner.compile())
    graph.add_node(after)
    graph.add_edge(START, "sub")
    graph.add_edge("sub", "after")
    return graph


def in_called_graph(name: str, way: str) -> StateGraph[Notes]:
    inner = StateGraph(Notes)
    inner.add_node(name, gate(way))
    inner.add_edge(START, name)
    compiled = inner.compile()

    async def sub(_state: Notes) -> Notes:
        return {"notes": (await compiled.ainvoke({"notes": []}))["notes"]}

    graph = StateGraph(Notes)
    graph.add_node(sub)
    graph.add_node(after)
    graph.add_edge(START, "sub")
    graph.add_edge("sub", "after")
    return graph


def by_send(name: str, way: str) -> StateGraph[Notes]:
    graph = StateGraph(Notes)
    graph.add_node(name, gate(way))
    graph.add_node(after)
    graph.add_conditional_edges(START, lambda _: [Send(name, {})], [name])
    graph.add_edge(name, "after")
    return graph


def decide(shop: Shop, way: str) -> None:
    yes = Decision.respond("mei", "yes")
    shop.decide(Decision.approve("mei") if way == "ctx.tool" else yes)


@pytest.mark.parametrize("way", ["interrupt", "ctx.ask", "ctx.tool"])
@pytest.mark.parametrize("build", [plain, in_subgraph, in_called_graph, by_send])
def test_the_parked_node_was_renamed(
    shop: Shop, mode: str, way: str, build: Callable[[str, str], StateGraph[Notes]]
) -> None:
    shop.deploy(build("gate", way), mode, tools=hub())
    waits(shop.begin({"notes": []}))
    shop.deploy(build("gate2", way), mode, tools=hub())
    decide(shop, way)
    run = shop.work()
    if mode == "steps" and way != "interrupt":
        # steps go by their keys: a renamed node changes nothing
        assert succeeded(run)["notes"][-2:] == ["paid 5" if way == "ctx.tool" else "yes", "after"]
        return
    if mode == "steps" and build is in_called_graph:
        # what a node calls can't be known without running it: it asks again, under a new key
        assert run.status is not Status.SUCCEEDED
    else:
        assert failed(run)["type"] == "CodeChanged"
        assert "gate" in failed(run)["message"]
    decided = shop.durable.questions(run_id=shop.run_id, state="decided")
    assert [q.decision and q.decision.by for q in decided] == ["mei"]

    shop.deploy(build("gate", way), mode, tools=hub())  # rolled back
    if run.status is Status.FAILED:
        shop.durable.retry(shop.run_id, by="ops")
        output = succeeded(shop.work())
        assert output["notes"][-2:] == ["paid 5" if way == "ctx.tool" else "yes", "after"]


def test_a_renamed_node_is_found_on_postgres_too(postgres_shop: Shop) -> None:
    shop = postgres_shop
    shop.deploy(in_subgraph("gate", "interrupt"), "graph")
    waits(shop.begin({"notes": []}))
    shop.deploy(in_subgraph("gate2", "interrupt"), "graph")
    decide(shop, "interrupt")
    assert "sub/gate" in failed(shop.work())["message"]
    shop.deploy(in_subgraph("gate", "interrupt"), "graph")
    shop.durable.retry(shop.run_id, by="ops")
    assert succeeded(shop.work())["notes"][-2:] == ["yes", "after"]


def two_branches(slow: str, joined: str) -> StateGraph[Notes]:
    """a asks; b is done at once and hands on to `slow`, or both to `joined`."""
    graph = StateGraph(Notes)
    graph.add_node("a", gate("interrupt"))
    graph.add_node("b", before)
    graph.add_edge(START, "a")
    graph.add_edge(START, "b")
    if joined:
        graph.add_node(joined, after)
        graph.add_edge(["a", "b"], joined)
    else:
        graph.add_node(slow, after)
        graph.add_edge("b", slow)
    return graph


@pytest.mark.parametrize("names", [("next", ""), ("", "join")])
def test_a_finished_sibling_hands_on_to_a_node_that_is_gone(
    shop: Shop, names: tuple[str, str]
) -> None:
    shop.deploy(two_branches(*names), "graph")
    waits(shop.begin({"notes": []}))
    shop.deploy(two_branches(*(name and name + "2" for name in names)), "graph")
    decide(shop, "interrupt")
    assert failed(shop.work())["type"] == "CodeChanged"
    shop.deploy(two_branches(*names), "graph")
    shop.durable.retry(shop.run_id, by="ops")
    assert sorted(succeeded(shop.work())["notes"]) == ["after", "before", "yes"]


def test_the_next_node_after_a_drain_was_renamed(shop: Shop) -> None:
    worker: list[Worker] = []

    def graph(name: str) -> StateGraph[Notes]:
        async def first(_state: Notes) -> Notes:
            current_run().state.drain()
            return {"notes": ["first"]}

        built = StateGraph(Notes)
        built.add_node(first)
        built.add_node(name, after)
        built.add_edge(START, "first")
        built.add_edge("first", name)
        return built

    shop.deploy(graph("second"), "graph")
    shop.submit({"notes": []})
    worker.append(Worker(shop.durable))
    worker[0].run_once()
    assert shop.run.status is Status.QUEUED
    assert shop.run.attempts == 0
    shop.deploy(graph("renamed"), "graph")
    error = failed(shop.work())
    assert error["type"] == "CodeChanged"
    assert "second" in error["message"]
    shop.deploy(graph("second"), "graph")
    shop.durable.retry(shop.run_id, by="ops")
    assert succeeded(shop.work())["notes"] == ["first", "after"]


@pytest.mark.parametrize("way", ["ctx.ask", "ctx.tool"])
def test_the_key_of_the_parked_step_is_gone(shop: Shop, mode: str, way: str) -> None:
    """The node is there, but it asks no more: the answer must not be lost in silence."""
    asks = [True]

    async def node(_state: Notes) -> Notes:
        return {"notes": [await put(way) if asks[0] else "did not ask"]}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_edge(START, "node")
    shop.deploy(graph, mode, tools=hub())
    waits(shop.begin({"notes": []}))
    asks[0] = False
    decide(shop, way)
    error = failed(shop.work())
    assert error["type"] == "CodeChanged"
    assert ("'ask'" if way == "ctx.ask" else "'pay'") in error["message"]


@pytest.mark.parametrize("way", ["ctx.ask", "ctx.tool"])
def test_the_key_of_the_parked_step_was_renamed(shop: Shop, mode: str, way: str) -> None:
    """The same is not asked twice: rolled back, the code goes on with the answer it has."""
    suffix = [""]

    async def node(_state: Notes) -> Notes:
        return {"notes": [await put(way, suffix[0])]}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_edge(START, "node")
    shop.deploy(graph, mode, tools=hub())
    waits(shop.begin({"notes": []}))
    suffix[0] = ":2"
    decide(shop, way)
    error = failed(shop.work())
    assert error["type"] == "CodeChanged"
    key = "ask" if way == "ctx.ask" else "pay"
    assert f"'{key}'" in error["message"]
    assert f"'{key}:2'" in error["message"]
    suffix[0] = ""
    shop.durable.retry(shop.run_id)
    succeeded(shop.work())


def test_the_interrupt_of_the_parked_node_is_gone(shop: Shop, mode: str) -> None:
    asks = [True]

    async def node(_state: Notes) -> Notes:
        return {"notes": [interrupt("?") if asks[0] else "did not ask"]}

    graph = StateGraph(Notes)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    asks[0] = False
    decide(shop, "interrupt")
    error = failed(shop.work())
    assert error["type"] == "CodeChanged"
    assert "node@1#0" in error["message"]


def test_a_version_that_no_worker_has_waits_for_one_that_has(shop: Shop, mode: str) -> None:
    shop.deploy(plain("gate", "interrupt"), mode, {"version": "1"})
    waits(shop.begin({"notes": []}))
    shop.deploy(plain("gate2", "interrupt"), mode, {"version": "2"})
    decide(shop, "interrupt")
    assert shop.work().status is Status.QUEUED
    shop.deploy(plain("gate", "interrupt"), mode, {"version": "1"})
    assert succeeded(shop.work())["notes"] == ["before", "yes", "after"]
