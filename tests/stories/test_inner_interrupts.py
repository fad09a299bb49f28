"""Graph mode: an answer that a task of an inner graph took stays taken, whatever comes behind it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from shop import Shop

from langgraph_durable import current_run


class Notes(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    shop = Shop(database_url)
    yield shop
    shop.stop()


def asks(name: str) -> Any:
    async def node(_: Notes) -> Notes:
        return {"notes": [interrupt(name)]}

    return node


def notes(name: str) -> Any:
    async def node(_: Notes) -> Notes:
        return {"notes": [name]}

    return node


def later(how: str) -> Any:
    """A node behind the one that asked: it asks as well, or dies once."""
    fails = [1]

    async def node(_: Notes) -> Notes:
        if how == "asks":
            await current_run().ask("q", "?")
        elif how == "interrupts":
            interrupt("second")
        elif fails:
            fails.pop()
            raise RuntimeError("as if the worker had died")
        return {"notes": ["y"]}

    return node


def chain(**nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(Notes)
    before = START
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    return graph


def calling(inner: Any) -> Any:
    async def node(_: Notes) -> Notes:
        said: Notes = await inner.ainvoke({"notes": []})
        return said

    return node


def within(inner: StateGraph[Any, Any, Any, Any], where: str) -> StateGraph[Any, Any, Any, Any]:
    """The graph as a node of another, called by a node, or both, one inside the other."""
    graph: Any = inner.compile()
    if where == "node":
        return chain(a=graph)
    if where == "called":
        return chain(a=calling(graph))
    if where == "second call":

        async def twice(_: Notes) -> Notes:
            first: Notes = await chain(n=notes("first")).compile().ainvoke({"notes": []})
            second: Notes = await graph.ainvoke({"notes": []})
            return {"notes": first["notes"] + second["notes"]}

        return chain(a=twice)
    if where == "node in called":
        return chain(a=calling(chain(b=graph).compile()))
    return chain(a=chain(b=calling(graph)).compile())  # called in node


PLACES = ["node", "called", "second call", "node in called", "called in node"]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("how", ["asks", "interrupts", "dies"])
def test_an_inner_answer_that_was_taken_is_not_missed_later(shop: Shop, how: str, where: str):
    shop.deploy(within(chain(x=asks("first"), y=later(how)), where), "graph", {"max_attempts": 3})
    shop.begin({"notes": []})
    shop.answer_all(lambda question: "yes")
    assert shop.run.status.value == "succeeded", shop.run.error
    assert shop.run.output["notes"][-2:] == ["yes", "y"]


@pytest.mark.parametrize("where", PLACES)
def test_one_of_two_inner_branches_was_answered_and_the_other_waits(shop: Shop, where: str):
    both = StateGraph(Notes).add_node("x", asks("left")).add_node("y", asks("right"))
    both.add_edge(START, "x").add_edge(START, "y")
    shop.deploy(within(both, where), "graph", {"max_attempts": 3})
    shop.begin({"notes": []})
    shop.answer_all(lambda question: question.payload)
    assert shop.run.status.value == "succeeded", shop.run.error
    assert sorted(shop.run.output["notes"][-2:]) == ["left", "right"]


@pytest.mark.parametrize("where", PLACES)
def test_inner_code_that_asks_no_more_is_found(shop: Shop, where: str):
    shop.deploy(within(chain(x=asks("first"), y=notes("y")), where), "graph", {"max_attempts": 3})
    shop.begin({"notes": []})
    shop.deploy(within(chain(x=notes("x"), y=notes("y")), where), "graph", {"max_attempts": 3})
    shop.answer_all(lambda question: "yes")
    assert shop.run.status.value == "failed"
    assert "nothing took the answer" in shop.run.error["message"]
