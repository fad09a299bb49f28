"""Putting SupportPilot together: its tools, models, rules, and the graph in both modes."""

from __future__ import annotations

from langgraph_durable import Durable, Rule, ToolHub
from langgraph_durable.integrations.mcp import McpServer
from supportpilot.billing.client import BillingClient
from supportpilot.graph import wire
from supportpilot.model import chat_models
from supportpilot.nodes_graph import graph_nodes
from supportpilot.nodes_steps import steps_nodes
from supportpilot.settings import Settings

GRAPH_MODE = "support.v1"
STEPS_MODE = "support.v2"


def refund_rules(limit_cents: int) -> list[Rule]:
    """Return the policy of refunds: small ones are made, a supervisor decides on others."""
    small = {"argument": "amount_cents", "at_most": limit_cents}
    return [
        Rule(
            "ask",
            tool="billing.create_refund",
            name="refunds need approval",
            remind_after_seconds=4 * 3600,
        ),
        Rule("allow", tool="billing.create_refund", when=small, name="small refunds"),
    ]


def make(settings: Settings | None = None) -> Durable:
    """Build the runtime with both agents, as the settings say; nothing is connected yet."""
    settings = settings or Settings()
    models = chat_models(settings)
    hub = ToolHub()
    hub.mount(McpServer("billing", settings.billing_url), trusted=True)
    durable = Durable(
        settings.database_url,
        tools=hub,
        models=dict(models),
        rules=refund_rules(settings.refund_limit_cents),
    )
    durable.graph(
        GRAPH_MODE,
        wire(graph_nodes(models, BillingClient(settings.billing_url), settings.refund_limit_cents)),
        mode="graph",
        adr="docs/adr/0002-supportpilot-graph-mode-now.md",
    )
    durable.graph(
        STEPS_MODE,
        wire(steps_nodes()),
        mode="steps",
        adr="docs/adr/0003-supportpilot-steps-mode-after-migration.md",
    )
    return durable
