"""SupportPilot's graph: one shape, whatever makes its nodes durable.

START → classify ─ refund → list_invoices → choose ─ chosen → refund → draft → END
           │                      ↑            ├─ show me more (next page)
           └─ billing, other      └────────────┘
                    └→ draft                   └─ none found → draft
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from langgraph.graph import END, START, StateGraph

from supportpilot.state import State

#: A model that never finds what it looks for must not page for ever.
MAX_PAGES = 20


@dataclass(frozen=True, slots=True)
class Nodes:
    """The five bodies that a mode gives to the graph."""

    classify: Callable[..., Any]
    list_invoices: Callable[..., Any]
    choose: Callable[..., Any]
    refund: Callable[..., Any]
    draft: Callable[..., Any]


def wire(nodes: Nodes) -> StateGraph[State]:
    """Give the graph its shape around `nodes`."""
    graph = StateGraph(State)
    graph.add_node("classify", nodes.classify)
    graph.add_node("list_invoices", nodes.list_invoices)
    graph.add_node("choose", nodes.choose)
    graph.add_node("refund", nodes.refund)
    graph.add_node("draft", nodes.draft)
    graph.add_edge(START, "classify")
    graph.add_conditional_edges("classify", after_classify)
    graph.add_edge("list_invoices", "choose")
    graph.add_conditional_edges("choose", after_choose)
    graph.add_edge("refund", "draft")
    graph.add_edge("draft", END)
    return graph


def after_classify(state: State) -> Literal["list_invoices", "draft"]:
    """Only a refund touches the billing system, and only of a customer who is known."""
    wants_refund = state.get("category") == "refund"
    return "list_invoices" if wants_refund and state.get("customer_id") else "draft"


def after_choose(state: State) -> Literal["refund", "list_invoices", "draft"]:
    """Refund what was chosen, show the next page, or tell that nothing fits."""
    if state.get("choice"):
        return "refund"
    if state.get("wants_more") and state.get("has_more") and state["page"] < MAX_PAGES:
        return "list_invoices"
    return "draft"
