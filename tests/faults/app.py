"""The agents that the crash tests run, each in both modes: `pay.steps`, `pay.graph`, and so on."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt

from langgraph_durable import Compensation, Durable, Retry, RunContext, ToolHub, current_run
from langgraph_durable.errors import BadInput
from tests.faults.ledger import World

MODES = ("steps", "graph")
AMOUNT = 4_200
AT_ONCE = Retry(first_seconds=0.01, limit_seconds=0.05)


class State(TypedDict, total=False):
    amount: int
    how: str
    seconds: float
    category: str
    results: Annotated[list[Any], operator.add]


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def _chain(schema: Any, *nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(schema, context_schema=RunContext)
    before = START
    for node in nodes:
        graph.add_node(node.__name__, node)
        graph.add_edge(before, node.__name__)
        before = node.__name__
    graph.add_edge(before, END)
    return graph


def _tools(world: World) -> ToolHub:
    hub = ToolHub()
    ledger, gates = world.ledger, world.gates

    @hub.tool(effect="read")
    def invoices() -> list[str]:
        ledger.note("invoices", current_run().run_id)
        gates.hold("after_list")
        return ["inv-1"]

    def pay(amount: int, idempotency_key: str, fencing_token: int) -> dict[str, Any]:
        gates.hold("before_effect")
        ledger.effect("pay", current_run().run_id, idempotency_key, fencing_token)
        gates.hold("after_effect")
        return {"paid": amount}

    hub.add(pay, effect="idempotent")
    hub.add(pay, effect="idempotent", name="charge", asks=True)

    @hub.tool(effect="idempotent")
    def unpay(amount: int, idempotency_key: str, fencing_token: int) -> str:
        gates.hold(f"before_undo{amount}")
        ledger.effect("unpay", current_run().run_id, idempotency_key, fencing_token)
        gates.hold(f"after_undo{amount}")
        return "unpaid"

    @hub.tool(effect="once")
    def post() -> str:
        gates.hold("before_post")
        ledger.note("post", current_run().run_id)
        gates.hold("after_post")
        return "posted"

    @hub.tool(effect="idempotent")
    def hold(idempotency_key: str, fencing_token: int) -> str:
        gates.hold("hold")
        ledger.effect("hold", current_run().run_id, idempotency_key, fencing_token)
        return "held"

    @hub.tool(effect="idempotent")
    def slow(seconds: float, idempotency_key: str, fencing_token: int) -> str:
        time.sleep(seconds)
        ledger.effect("slow", current_run().run_id, idempotency_key, fencing_token)
        return "slow"

    return hub


def _pay(world: World) -> Any:
    async def classify(state: State) -> Any:
        answer = await current_run().llm("classify", "a ticket", route="fast")
        return {"category": answer.content}

    async def lookup(state: State) -> Any:
        return {"results": [await current_run().tool("list", "invoices")]}

    async def refund(state: State) -> Any:
        paid = await current_run().tool("refund", "pay", {"amount": AMOUNT})
        await world.gates.wait("after_record")
        return {"results": [paid]}

    async def draft(state: State) -> Any:
        answer = await current_run().llm("draft", "an answer", route="smart")
        return {"results": [answer.content]}

    return _chain(State, classify, lookup, refund, draft)


def _ask(world: World) -> Any:
    async def classify(state: State) -> Any:
        answer = await current_run().llm("classify", "a ticket", route="fast")
        return {"category": answer.content}

    async def refund(state: State) -> Any:
        return {"results": [await current_run().tool("refund", "charge", {"amount": AMOUNT})]}

    return _chain(State, classify, refund)


def _confirm(world: World) -> Any:
    async def classify(state: State) -> Any:
        answer = await current_run().llm("classify", "a ticket", route="fast")
        return {"category": answer.content}

    def confirm(state: State) -> Any:
        return {"results": [interrupt({"pay": AMOUNT})]}

    async def refund(state: State) -> Any:
        return {"results": [await current_run().tool("refund", "pay", {"amount": AMOUNT})]}

    return _chain(State, classify, confirm, refund)


def _blocked(world: World) -> Any:
    async def block(state: State) -> Any:
        seconds = state["seconds"]
        if state["how"] == "sleep":
            time.sleep(seconds)
        elif state["how"] == "cpu":
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                sum(range(1_000))
        else:
            await current_run().tool("slow", "slow", {"seconds": seconds})
        return {"results": [await current_run().tool("refund", "pay", {"amount": AMOUNT})]}

    return _chain(State, block)


def _hold(world: World) -> Any:
    async def first(state: State) -> Any:
        held = await current_run().tool("hold", "hold")
        second = await current_run().tool("refund", "pay", {"amount": AMOUNT})
        return {"results": [held, second]}

    async def later(state: State) -> Any:
        world.ledger.note("later", current_run().run_id)
        return {}

    return _chain(State, first, later)


def _raw(world: World) -> Any:
    """Plain LangGraph: no step, a sync node in a thread."""

    def raw(state: State) -> Any:
        world.gates.hold("raw")
        world.ledger.note("raw", current_run().run_id)
        return {}

    def later(state: State) -> Any:
        world.ledger.note("later", current_run().run_id)
        return {}

    return _chain(State, raw, later)


def _outage(world: World) -> Any:
    async def waits(state: State) -> Any:
        world.ledger.note("node", current_run().run_id)
        await current_run().tool("list", "invoices")
        await world.gates.wait("outage")
        return {"results": [await current_run().tool("refund", "pay", {"amount": AMOUNT})]}

    async def later(state: State) -> Any:
        world.ledger.note("later", current_run().run_id)
        return {}

    return _chain(State, waits, later)


def _many(world: World) -> Any:
    async def pays(state: State) -> Any:
        for i in range(8):
            await world.gates.wait(f"pay{i}")
            await current_run().tool(f"pay:{i}", "pay", {"amount": i})
        return {}

    return _chain(State, pays)


def _saga(world: World) -> Any:
    async def pays(state: State) -> Any:
        for i in (1, 2, 3):
            undo = Compensation("unpay", {"amount": i})
            await current_run().tool(f"pay:{i}", "pay", {"amount": i}, compensate=undo)
        raise BadInput("no fourth")

    return _chain(State, pays)


def _swarm(world: World) -> Any:
    async def one(state: State) -> Any:
        await current_run().tool("one", "pay", {"amount": 1})
        await asyncio.sleep(0.15)
        return {}

    def two(state: State) -> Any:
        current_run().blocking.tool("two", "pay", {"amount": 2})
        time.sleep(0.15)
        return {}

    async def three(state: State) -> Any:
        await current_run().tool("three", "pay", {"amount": 3})
        return {"results": ["ok"]}

    return _chain(State, one, two, three)


def _wide(world: World) -> Any:
    """Many sync branches, each of which waits for a sync tool: two threads for each."""

    def split(state: State) -> list[Send]:
        return [Send("branch", {"amount": i}) for i in range(150)]

    def branch(state: State) -> Any:
        i = state["amount"]
        current_run().blocking.tool(f"pay:{i}", "pay", {"amount": i})
        return {"results": [i]}

    graph = StateGraph(State, context_schema=RunContext)
    graph.add_node("branch", branch)
    graph.add_conditional_edges(START, split, ["branch"])
    graph.add_edge("branch", END)
    return graph


def _killer(world: World) -> Any:
    def kill(state: State) -> Any:
        world.ledger.note("kill", current_run().run_id)
        if state.get("how") == "exit":
            sys.exit(7)
        if state.get("how") == "raise":
            raise MemoryError("poison")
        os.kill(os.getpid(), signal.SIGKILL)

    async def async_kill(state: State) -> Any:
        return kill(state)

    graph = StateGraph(State, context_schema=RunContext)
    graph.add_node("thread", kill)
    graph.add_node("loop", async_kill)
    graph.add_conditional_edges(
        START, lambda state: "loop" if state.get("category") == "async" else "thread"
    )
    graph.add_edge("thread", END)
    graph.add_edge("loop", END)
    return graph


def _patient(world: World) -> Any:
    """Records nothing for a while: whoever dies here has made no progress."""

    async def sits(state: State) -> Any:
        world.ledger.note("sits", current_run().run_id)
        await asyncio.sleep(state.get("seconds", 0.0))
        await world.gates.wait("patient")
        return {"results": ["sat"]}

    return _chain(State, sits)


def _chat(world: World) -> Any:
    async def model(state: Chat) -> Any:
        answered = {m.tool_call_id for m in state["messages"] if isinstance(m, ToolMessage)}
        for message in state["messages"]:
            if isinstance(message, AIMessage):
                unanswered = [c["id"] for c in message.tool_calls if c["id"] not in answered]
                if unanswered:
                    raise ValueError(f"400: tool calls without an answer: {unanswered}")
        if state["messages"][-1].type == "human" and "pay" in str(state["messages"][-1].content):
            call = {"name": "hold", "args": {}, "id": f"c-{current_run().run_id}"}
            return {"messages": [AIMessage("", tool_calls=[call])]}
        return {"messages": [AIMessage("done")]}

    async def tools(state: Chat) -> Any:
        asked = state["messages"][-1]
        assert isinstance(asked, AIMessage)
        said = [
            ToolMessage(await current_run().tool(f"call:{c['id']}", "hold"), tool_call_id=c["id"])
            for c in asked.tool_calls
        ]
        return {"messages": said}

    graph = StateGraph(Chat, context_schema=RunContext)
    graph.add_node("model", model)
    graph.add_node("tools", tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges(
        "model", lambda s: "tools" if getattr(s["messages"][-1], "tool_calls", None) else END
    )
    graph.add_edge("tools", "model")
    return graph


_AGENTS = {
    "pay": (_pay, {}),
    "ask": (_ask, {}),
    "confirm": (_confirm, {}),
    "blocked": (_blocked, {}),
    "hold": (_hold, {}),
    "raw": (_raw, {}),
    "outage": (_outage, {}),
    "many": (_many, {}),
    "saga": (_saga, {}),
    "swarm": (_swarm, {"max_attempts": 10}),
    "wide": (_wide, {}),
    "killer": (_killer, {}),
    "patient": (_patient, {}),
    "chat": (_chat, {}),
}


def build(url: str, world: World) -> Durable:
    """Make the app: the same in the test and in its workers."""

    def answer(messages: Any, route: str) -> str:
        world.ledger.note(f"model:{route}", current_run().run_id)
        return "refund"

    durable = Durable(
        url, tools=_tools(world), models={"fast": answer, "smart": answer}, retry=Retry(attempts=1)
    )
    for name, (graph, options) in _AGENTS.items():
        for mode in MODES:
            durable.graph(f"{name}.{mode}", graph(world), mode=mode, retry=AT_ONCE, **options)

    @durable.agent("once", retry=AT_ONCE)
    async def once(ctx: RunContext, inp: Any) -> Any:
        return await ctx.tool("post", "post")

    @durable.agent("hang", deadline_seconds=1.0, max_attempts=2, retry=AT_ONCE)
    async def hang(ctx: RunContext, inp: Any) -> Any:
        async def for_ever() -> None:
            world.ledger.note("hang", ctx.run_id)
            await asyncio.sleep(3_600)

        def thread_for_ever() -> None:
            world.ledger.note("hang", ctx.run_id)
            world.gates.hold("hang")

        await ctx.once("hang", thread_for_ever if inp == "thread" else for_ever)

    return durable


if "DURABLE_URL" in os.environ:  # in a worker
    durable = build(os.environ["DURABLE_URL"], World(Path(os.environ["DURABLE_WORLD"])))
