"""What the graph carries from node to node."""

from __future__ import annotations

from typing import Literal, TypedDict

Category = Literal["refund", "billing", "other"]
RefundOutcome = Literal["refunded", "refused", "expired"]


class Invoice(TypedDict):
    """An invoice as the billing system lists it."""

    id: str
    description: str
    period: str
    amount_cents: int
    refunded_cents: int
    currency: str
    issued_on: str


class Choice(TypedDict):
    """The invoice that the model chose, and how much of it goes back."""

    invoice_id: str
    amount_cents: int


class Settled(TypedDict):
    """What came of the refund."""

    outcome: RefundOutcome
    amount_cents: int  # what was paid back; 0 when nothing was
    currency: str
    reason: str


class State(TypedDict, total=False):
    """A ticket on its way. A run starts with `ticket` and `customer_id`."""

    ticket: str
    customer_id: str
    category: Category
    page: int  # the last page of invoices that was listed
    has_more: bool
    invoices: list[Invoice]  # of all pages listed so far
    wants_more: bool  # the model asks for the next page
    choice: Choice | None
    refund: Settled
    reply: str
