"""The agent as it was before: its nodes call the model and the billing system directly.

Graph mode makes it durable from outside. What it takes from the runtime is the identity
of the run: the tenant, the idempotency key and the fencing token of the refund.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel
from langgraph.types import interrupt

from langgraph_durable import current_run
from supportpilot.answers import category_of, choice_of, listed, paid, refused, text_of
from supportpilot.billing.client import BillingClient
from supportpilot.graph import Nodes
from supportpilot.prompts import choose_messages, classify_messages, draft_messages
from supportpilot.state import Settled, State


def graph_nodes(
    models: Mapping[str, BaseChatModel], billing: BillingClient, limit_cents: int = 0
) -> Nodes:
    """Build the node bodies around the models of both routes and the billing client.

    A refund over `limit_cents` asks; here the code says so, as no policy sees its calls.
    """

    async def classify(state: State) -> State:
        answer = await models["fast"].ainvoke(classify_messages(state))
        return {"category": category_of(answer)}

    async def list_invoices(state: State) -> State:
        page = state.get("page", 0) + 1
        arguments = {"customer_id": state["customer_id"], "page": page}
        found = await billing.call("list_invoices", arguments, tenant=current_run().tenant)
        return listed(state, found)

    async def choose(state: State) -> State:
        # A node of its own: a crash in the refund doesn't pay for this answer again.
        return choice_of(await models["fast"].ainvoke(choose_messages(state)), state)

    async def refund(state: State) -> State:
        choice = state["choice"]
        asked = {**(choice or {})}
        if choice and choice["amount_cents"] <= limit_cents:
            return {"refund": await _settle(billing, state, asked, {"choice": "approve"})}
        # On resume the node runs again from its start: nothing before this line may act.
        answer = interrupt({"tool": "billing.create_refund", "arguments": asked})
        return {"refund": await _settle(billing, state, asked, answer)}

    async def draft(state: State) -> State:
        return {"reply": text_of(await models["smart"].ainvoke(draft_messages(state)))}

    return Nodes(classify, list_invoices, choose, refund, draft)


async def _settle(
    billing: BillingClient, state: State, asked: Mapping[str, Any], answer: object
) -> Settled:
    """Do what the supervisor answered; only a clear yes pays.

    A refusal by the billing system is no answer: it fails the run, for an operator to see.
    """
    decision = answer if isinstance(answer, Mapping) else {}
    if decision.get("choice") not in ("approve", "edit"):
        reason = str(decision.get("reason") or "")
        return refused(state, reason, expired=bool(decision.get("expired")))
    run = current_run()
    arguments = {
        **asked,
        **(decision.get("arguments") or {}),
        "idempotency_key": run.idempotency_key("refund"),
        "fencing_token": run.epoch,
    }
    return paid(await billing.call("create_refund", arguments, tenant=run.tenant))
