"""A small shop: one agent in each mode, a tool that asks, a ledger in a file of its own.

It is also what the API processes of the tests serve: `tests/web/serve.py`.
"""

from __future__ import annotations

from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from langgraph_durable import Durable, RunContext, ToolHub, current_run

PEPPER = "a pepper of at least sixteen characters"


class State(TypedDict, total=False):
    ticket: str
    amounts: list[int]
    answer: Any
    paid: list[Any]


def shop(url: str, ledger: list[tuple[str, int]] | None = None, **options: Any) -> Durable:
    """Build the runtime: `refund` (steps mode), `ask` (graph mode), `fails`, `odd`."""
    hub = ToolHub()

    @hub.tool(effect="idempotent", asks=True)
    def create_refund(amount_cents: int, idempotency_key: str) -> dict[str, int]:
        """Pay money back."""
        if ledger is not None and idempotency_key not in {key for key, _ in ledger}:
            ledger.append((idempotency_key, amount_cents))
        return {"paid_cents": amount_cents}

    durable = Durable(url, tools=hub, pepper=PEPPER, **options)

    async def refund(state: State) -> dict[str, Any]:
        ctx = current_run()
        amounts = state.get("amounts") or [1200]
        keys = ["refund", *(f"refund:{i}" for i in range(1, len(amounts)))]
        import asyncio

        calls = [
            ctx.tool(key, "create_refund", {"amount_cents": amount})
            for key, amount in zip(keys, amounts, strict=True)
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return {"paid": [r if isinstance(r, dict) else {"refused": str(r)} for r in results]}

    def ask(state: State) -> dict[str, Any]:
        return {"answer": interrupt({"question": "go on?", "ticket": state.get("ticket")})}

    durable.graph("refund", _graph("refund", refund), mode="steps")
    durable.graph("ask", _graph("ask", ask), mode="graph")

    @durable.agent("fails", max_attempts=1)
    async def fails(ctx: RunContext, given: Any) -> Any:
        raise ValueError("it broke")

    @durable.agent("echo")
    async def echo(ctx: RunContext, given: Any) -> Any:
        return given

    return durable


def _graph(name: str, node: Any) -> StateGraph[State]:
    graph = StateGraph(State)
    graph.add_node(name, node)
    graph.add_edge(START, name)
    graph.add_edge(name, END)
    return graph
