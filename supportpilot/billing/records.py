"""What the billing system is asked and what it answers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

CallOutcome = Literal["answered", "applied", "repeated", "refused"]


class Refusal(Exception):
    """The billing system refuses a call; the text is a sentence for whoever called."""


class InvoiceLine(BaseModel):
    """An invoice as the customer's account shows it now."""

    id: str
    description: str
    period: str
    amount_cents: int
    refunded_cents: int
    currency: str
    issued_on: str


class InvoicePage(BaseModel):
    """One page of a customer's invoices, oldest first."""

    customer_id: str
    page: int
    has_more: bool
    invoices: list[InvoiceLine]


class Receipt(BaseModel):
    """A refund that is in the ledger."""

    refund_id: str
    invoice_id: str
    amount_cents: int
    currency: str


@dataclass(frozen=True, slots=True)
class RefundOrder:
    """A refund as it was asked for."""

    invoice_id: str
    amount_cents: int
    idempotency_key: str
    fencing_token: int
    tenant: str | None = None  # None: the caller speaks for every tenant

    @property
    def run_id(self) -> str:
        """The run that asks: keys are '<run_id>:<step key>'."""
        return self.idempotency_key.partition(":")[0]

    @property
    def arguments(self) -> dict[str, object]:
        """What is asked for, apart from who asks and which try it is."""
        return {"invoice_id": self.invoice_id, "amount_cents": self.amount_cents}

    @property
    def digest(self) -> str:
        """A key answers only for this request."""
        return hashlib.sha256(json.dumps(self.arguments, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Call:
    """A line of the call log."""

    id: int
    at: str
    tool: str
    arguments: str
    idempotency_key: str | None
    fencing_token: int | None
    attempt: int | None
    outcome: CallOutcome
    detail: str


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A line of the refunds ledger."""

    id: int
    invoice_id: str
    amount_cents: int
    idempotency_key: str
    at: str
