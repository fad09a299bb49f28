"""Choosing the invoice to refund by rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from supportpilot.answers import rest_cents
from supportpilot.rules import tickets
from supportpilot.state import Invoice


def choose(ticket: str, invoices: Sequence[Invoice], *, has_more: bool) -> dict[str, Any]:
    """Choose an invoice and how much of it to refund, or ask for the next page."""
    chosen = _fitting(ticket, invoices)
    if chosen is None:
        return {"invoice": None, "amount_cents": None, "more": has_more}
    asked = tickets.amount_cents(ticket)
    rest = rest_cents(chosen)
    amount = asked if asked is not None and 0 < asked <= rest else rest
    return {"invoice": chosen["id"], "amount_cents": amount, "more": False}


def _fitting(ticket: str, invoices: Sequence[Invoice]) -> Invoice | None:
    named = tickets.invoice_id(ticket)
    if named is not None:
        return _last(invoice for invoice in invoices if invoice["id"] == named)
    hint = tickets.plan(ticket)
    fitting = [i for i in invoices if hint is None or hint in i["description"].lower()]
    if tickets.charged_twice(ticket):
        return _last_of_a_pair(fitting)
    return _last(fitting)


def _last_of_a_pair(invoices: Sequence[Invoice]) -> Invoice | None:
    """Return the last one of the newest group that was charged more than once.

    When one of a group is refunded, the mistake is mended: what is left is owed.
    """
    groups: dict[tuple[str, str, int], list[Invoice]] = defaultdict(list)
    for invoice in invoices:
        groups[invoice["description"], invoice["period"], invoice["amount_cents"]].append(invoice)
    doubled = [
        group
        for group in groups.values()
        if len(group) > 1 and not any(invoice["refunded_cents"] for invoice in group)
    ]
    return doubled[-1][-1] if doubled else None


def _last(invoices: Any) -> Invoice | None:
    left = [invoice for invoice in invoices if rest_cents(invoice) > 0]
    return left[-1] if left else None
