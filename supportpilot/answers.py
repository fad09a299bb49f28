"""Reading what the model and people answered. An unclear answer never pays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from langchain_core.messages import BaseMessage

from supportpilot.state import Category, Choice, Invoice, RefundOutcome, Settled, State


def category_of(answer: BaseMessage) -> Category:
    """Read the category; what can't be read is `other`, for which no tool is called."""
    said = _json_object(answer).get("category")
    return cast(Category, said) if said in get_args(Category) else "other"


def listed(state: State, found: Mapping[str, Any]) -> State:
    """Add a page of invoices to those listed so far."""
    return {
        "page": found["page"],
        "has_more": found["has_more"],
        "invoices": [*state.get("invoices", []), *found["invoices"]],
    }


def choice_of(answer: BaseMessage, state: State) -> State:
    """Read which invoice the model chose, or that it wants to see more.

    An invoice that was not listed, or an amount that it doesn't have left, is no choice.
    """
    said = _json_object(answer)
    invoice = _of_id(state.get("invoices", []), said.get("invoice"))
    if invoice is None:
        return {"choice": None, "wants_more": said.get("more") is True}
    rest = rest_cents(invoice)
    amount = said.get("amount_cents", rest)
    if not isinstance(amount, int) or isinstance(amount, bool) or not 0 < amount <= rest:
        return {"choice": None, "wants_more": False}
    choice: Choice = {"invoice_id": invoice["id"], "amount_cents": amount}
    return {"choice": choice, "wants_more": False}


def rest_cents(invoice: Invoice) -> int:
    """Return what of an invoice is not refunded yet."""
    return invoice["amount_cents"] - invoice["refunded_cents"]


def paid(receipt: Mapping[str, Any]) -> Settled:
    """Say that the billing system paid, and how much."""
    return {
        "outcome": "refunded",
        "amount_cents": receipt["amount_cents"],
        "currency": receipt["currency"],
        "reason": "",
    }


def refused(state: State, reason: str, *, expired: bool) -> Settled:
    """Say that a person refused the refund, or that nobody answered in time."""
    outcome: RefundOutcome = "expired" if expired else "refused"
    choice = state.get("choice")
    invoice = _of_id(state.get("invoices", []), choice["invoice_id"] if choice else None)
    currency = invoice["currency"] if invoice else ""
    return {"outcome": outcome, "amount_cents": 0, "currency": currency, "reason": reason}


def text_of(answer: BaseMessage) -> str:
    """Return the text of a model's answer."""
    return str(answer.text).strip()


def _of_id(invoices: Sequence[Invoice], invoice_id: object) -> Invoice | None:
    return next((invoice for invoice in invoices if invoice["id"] == invoice_id), None)


def _json_object(answer: BaseMessage) -> dict[str, Any]:
    # Models like to wrap JSON in prose or a code fence.
    text = text_of(answer)
    start, end = text.find("{"), text.rfind("}")
    try:
        found = json.loads(text[start : end + 1])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
