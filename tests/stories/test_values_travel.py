"""Odd text and numbers come through every place the same on both databases (H-13, H-14)."""

from __future__ import annotations

import math
import operator
from decimal import Decimal as Dec
from typing import Annotated, Any, TypedDict

import numpy
import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from shop import Shop, failed, succeeded, waits

from langgraph_durable import current_run
from langgraph_durable.errors import BadInput, TooLarge


class Notes(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]
    text: str


def node_graph(*nodes: Any) -> StateGraph[Notes]:
    graph = StateGraph(Notes)
    last = START
    for i, node in enumerate(nodes):
        graph.add_node(f"n{i}", node)
        graph.add_edge(last, f"n{i}")
        last = f"n{i}"
    return graph


TEXTS = ["a\x00b", "half \ud83d", "\ud83d\x00\ude00", "whole \U0001f600"]


@pytest.mark.promise("H-13")
def test_odd_text_travels_through_every_place(any_shop: Shop, mode: str) -> None:
    shop = any_shop
    seen: list[Any] = []

    async def node(state: Notes) -> Notes:
        ctx = current_run()
        stepped = await ctx.once("step", lambda: {text: [text] for text in TEXTS})
        answer = interrupt({"texts": TEXTS, **dict.fromkeys(TEXTS, 1)})
        ours = await ctx.ask("ours", TEXTS)
        seen.append((state["text"], stepped, answer, ours))
        return {"notes": [answer, ours], "text": "".join(TEXTS)}

    async def last(state: Notes) -> Notes:
        seen.append(state["text"])
        return {"notes": [state["text"]]}

    shop.deploy(node_graph(node, last), mode)
    waits(shop.begin({"notes": [], "text": TEXTS[0]}))
    assert shop.asked[0].payload["texts"] == TEXTS
    output = succeeded(shop.answer_all(lambda _: {text: text for text in TEXTS}))
    answer = {text: text for text in TEXTS}
    stepped = {text: [text] for text in TEXTS}
    assert seen == [(TEXTS[0], stepped, answer, answer), "".join(TEXTS)]
    assert output["notes"] == [answer, answer, "".join(TEXTS)]
    assert output["text"] == "".join(TEXTS)


@pytest.mark.promise("H-13")
def test_odd_text_in_an_error_is_replaced(any_shop: Shop, mode: str) -> None:
    shop = any_shop

    async def step() -> None:
        raise ValueError("bad \x00 and \ud83d")

    async def node(_state: Notes) -> Notes:
        await current_run().once("step", step)
        return {}

    shop.deploy(node_graph(node), mode, {"max_attempts": 1})
    said = failed(shop.begin({"notes": []}))["message"]
    assert said == "bad \u2400 and \ufffd"
    assert shop.journal["step"].error == f"ValueError: {said}"


NUMBERS: list[Any] = [
    math.inf, -math.inf, 2**70, -(2**70), Dec("0.10"), 0.1, True, 1, -0.0, 1e308, complex(1, 2),
]  # fmt: skip


@pytest.mark.promise("H-14")
@pytest.mark.parametrize("value", [math.nan, *NUMBERS], ids=repr)
def test_a_number_is_the_same_on_replay_or_refused_at_once(
    shop: Shop, mode: str, value: Any
) -> None:
    seen: list[Any] = []

    async def node(_state: Notes) -> Notes:
        seen.append(await current_run().once("number", lambda: value))
        await current_run().ask("ask", "?")
        return {"notes": ["done"]}

    shop.deploy(node_graph(node), mode)
    run = shop.begin({"notes": []})
    if run.status == "failed":
        assert "step 'number'" in failed(run)["message"]
        assert type(value).__name__ in failed(run)["message"]
        assert seen == []
        return
    waits(run)
    succeeded(shop.answer("go"))
    first, replayed = seen
    assert type(first) is type(replayed) is type(value)
    assert repr(first) == repr(replayed) == repr(value)


@pytest.mark.promise("H-14")
@pytest.mark.parametrize(
    "value", [numpy.float64(1.5), numpy.array([1.0, 2.0])], ids=["f8", "array"]
)
def test_a_numpy_value_is_refused_at_its_step(shop: Shop, mode: str, value: Any) -> None:
    async def node(_state: Notes) -> Notes:
        await current_run().once("predict", lambda: {"score": [value]})
        return {}

    shop.deploy(node_graph(node), mode)
    error = failed(shop.begin({"notes": []}))
    assert error["type"] == "NotEncodable"
    assert "step 'predict'" in error["message"]
    assert type(value).__name__ in error["message"]
    assert "$['score'][0]" in error["message"] or "$.score[0]" in error["message"]
    assert shop.run.attempts == 0


@pytest.mark.promise("H-14")
def test_what_graph_state_can_not_keep_is_named_at_once(shop: Shop) -> None:
    """LangGraph's serializer and ours know different types; what neither knows has a path."""
    shop.deploy(node_graph(lambda _: {"notes": [{"score": numpy.float64(1.5)}]}), "graph")
    error = failed(shop.begin({"notes": []}))
    assert error["type"] == "NotEncodable"
    assert "the graph's state" in error["message"]
    assert "float64" in error["message"]
    assert shop.run.attempts == 0


@pytest.mark.promise("H-14")
def test_numbers_travel_through_graph_state(any_shop: Shop) -> None:
    numbers = list(NUMBERS)

    async def last(state: Notes) -> Notes:
        return {"text": repr(state["notes"])}

    any_shop.deploy(
        node_graph(
            lambda _: {"notes": numbers, "text": 2**70},  # PostgreSQL keeps a lone one elsewhere
            lambda _: {"notes": [interrupt("?")]},
            last,
        ),
        "graph",
    )
    waits(any_shop.begin({"notes": []}))
    assert succeeded(any_shop.answer("x"))["text"] == repr([*numbers, "x"])


def test_a_payload_that_can_not_be_shown_is_refused_where_it_is_put(shop: Shop, mode: str) -> None:
    async def node(_state: Notes) -> Notes:
        return {"notes": [interrupt({"f": numpy.float64(1)})]}

    shop.deploy(node_graph(node), mode)
    error = failed(shop.begin({"notes": []}))
    assert error["type"] == "NotEncodable"
    assert "interrupt()" in error["message"]


def test_too_large_an_input_is_refused_at_submit(shop: Shop, mode: str) -> None:
    shop.deploy(node_graph(lambda _: {}), mode)
    with pytest.raises(TooLarge, match="limit"):
        shop.submit({"text": "x" * 1_100_000})
    with pytest.raises(BadInput, match="input of agent"):
        shop.submit({"text": numpy.float64(1)})
    assert shop.durable.runs() == []


def test_an_output_that_can_not_be_encoded_is_a_success_with_an_event(
    shop: Shop, mode: str
) -> None:
    array = numpy.array([1.5])
    graph = node_graph(lambda _: {"text": "fine"}, lambda _: {"notes": [array]})
    shop.deploy(graph, mode)
    output = succeeded(shop.begin({"notes": []}))
    assert output["text"] == "fine"
    assert output["notes"]["not_encodable"] == "list"
    assert "1.5" in output["notes"]["readable"]
    assert "ndarray" in shop.event("output_not_encodable")["message"]
