"""Agents that are killed everywhere: SupportPilot, the examples, and some that are broken."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

from langgraph_durable import Decision, Question, Rule, RunContext, ToolHub, current_run
from langgraph_durable.integrations.mcp import McpServer
from langgraph_durable.testing import Ledger, RecordingTools, Scene, ScriptedModel, acting
from supportpilot.billing.client import BillingClient
from supportpilot.billing.server import billing_server
from supportpilot.billing.store import BillingStore
from supportpilot.graph import wire
from supportpilot.model import RuleModel
from supportpilot.nodes_graph import graph_nodes
from supportpilot.nodes_steps import steps_nodes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TICKET = {"ticket": "上个月年付扣了两次,退一笔", "customer_id": "c_42"}
TENANT = "t_acme"

# --- SupportPilot ------------------------------------------------------------------------


class WatchedBilling(BillingClient):
    """The client of the graph-mode nodes, whose calls are crash points."""

    async def call(self, tool: str, arguments: Mapping[str, Any], *, tenant: str) -> dict[str, Any]:
        with acting(f"billing call {tool!r}"):
            return await super().call(tool, arguments, tenant=tenant)


class WatchedModel(RuleModel):
    """SupportPilot's own model; the graph-mode nodes call it directly."""

    async def _agenerate(self, messages: Any, stop: Any = None, *_: Any, **kwargs: Any) -> Any:
        with acting(f"model call on route {self.route!r}"):
            return self._generate(messages, stop)


def supportpilot(folder: Path, mode: str, *, approves: bool = True) -> Scene:
    """SupportPilot with its billing system, over MCP in this process; its file is in the folder."""
    store = BillingStore(folder / "billing.db")
    store.create()
    server = billing_server(store)
    models = {"fast": WatchedModel(route="fast"), "smart": WatchedModel(route="smart")}
    hub = ToolHub()
    hub.mount(McpServer("billing", server), trusted=True)
    watched = WatchedBilling(server)  # type: ignore[arg-type]  # the client takes a server too
    nodes = steps_nodes() if mode == "steps" else graph_nodes(models, watched)

    def decide(question: Question) -> Decision:
        return Decision.approve("mei") if approves else Decision.reject("mei", "not this one")

    return Scene(
        wire(nodes),
        mode=mode,  # type: ignore[arg-type]
        tools=hub,
        models=models,
        rules=[Rule("ask", tool="billing.create_refund")],
        decisions=decide,
        effects=lambda: [(r.invoice_id, r.amount_cents) for r in store.refunds()],
        tenant=TENANT,
    )


steps_pilot = partial(supportpilot, mode="steps")
graph_pilot = partial(supportpilot, mode="graph")


# --- the examples ------------------------------------------------------------------------


def example(name: str) -> ModuleType:
    """Import an example anew: it keeps counts in its globals."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# --- a small agent, for real processes ---------------------------------------------------


class Paying(TypedDict, total=False):
    """What is paid, and what came of it."""

    amount: int
    kind: str
    paid: Any
    mailed: str


async def judge(state: Paying) -> Paying:
    answer = await current_run().llm("judge", f"refund {state['amount']}?", route="fast")
    return {"kind": str(answer.content)}


async def pay(state: Paying) -> Paying:
    return {"paid": await current_run().tool("pay", "pay", {"amount": state["amount"]})}


async def mail(state: Paying) -> Paying:
    return {"mailed": await current_run().tool("mail", "mail", {"to": "li"})}


def paying_tools(ledger: Ledger | None = None) -> RecordingTools:
    """One tool that takes a key and asks, and one that can't be repeated."""
    tools = RecordingTools(ledger)

    @tools.tool(effect="idempotent", asks=True)
    def pay(amount: int, idempotency_key: str, fencing_token: int) -> dict[str, int]:
        return {"paid": amount}

    @tools.tool(effect="once")
    def mail(to: str) -> str:
        return f"mailed {to}"

    return tools


def paying_graph() -> StateGraph[Paying]:
    graph = StateGraph(Paying).add_sequence([judge, pay, mail])
    return graph.add_edge(START, "judge").add_edge("mail", END)


def paying(folder: Path) -> Scene:
    """The scene of its first two nodes, whose ledger is a file."""
    models = {"fast": ScriptedModel(lambda messages: "refund")}
    graph = StateGraph(Paying).add_sequence([judge, pay])
    graph.add_edge(START, "judge").add_edge("pay", END)
    return Scene(graph, tools=paying_tools(Ledger(folder / "ledger.db")), models=models)


def mailing_in_graph_mode(folder: Path) -> Scene:
    """The scene of its last node, as one leased graph: the call can't be repeated."""
    graph = StateGraph(Paying).add_node(mail).add_edge(START, "mail").add_edge("mail", END)
    return Scene(graph, mode="graph", tools=paying_tools(Ledger(folder / "ledger.db")))


# --- many steps --------------------------------------------------------------------------


async def ten_steps(ctx: RunContext, inp: Any) -> list[Any]:
    """Ten tool calls, one after the other."""
    return [await ctx.tool(f"step:{i}", "add", {"number": i}) for i in range(10)]


def adding_tools() -> RecordingTools:
    tools = RecordingTools()

    @tools.tool(effect="idempotent")
    def add(number: int, idempotency_key: str) -> int:
        return number + 1

    return tools
