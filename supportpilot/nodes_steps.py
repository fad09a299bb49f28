"""The agent after its migration: every model and tool call is a journaled step.

The graph keeps its shape. Approval is no longer in the code: a rule says that
`create_refund` asks, and the step parks until somebody has answered.
"""

from __future__ import annotations

from langgraph_durable import Refused, current_run
from supportpilot.answers import category_of, choice_of, listed, paid, refused, text_of
from supportpilot.graph import Nodes
from supportpilot.prompts import choose_messages, classify_messages, draft_messages
from supportpilot.state import State


def steps_nodes() -> Nodes:
    """Name the node bodies; what they need comes with the run."""
    return Nodes(classify, list_invoices, choose, refund, draft)


async def classify(state: State) -> State:
    """Sort the ticket."""
    answer = await current_run().llm("classify", classify_messages(state), route="fast")
    return {"category": category_of(answer)}


async def list_invoices(state: State) -> State:
    """List the next page of the customer's invoices."""
    page = state.get("page", 0) + 1
    found = await current_run().tool(
        f"list_invoices:{page}",
        "billing.list_invoices",
        {"customer_id": state["customer_id"], "page": page},
    )
    return listed(state, found)


async def choose(state: State) -> State:
    """Let the model choose the invoice."""
    key = f"choose:{state['page']}"
    return choice_of(await current_run().llm(key, choose_messages(state), route="fast"), state)


async def refund(state: State) -> State:
    """Refund what was chosen, when somebody approves it."""
    asked = {**(state["choice"] or {})}
    # A ToolError is not caught: a refusal by billing ends the run, for an operator to see.
    receipt = await current_run().tool("refund", "billing.create_refund", asked)
    if isinstance(receipt, Refused):
        return {"refund": refused(state, receipt.reason, expired=receipt.expired)}
    return {"refund": paid(receipt)}


async def draft(state: State) -> State:
    """Write the reply to the customer."""
    answer = await current_run().llm("draft", draft_messages(state), route="smart")
    return {"reply": text_of(answer)}
