"""The agents: a graph for each kind of order, in both modes, made of the acts of its row."""

from __future__ import annotations

import asyncio
import operator
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

from langgraph_durable import (
    Compensation,
    Durable,
    Refused,
    Retry,
    RunContext,
    ToolHub,
    current_run,
    relay,
)
from langgraph_durable.errors import BadInput
from tests.chaos.ledger import Client
from tests.chaos.orders import AMOUNT, KINDS, MODES

NAP_SECONDS = 0.7
CHEW_SECONDS = 0.2
HURRY_SECONDS = 1.5
#: A run is never given up here: how often a worker dies says nothing about the run.
TRIES = {"max_attempts": 1_000, "retry": Retry(first_seconds=0.05, limit_seconds=0.5)}

# A worker lives for seconds here, so what a dead one holds must come up again in seconds.
relay.HOLD_SECONDS = 6.0
relay.FIRST_SECONDS, relay.LIMIT_SECONDS, relay.TRIES = 0.2, 1.0, 1_000


class State(TypedDict, total=False):
    order: str
    part: str  # of a branch
    results: Annotated[list[str], operator.add]


Act = Callable[[str, str], Any]  # (order, part) -> the line it shows, or None


def tools(ledger: Client) -> ToolHub:
    """Return the tools, each of which is a call of the ledger."""
    hub = ToolHub()

    @hub.tool(effect="read")
    def prices(order: str) -> int:
        ledger.call("read", order=order, run_id=current_run().run_id)
        return AMOUNT

    def pay(order: str, part: str, amount: int, idempotency_key: str, fencing_token: int) -> int:
        run_id = idempotency_key.partition(":")[0]
        said = ledger.call(
            "pay", run_id=run_id, key=idempotency_key, token=fencing_token,
            order=order, part=part, amount=amount,
        )  # fmt: skip
        return int(said["amount"])

    hub.add(pay, effect="idempotent")
    hub.add(pay, effect="idempotent", name="charge", asks=True)

    def unbook(order: str, part: str, idempotency_key: str, fencing_token: int) -> None:
        run_id = idempotency_key.partition(":")[0]
        ledger.call(
            "undo", run_id=run_id, key=idempotency_key, token=fencing_token,
            order=order, part=part, amount=AMOUNT,
        )  # fmt: skip

    hub.add(unbook, effect="idempotent")
    hub.add(pay, effect="idempotent", name="book")

    def did(arguments: Mapping[str, Any], info: Any) -> int | None:
        amount: int | None = ledger.call(
            "look", run_id=info.run_id, token=info.fencing_token, **arguments
        )["amount"]
        return amount

    def post(order: str, part: str, fencing_token: int) -> int:
        run_id = current_run().run_id
        ledger.call(
            "post", run_id=run_id, token=fencing_token, order=order, part=part, amount=AMOUNT
        )
        return AMOUNT

    hub.add(post, effect="once", probe=did)
    hub.add(post, effect="once", name="mail")
    return hub


async def _tool(
    tool: str, order: str, part: str, undo: Compensation | None = None, **more: Any
) -> str:
    arguments = {"order": order, "part": part} | more
    result = await current_run().tool(part, tool, arguments, compensate=undo)
    return f"{part}=refused" if isinstance(result, Refused) else f"{part}={result}"


async def _pay(order: str, part: str) -> str:
    return await _tool("pay", order, part, amount=AMOUNT)


async def _book(order: str, part: str) -> str:
    undo = Compensation("unbook", {"order": order, "part": part})
    return await _tool("book", order, part, undo, amount=AMOUNT)


async def _hear(order: str, part: str) -> str:
    return f"{part}={await current_run().wait_for(part, 'news')}"


async def _break(order: str, part: str) -> None:
    raise BadInput(f"{order} can't succeed")


async def _charge(order: str, part: str) -> str:
    return await _tool("charge", order, part, amount=AMOUNT)


async def _confirm(order: str, part: str) -> str:
    said = interrupt({"order": order, "part": part})
    return await _pay(order, part) if said else f"{part}=refused"


