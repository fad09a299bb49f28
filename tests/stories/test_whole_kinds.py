"""Hard cases as kinds: more questions, other orders, deeper graphs, odd text in every place."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from shop import Shop, succeeded, waits

from langgraph_durable import Decision, Status, ToolHub, current_run
from langgraph_durable.errors import ToolError


class State(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]


@pytest.mark.promise("H-01")
@pytest.mark.promise("H-04")
@pytest.mark.parametrize("way", ["interrupt", "ctx"])
@pytest.mark.parametrize(("order", "levels"), [("CAB", 0), ("BCA", 2)])
def test_three_questions_among_payments_in_any_order_at_any_depth(
    shop: Shop, mode: str, way: str, order: Sequence[str], levels: int
) -> None:
    paid: list[int] = []
    hub = ToolHub()
    hub.add(
        lambda cents, idempotency_key: paid.append(cents) or cents, name="pay", effect="idempotent"
    )

    @tool
    def ask(q: str) -> str:
        """Ask a person."""
        if way == "interrupt":
            return str(interrupt({"q": q}))
        return str(current_run().blocking.ask(f"ask:{q}", {"q": q}))

    @tool
    def pay(cents: int) -> str:
        """Pay."""
        return str(current_run().blocking.tool(f"pay:{cents}", "pay", {"cents": cents}))

    wanted: list[tuple[str, dict[str, Any]]] = [
        ("ask", {"q": "A"}), ("pay", {"cents": 1}), ("ask", {"q": "B"}),
        ("pay", {"cents": 2}), ("ask", {"q": "C"}),
    ]  # fmt: skip
    calls = [
        {"name": name, "args": args, "id": f"c{i}", "type": "tool_call"}
        for i, (name, args) in enumerate(wanted)
    ]
    graph = StateGraph(State)
    graph.add_node("say", lambda _: {"messages": [AIMessage("", id="m", tool_calls=calls)]})
    graph.add_node("tools", ToolNode([ask, pay]))
    graph.add_edge(START, "say").add_edge("say", "tools")
    for level in range(levels):
        outer = StateGraph(State).add_node(f"level{level}", graph.compile())
        graph = outer.add_edge(START, f"level{level}")
    shop.deploy(graph, mode, tools=hub)
    run = shop.begin({"notes": []})
    while run.status is Status.WAITING_HUMAN:
        open_ = {question.payload["q"]: question for question in shop.asked}
        q = next(one for one in order if one in open_)
        shop.restart()
        shop.durable.decide(open_[q].id, Decision.respond("mei", f"answer {q}"))
        run = shop.work()
    answers = [message.content for message in succeeded(run)["messages"][1:]]
    assert answers == ["answer A", "1", "answer B", "2", "answer C"]
    assert sorted(paid) == [1, 2]


@pytest.mark.promise("H-13")
@pytest.mark.parametrize("odd", ["a\x00b", "a\ud83d"], ids=ascii)
def test_odd_text_in_every_place_of_one_run(any_shop: Shop, mode: str, odd: str) -> None:
    """Keys and values of input, requests, results, questions, edits, answers, errors, names."""
    shop, seen = any_shop, []
    hub = ToolHub()
    hub.add(lambda text: {odd: [text]}, name="say", effect="read", asks=True)

    @hub.tool(effect="read")
    def complain() -> None:
        raise ToolError(f"bad {odd}")

    async def node(state: State) -> State:
        ctx = current_run()
        made = await ctx.once("once", lambda: {odd: odd}, request={odd: odd})
        said = await ctx.tool("say", "say", {"text": odd})
        told = await ctx.ask("ask", {odd: [odd]})
        with pytest.raises(ToolError, match="bad a"):  # the rest by the rule for errors
            await ctx.tool("complain", "complain")
        reply = await ctx.llm("llm", f"hi {odd}")
        seen.append((made, said, told, reply.content))
        return {"notes": [made, said, told]}

    def last(state: State) -> State:
        return {"notes": [interrupt({odd: odd})]}

    graph = StateGraph(State).add_sequence([node, last]).add_edge(START, "node")
    shop.deploy(graph, mode, tools=hub, models={"default": lambda *_: f"said {odd}"})
    run = shop.begin({"notes": [{odd: odd}]})
    for asked in ("tool", "ask", "interrupt"):
        waits(run)
        (question,) = shop.asked
        assert (question.kind, question.payload) == (
            asked,
            {"tool": {"text": odd}, "ask": {odd: [odd]}, "interrupt": {odd: odd}}[asked],
        )
        shop.restart()
        who, why = f"mei {odd}", f"because {odd}"
        decision = Decision.edit(who, {"text": odd + "!"}, why)
        if asked != "tool":
            decision = Decision.respond(who, {odd: (odd,)}, why)
        shop.durable.decide(question.id, decision)
        run = shop.work()
    notes = succeeded(run)["notes"]
    assert seen[-1] == ({odd: odd}, {odd: [odd + "!"]}, {odd: (odd,)}, f"said {odd}")
    assert [set(note) for note in notes] == [{odd}] * 5
    assert len(shop.durable.events(shop.run_id)) > 5
