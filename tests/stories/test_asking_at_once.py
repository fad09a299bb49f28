"""Graphs and tasks that one node runs at once, and that ask: each in its turn, none is lost."""

from __future__ import annotations

import asyncio
import gc
import operator
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from shop import Shop, succeeded, waits

from langgraph_durable import current_run


@pytest.fixture(autouse=True)
def _forgotten_futures() -> Iterator[None]:
    """Collect the futures that LangGraph leaves with the questions of those that ask later.

    Collected while Python parses a module, they break it: asyncio logs them, and to show a
    traceback Python parses again (CPython's issue 106905).
    """
    yield
    gc.collect()


class Notes(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]
    n: int


def chain(name: str, node: Any) -> StateGraph[Any]:
    graph = StateGraph(Notes)
    graph.add_node(name, node)
    graph.add_edge(START, name)
    return graph


def _asks() -> Any:
    async def ask(state: Notes) -> Notes:
        n = state["n"]
        await current_run().once(f"before:{n}", lambda: n)
        return {"notes": [interrupt({"n": n})]}

    return chain("ask", ask).compile()


@pytest.mark.promise("H-03")
@pytest.mark.promise("H-04")
def test_graphs_that_a_node_gathers_ask_one_after_the_other(shop: Shop, mode: str) -> None:
    inner = _asks()

    async def node(_state: Notes) -> Notes:
        calls = [inner.ainvoke({"notes": [], "n": n}) for n in range(3)]
        return {"notes": [result["notes"] for result in await asyncio.gather(*calls)]}

    shop.deploy(chain("node", node), mode)
    waits(shop.begin({"notes": []}))
    run = shop.answer_all(lambda question: f"yes {question.payload['n']}")
    assert succeeded(run)["notes"] == [["yes 0"], ["yes 1"], ["yes 2"]]
    assert len(shop.durable.questions(run_id=shop.run_id, state=None)) == 3


@pytest.mark.promise("H-03")
def test_tasks_that_ask_at_once_below_a_node(shop: Shop, mode: str) -> None:
    @task
    async def ask(n: int) -> Any:
        return interrupt({"n": n})

    async def node(_state: Notes) -> Notes:
        begun = [ask(n) for n in range(3)]
        return {"notes": [await one for one in begun]}

    shop.deploy(chain("inner", chain("node", node).compile()), mode)
    waits(shop.begin({"notes": []}))
    run = shop.answer_all(lambda question: question.payload["n"])
    assert succeeded(run)["notes"] == [0, 1, 2]


@pytest.mark.promise("H-03")
def test_an_entrypoint_that_asks_before_its_tasks_are_awaited(shop: Shop, mode: str) -> None:
    @task
    async def ask(n: int) -> Any:
        return interrupt({"n": n})

    @entrypoint()
    async def flow(_given: Any) -> list[Any]:
        begun = [ask(n) for n in range(2)]
        return [interrupt({"n": "own"}), *[await one for one in begun]]

    shop.deploy(flow, mode)
    waits(shop.begin({}))
    assert succeeded(shop.answer_all(lambda question: question.payload["n"])) == ["own", 0, 1]