async def _ask(order: str, part: str) -> str:
    return f"{part}={await current_run().ask(part, {'order': order, 'part': part})}"


async def _hurry(order: str, part: str) -> str:
    said = await current_run().ask(
        part, {"order": order, "part": part}, expires_in_seconds=HURRY_SECONDS,
        on_expiry="default", default="late",
    )  # fmt: skip
    return f"{part}={said}"


async def _post(order: str, part: str) -> str:
    return await _tool("post", order, part)


async def _mail(order: str, part: str) -> str:
    return await _tool("mail", order, part)


async def _tell(order: str, part: str) -> None:
    await current_run().emit(part, "note", {"order": order, "part": part})


async def _told(order: str, part: str) -> str:
    def tells(result: Any) -> tuple[str, dict[str, Any]]:
        return "note", {"order": order, "part": part}

    arguments = {"order": order, "part": part, "amount": AMOUNT}
    return f"{part}={await current_run().tool(part, 'pay', arguments, emits=tells)}"


async def _think(order: str, part: str) -> None:
    await current_run().llm("think", f"what about {order}?")


async def _read(order: str, part: str) -> None:
    await current_run().tool("read", "prices", {"order": order})


async def _nap(order: str, part: str) -> None:
    await current_run().sleep(f"nap:{part}", NAP_SECONDS)


async def _chew(order: str, part: str) -> None:
    """Work without a step: who is frozen here wakes to write a checkpoint."""
    await asyncio.sleep(CHEW_SECONDS)


ACTS: Mapping[str, Act] = {
    "think": _think, "read": _read, "nap": _nap, "chew": _chew, "pay": _pay, "charge": _charge,
    "confirm": _confirm, "ask": _ask, "hurry": _hurry, "post": _post, "mail": _mail,
    "tell": _tell, "told": _told, "book": _book, "break": _break, "hear": _hear,
}  # fmt: skip


def _node(act: Act, part: str | None) -> Callable[[State], Any]:
    async def node(state: State) -> Any:
        line = await act(state["order"], state["part"] if part is None else part)
        return {"results": [] if line is None else [line]}

    return node


def graph(kind: str) -> StateGraph[Any, Any, Any, Any]:
    """Return the graph of a kind: a chain of its acts; an act of several parts fans out."""
    built = StateGraph(State, context_schema=RunContext)
    before: str = START
    for number, act in enumerate(KINDS[kind]):
        verb, _, named = act.partition(":")
        name, parts = f"{verb}{number}", named.split(",")
        built.add_node(name, _node(ACTS[verb], parts[0] if len(parts) == 1 else None))
        if len(parts) == 1:
            built.add_edge(before, name)
        else:
            built.add_conditional_edges(before, _fan(name, parts), [name])
        before = name
    built.add_edge(before, END)
    return built


def _fan(name: str, parts: list[str]) -> Callable[[State], list[Send]]:
    def fan(state: State) -> list[Send]:
        return [Send(name, {"order": state["order"], "part": part}) for part in parts]

    return fan


def build(url: str, ledger: Client) -> Durable:
    """Make the app: the same in the API and in its workers."""

    def deliver(message: Any) -> None:
        ledger.call(
            "message", run_id=message.run_id, key=message.id, amount=0,
            order=message.payload["order"], part=message.payload["part"],
        )  # fmt: skip

    async def answer(messages: Any, route: str) -> str:
        await asyncio.to_thread(ledger.call, "read", run_id=current_run().run_id)
        return "go on"

    durable = Durable(
        url, tools=tools(ledger), models={"default": answer}, outbox={"note": deliver}
    )
    for kind in KINDS:
        for mode in MODES:
            durable.graph(f"{kind}.{mode}", graph(kind), mode=mode, **TRIES)
    return durable


def from_environment() -> Durable:
    """Make the app of a process that `town` started."""
    ledger = Client(int(os.environ["CHAOS_LEDGER"]), os.environ["CHAOS_NAME"])
    return build(os.environ["CHAOS_URL"], ledger)
