"""Uses of the public API that are only type-checked (`make check`), never run."""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict, assert_type
from uuid import UUID

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from langgraph_durable import (
    Compensation,
    Decision,
    Durable,
    Effect,
    Question,
    Retry,
    Rule,
    Run,
    RunContext,
    Status,
    ToolHub,
    Worker,
    current_run,
)
from langgraph_durable.runs import Signal


class State(TypedDict, total=False):
    """A graph's state."""

    ticket: str
    category: str


hub = ToolHub()


@hub.tool(effect=Effect.READ)
def list_invoices(customer_id: str) -> list[str]:
    """A registered function keeps its type."""
    return [customer_id]


assert_type(list_invoices("c_42"), list[str])

UNDO = Compensation("reopen", {"customer_id": "c_42"})
UNDO_BY_RESULT = Compensation("reopen", lambda result: {"customer_id": result["id"]})
UNDO_BY_BOTH = Compensation("reopen", lambda result, asked: {"customer_id": asked["id"]})

durable = Durable(
    "sqlite:///support.db",
    tools=hub,
    models={"fast": lambda messages, route: "refund"},
    rules=[Rule("ask", tool="create_refund")],
    retry=Retry(attempts=2),
)


async def classify(state: State, runtime: Runtime[RunContext]) -> State:
    """A node that takes its context from LangGraph's runtime."""
    reply = await runtime.context.llm("classify", [("user", state["ticket"])], route="fast")
    assert_type(reply, AIMessage)
    return {"category": str(reply.content)}


async def stamp(state: State) -> State:
    """A node that asks for the current run."""
    ctx = current_run()
    assert_type(ctx, RunContext)
    assert_type(await ctx.now("at"), datetime)
    assert_type(await ctx.uuid("id"), UUID)
    assert_type(await ctx.random("dice"), float)
    assert_type(await ctx.patched("change"), bool)
    assert_type(await ctx.sleep("nap", 60), None)
    print(await ctx.wait_for("payment", "paid", timeout_seconds=60))
    return {}


builder = StateGraph(State, context_schema=RunContext)
builder.add_node("classify", classify)
builder.add_node("stamp", stamp)
builder.add_edge(START, "classify")
builder.add_edge("classify", "stamp")
builder.add_edge("stamp", END)
durable.graph("support", builder, mode="steps")


@durable.agent("nightly.check")
async def check(ctx: RunContext, inp: dict[str, str]) -> dict[str, str]:
    """A registered agent keeps its type."""
    return inp


run_id = durable.submit("support", {"ticket": "…"}, tenant="t_acme", idempotency_key="ticket-42")
assert_type(run_id, str)
assert_type(durable.send(run_id, "paid", {"cents": 42}, tenant="t_acme", id="evt_1"), Signal)
run = durable.get(run_id, tenant="t_acme")
assert_type(run, Run)
assert_type(run.status, Status)
for question in durable.questions(tenant="t_acme"):
    assert_type(question, Question)
    assert_type(durable.decide(question.id, Decision.approve("mei")), Question)
Worker(durable, lease_seconds=30, concurrency=8).serve()
