"""Agents with a mistake each, and what must catch it: the harness, the lint, the replay check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from langgraph_durable import RunContext, ToolHub, current_run
from langgraph_durable.testing import FakeClock, Ledger, RecordingTools

BILLING = "http://127.0.0.1:9/refunds"  # nobody listens there
ledger = Ledger()
clock = FakeClock(FakeClock().now().replace(hour=17, minute=59, second=30))


@dataclass(frozen=True)
class Broken:
    """An agent, and the words by which each tool must name its mistake."""

    agent: Any
    harness: str
    lint: str  # code of the finding
    line: str  # what stands in the line that the lint names
    replay: str
    right: Any = None  # the code that made the recording; by default the agent itself
    tools: Callable[[], ToolHub] = RecordingTools
    right_tools: Callable[[], ToolHub] | None = None
    lint_tools: bool = False
    before_replay: Callable[[], None] = field(default=lambda: None)


# --- a refund without a key --------------------------------------------------------------


def keyless() -> ToolHub:
    tools = RecordingTools(ledger)

    @tools.tool(effect="read")  # declared a read, so that nobody asks for a key
    def refund(cents: int) -> str:
        ledger.act("money", {"cents": cents})
        return str(httpx.post(BILLING, json={"cents": cents}) if cents < 0 else "paid")

    return tools


def keyed() -> ToolHub:
    tools = RecordingTools(ledger)

    @tools.tool(effect="idempotent")
    def refund(cents: int, idempotency_key: str) -> str:
        return "paid"

    return tools


async def refunds(ctx: RunContext, inp: Any) -> Any:
    return await ctx.tool("refund:42", "refund", {"cents": 42})


# --- the clock in a branch ---------------------------------------------------------------


def now() -> Any:
    import time

    if clock is None:  # pragma: no cover  # what the lint reads is what the code would do
        return time.time()
    return clock.now()


async def branches(ctx: RunContext, inp: Any) -> Any:
    await ctx.now("began")
    if now().hour < 18:
        return await ctx.once("answer today", lambda: "today")
    return await ctx.once("answer tomorrow", lambda: "tomorrow")


# --- a write outside of a step -----------------------------------------------------------


async def writes(ctx: RunContext, inp: Any) -> Any:
    await ctx.now("began")
    ledger.act("e-mail", {"to": "li"})  # outside of a step
    if inp == "over the network":
        httpx.post(BILLING, json={"to": "li"})  # noqa: ASYNC210  # so the lint sees it too
    return await ctx.uuid("id") and "sent"


# --- a loop whose key has no index -------------------------------------------------------


async def loops(ctx: RunContext, inp: Any) -> Any:
    return [await ctx.tool("add", "add", {"number": n}) for n in range(2)]


async def loops_rightly(ctx: RunContext, inp: Any) -> Any:
    return [await ctx.tool(f"add:{n}", "add", {"number": n}) for n in range(2)]


def adding() -> ToolHub:
    tools = RecordingTools()

    @tools.tool(effect="idempotent")
    def add(number: int, idempotency_key: str) -> int:
        return number + 1

    return tools


# --- a question under `except Exception` -------------------------------------------------


def swallows(state: Any) -> Any:
    try:
        sure = interrupt("sure?")
    except Exception:
        sure = "yes"  # nobody said so
    return {"sure": sure}


def asks(state: Any) -> Any:
    return {"sure": interrupt("sure?")}


def graph(node: Any) -> StateGraph[Any]:
    made = StateGraph(dict)
    made.add_node("ask", node)
    made.add_edge(START, "ask")
    return made


async def notes_and_pays(state: Any) -> Any:
    await current_run().once("pay", lambda: httpx.post(BILLING, json={"cents": 42}))
    return {}


BROKEN = {
    "a refund without a key": Broken(
        refunds,
        harness="'money' {'cents': 42} from",
        lint="no-key",
        line="httpx.post(",
        replay="step 'refund:42': recorded local.refund as 'idempotent'; today the tool is "
        "declared 'read'",
        tools=keyless,
        right_tools=keyed,
        lint_tools=True,
    ),
    "the clock in a branch": Broken(
        branches,
        harness="step 'answer tomorrow' is not in the calm run: the code took another way",
        lint="clock",
        line="time.time()",
        replay="step 'answer tomorrow': recorded no such step",
        before_replay=lambda: clock.advance(120),
    ),
    "a write outside of a step": Broken(
        writes,
        harness="in writes took effect 2 times (calm: 1)",
        lint="network",
        line="httpx.post(",
        replay="'e-mail' took effect: ",
    ),
    "a loop whose key has no index": Broken(
        loops,
        harness="DuplicateKey: step key 'add' was used twice in one pass",
        lint="loop-key",
        line='ctx.tool("add"',
        replay="step 'add'",
        right=loops_rightly,
        tools=adding,
    ),
    "a question under except Exception": Broken(
        graph(swallows),
        harness="QuestionSwallowed: ask@1 put a question, but an `except` around it caught",
        lint="swallowed",
        line='interrupt("sure?")',
        replay="QuestionSwallowed: ask@1 put a question, but an `except` around it caught",
        right=graph(asks),
    ),
}
