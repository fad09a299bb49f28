"""What the approver saw is what is executed (H-18)."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from shop import Shop, succeeded, waits

from langgraph_durable import Decision, ToolHub, current_run

pytestmark = pytest.mark.promise("H-18")


class Notes(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]


def node_graph(node: Any) -> StateGraph[Notes]:
    graph = StateGraph(Notes)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph


class Model:
    """Says 10 the first time, and 9999 ever after."""

    def __init__(self) -> None:
        self.said: list[int] = []

    def __call__(self, _messages: Any, _route: str) -> str:
        self.said.append(9999 if self.said else 10)
        return str(self.said[-1])


@pytest.mark.parametrize("way", ["interrupt", "ctx.ask", "ctx.tool"])
@pytest.mark.parametrize("journaled", [True, False])
def test_an_approval_of_10_never_executes_9999(
    any_shop: Shop, mode: str, way: str, journaled: bool
) -> None:
    shop, model, executed = any_shop, Model(), []
    hub = ToolHub()

    @hub.tool(effect="read", asks=True)
    def pay(cents: int) -> int:
        executed.append(cents)
        return cents

    async def node(_state: Notes) -> Notes:
        ctx = current_run()
        said = (await ctx.llm("amount", "how much?")).text if journaled else model("", "")
        cents = int(said)
        if way == "ctx.tool":
            await ctx.tool("pay", "pay", {"cents": cents})
        else:
            shown = {"pay": cents}
            answer = interrupt(shown) if way == "interrupt" else await ctx.ask("ok", shown)
            if answer == "approve":
                executed.append(cents)
        return {"notes": [cents]}

    shop.deploy(node_graph(node), mode, tools=hub, models={"default": model})
    waits(shop.begin({"notes": []}))
    shown = {"cents": 10} if way == "ctx.tool" else {"pay": 10}
    assert shop.asked[0].payload == shown
    go_on = Decision.approve("mei") if way == "ctx.tool" else Decision.respond("mei", "approve")
    shop.restart()
    shop.decide(go_on)
    run = shop.work()
    if journaled:
        succeeded(run)
        assert executed == [10]
        return
    waits(run)
    assert executed == []
    assert shop.asked[0].payload == {next(iter(shown)): 9999}
    shop.restart()
    shop.decide(go_on)
    succeeded(shop.work())
    assert executed == [9999]  # this was shown, and approved


@pytest.mark.parametrize("way", ["interrupt", "ctx"])
def test_questions_that_change_places_keep_their_answers(shop: Shop, mode: str, way: str) -> None:
    order = ["first", "second"]
    seen: list[dict[str, Any]] = []

    async def put(question: str) -> Any:
        if way == "interrupt":
            return interrupt({"q": question})
        return await current_run().ask(f"ask:{question}", {"q": question})

    async def node(_state: Notes) -> Notes:
        seen.append({question: await put(question) for question in list(order)})
        return {"notes": ["done"]}

    shop.deploy(node_graph(node), mode)
    waits(shop.begin({"notes": []}))
    waits(shop.answer("answer to first"))
    order.reverse()
    run = shop.answer("answer to second")
    succeeded(run)
    assert seen == [{"second": "answer to second", "first": "answer to first"}]
    assert len(shop.durable.questions(run_id=shop.run_id, state=None)) == 2


def test_an_answer_is_not_given_to_a_question_put_before_it(shop: Shop, mode: str) -> None:
    """New code asks something else first: the old answer waits for its own question."""
    questions = ["delete the file?"]
    seen: list[Any] = []

    async def node(_state: Notes) -> Notes:
        got = [interrupt(question) for question in list(questions)]
        seen.append(got)
        return {"notes": got}

    shop.deploy(node_graph(node), mode)
    waits(shop.begin({"notes": []}))
    questions.insert(0, "pay 1000?")
    waits(shop.answer("yes, delete"))
    assert [q.payload for q in shop.asked] == ["pay 1000?"]
    succeeded(shop.answer("no"))
    assert seen == [["no", "yes, delete"]]
