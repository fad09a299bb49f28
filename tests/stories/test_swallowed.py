"""A pause is an exception, and something catches it (H-17)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, ToolRetryMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy, interrupt
from shop import Shop, failed, succeeded, waits

from langgraph_durable import Retry, ToolHub, current_run

pytestmark = pytest.mark.promise("H-17")


class Notes(TypedDict, total=False):
    notes: Annotated[list[str], operator.add]


def one_node(node: Callable[..., Any], **options: Any) -> StateGraph[Notes]:
    graph = StateGraph(Notes)
    graph.add_node("node", node, **options)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph


async def put(way: str) -> Any:
    return interrupt("?") if way == "interrupt" else await current_run().ask("ask", "?")


def one_question_no_error(shop: Shop) -> None:
    assert len(shop.durable.questions(run_id=shop.run_id, state=None)) == 1
    assert all(step.error is None for step in shop.journal.values())
    assert shop.run.attempts == 0


@pytest.mark.parametrize("way", ["interrupt", "ctx"])
@pytest.mark.parametrize("retry", [None, Retry(attempts=3, first_seconds=0)])
def test_a_question_inside_our_step_and_its_retry_pauses_once(
    shop: Shop, mode: str, way: str, retry: Retry | None
) -> None:
    calls: list[str] = []

    async def inside() -> str:
        calls.append("call")
        return f"got {await put(way)}"

    async def node(_state: Notes) -> Notes:
        return {"notes": [await current_run().once("step", inside, retry=retry)]}

    shop.deploy(one_node(node), mode)
    waits(shop.begin({"notes": []}))
    assert calls == ["call"]
    one_question_no_error(shop)
    assert succeeded(shop.answer("yes"))["notes"] == ["got yes"]
    # native interrupts are answered in rounds in steps mode: one run up to the question, one past it
    assert len(calls) == (3 if (mode, way) == ("steps", "interrupt") else 2)


@pytest.mark.parametrize("way", ["interrupt", "ctx"])
@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
def test_a_question_inside_a_tool_pauses_once(shop: Shop, mode: str, way: str, effect: str) -> None:
    hub = ToolHub()

    @hub.tool(effect=effect)
    async def pay(cents: int, idempotency_key: str = "") -> str:
        return f"{cents} {await put(way)}"

    async def node(_state: Notes) -> Notes:
        return {"notes": [await current_run().tool("pay", "pay", {"cents": 3})]}

    shop.deploy(one_node(node), mode, tools=hub)
    waits(shop.begin({"notes": []}))
    one_question_no_error(shop)
    assert succeeded(shop.answer("yes"))["notes"] == ["3 yes"]


@pytest.mark.parametrize("way", ["interrupt", "ctx"])
def test_a_node_retry_policy_counts_no_retry(shop: Shop, mode: str, way: str) -> None:
    async def node(_state: Notes) -> Notes:
        return {"notes": [await put(way)]}

    policy = RetryPolicy(max_attempts=3, initial_interval=0.0, jitter=False, retry_on=Exception)
    shop.deploy(one_node(node, retry_policy=policy), mode)
    waits(shop.begin({"notes": []}))
    one_question_no_error(shop)
    assert succeeded(shop.answer("yes"))["notes"] == ["yes"]


@pytest.mark.parametrize("way", ["interrupt", "ctx"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_tool_node_that_handles_errors_pauses(
    shop: Shop, mode: str, way: str, wrapped: bool
) -> None:
    @tool
    async def ask() -> str:
        """Ask."""
        return str(await put(way))

    async def wrapper(request: Any, execute: Any) -> Any:
        return await execute(request)

    def model(_state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage("", tool_calls=[{"name": "ask", "args": {}, "id": "1"}])]}

    from langgraph.graph import MessagesState

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    options: dict[str, Any] = {"awrap_tool_call": wrapper} if wrapped else {}
    graph.add_node("tools", ToolNode([ask], handle_tool_errors=True, **options))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    shop.deploy(graph, mode)
    waits(shop.begin({"messages": []}))
    one_question_no_error(shop)
    assert succeeded(shop.answer("yes"))["messages"][-1].content == "yes"


@pytest.mark.parametrize("way", ["interrupt", "ctx"])
def test_langchains_retry_middleware_lets_a_question_through(
    shop: Shop, mode: str, way: str
) -> None:
    asked: list[str] = []

    @tool
    async def ask() -> str:
        """Ask."""
        asked.append("call")
        return str(await put(way))

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

    def replies() -> Any:
        while True:
            yield AIMessage("", tool_calls=[{"name": "ask", "args": {}, "id": "1"}])
            yield AIMessage("done")

    class Turn(Model):
        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(messages[-1], ToolMessage):
                self.messages = iter([AIMessage("done")])
            else:
                call = {"name": "ask", "args": {}, "id": "1"}
                self.messages = iter([AIMessage("", tool_calls=[call])])
            return super()._generate(messages, *args, **kwargs)

    middleware = [
        ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False),
        ModelRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False),
    ]
    agent = create_agent(Turn(messages=iter([])), [ask], middleware=middleware)
    shop.deploy(agent, mode)
    waits(shop.begin({"messages": [("user", "hi")]}))
    assert asked == ["call"]
    one_question_no_error(shop)
    messages = succeeded(shop.answer("yes"))["messages"]
    assert [m.content for m in messages[-2:]] == ["yes", "done"]


# --- (e): user code ----------------------------------------------------------------------


@pytest.mark.parametrize("catch", ["except", "fallbacks", "around a subgraph"])
def test_an_interrupt_that_user_code_swallows_fails_the_run(
    shop: Shop, mode: str, catch: str
) -> None:
    went_on: list[str] = []

    def ask(_state: Any) -> Any:
        return {"notes": [interrupt("?")]}

    inner = one_node(ask).compile()

    async def node(state: Notes) -> Any:
        if catch == "fallbacks":
            fallback = RunnableLambda(lambda _: {"notes": ["fallback"]})
            return await RunnableLambda(ask).with_fallbacks([fallback]).ainvoke(state)
        try:
            return await inner.ainvoke(state) if "subgraph" in catch else ask(state)
        except Exception:
            return {"notes": ["fallback"]}

    async def after(_state: Notes) -> Notes:
        went_on.append("after")
        return {"notes": ["approved"]}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_node(after)
    graph.add_edge(START, "node")
    graph.add_edge("node", "after")
    shop.deploy(graph, mode)
    error = failed(shop.begin({"notes": []}))
    assert error["type"] == "QuestionSwallowed"
    assert "node@1" in error["message"]
    assert went_on == []


@pytest.mark.parametrize("catch", ["except", "fallbacks", "around a subgraph"])
def test_a_ctx_question_that_user_code_swallows_parks_all_the_same(
    shop: Shop, mode: str, catch: str
) -> None:
    went_on: list[Any] = []

    async def ask(_state: Any) -> Any:
        return {"notes": [await current_run().ask("ask", "?")]}

    inner = one_node(ask).compile()

    async def node(state: Notes) -> Any:
        try:
            if catch == "fallbacks":
                fallback = RunnableLambda(lambda _: {"notes": ["fallback"]})
                result = await RunnableLambda(ask).with_fallbacks([fallback]).ainvoke(state)
            else:
                result = await inner.ainvoke(state) if "subgraph" in catch else await ask(state)
        except Exception:
            result = {"notes": ["fallback"]}
        try:
            await current_run().once("pay", lambda: went_on.append(result))
        except Exception:
            went_on.append("refused")
        return {"notes": result["notes"][-1:]}

    async def after(_state: Notes) -> Notes:
        went_on.append("after")
        return {"notes": ["end"]}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_node(after)
    graph.add_edge(START, "node")
    graph.add_edge("node", "after")
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    assert "after" not in went_on
    assert {"notes": ["fallback"]} not in went_on
    assert "pause_swallowed" in shop.events
    assert succeeded(shop.answer("yes"))["notes"] == ["yes", "end"]


def test_a_swallowed_pause_of_a_plain_function_parks_all_the_same(shop: Shop) -> None:
    async def agent(ctx: Any, _given: Any) -> Any:
        try:
            return await ctx.ask("ask", "?")
        except Exception:
            return "fallback"

    shop.deploy(agent)
    waits(shop.begin())
    assert succeeded(shop.answer("yes")) == "yes"


def test_a_step_after_an_interrupt_that_was_swallowed_is_refused(shop: Shop, mode: str) -> None:
    paid: list[str] = []

    async def node(_state: Notes) -> Notes:
        try:
            interrupt("may I?")
        except Exception:
            await current_run().once("pay", lambda: paid.append("paid"))
        return {"notes": ["done"]}

    shop.deploy(one_node(node), mode)
    shop.begin({"notes": []})
    assert paid == []
    assert shop.run.status != "succeeded"


def test_a_swallowed_timer_sleeps_all_the_same(shop: Shop, mode: str) -> None:
    seen: list[str] = []

    async def node(_state: Notes) -> Notes:
        try:
            await current_run().sleep("nap", 3600)
        except Exception:
            return {"notes": ["fallback"]}
        return {"notes": ["slept"]}

    async def after(_state: Notes) -> Notes:
        seen.append("after")
        return {}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_node(after)
    graph.add_edge(START, "node")
    graph.add_edge("node", "after")
    shop.deploy(graph, mode)
    assert shop.begin({"notes": []}).status == "sleeping"
    assert seen == []


def test_an_innocent_except_beside_a_question_does_not_use_its_fallback(
    shop: Shop, mode: str
) -> None:
    """A sibling's steps go on while a question is put beside it."""

    async def asks(_state: Notes) -> Notes:
        return {"notes": [await current_run().ask("ask", "?")]}

    async def careful(_state: Notes) -> Notes:
        import asyncio

        await asyncio.sleep(0.05)
        try:
            return {"notes": [await current_run().once("look", lambda: "looked")]}
        except Exception:
            return {"notes": ["fallback"]}

    graph = StateGraph(Notes)
    graph.add_node(asks)
    graph.add_node(careful)
    graph.add_edge(START, "asks")
    graph.add_edge(START, "careful")
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    assert shop.journal["look"].state == "recorded"
    assert sorted(succeeded(shop.answer("yes"))["notes"]) == ["looked", "yes"]
