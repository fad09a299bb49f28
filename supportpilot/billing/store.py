"""The billing system's file: every public method is one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from datetime import UTC, datetime
from pathlib import Path

from supportpilot.billing import seed
from supportpilot.billing.records import (
    Call,
    CallOutcome,
    InvoiceLine,
    InvoicePage,
    LedgerRow,
    Receipt,
    RefundOrder,
    Refusal,
)
from supportpilot.billing.schema import TABLES

PAGE_LENGTH = 5
BUSY_SECONDS = 30.0
MAX_TOKEN = 2**63 - 1  # SQLite's largest integer

_LINES = """
SELECT i.id, i.description, i.period, i.amount_cents,
       coalesce((SELECT sum(r.amount_cents) FROM refunds r WHERE r.invoice_id = i.id), 0),
       i.currency, i.issued_on
FROM invoices i
"""


class BillingStore:
    """Invoices, the refunds ledger, remembered keys, fences and the call log in one file."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)

    def create(self) -> None:
        """Make the tables and the seeded customers where they are missing."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(TABLES)
        with self._writing() as tx:
            tx.executemany(
                "INSERT OR IGNORE INTO invoices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [astuple(invoice) for invoice in seed.invoices()],
            )

    def list_invoices(
        self, customer_id: str, page: int = 1, *, tenant: str | None = None
    ) -> InvoicePage:
        """Give one page of a customer's invoices; a customer that is not known has none."""
        with self._writing() as tx:
            rows = tx.execute(
                _LINES
                + "WHERE i.customer_id = :customer AND (:tenant IS NULL OR i.tenant = :tenant)"
                " ORDER BY i.position LIMIT :limit OFFSET :offset",
                {
                    "customer": _text(customer_id),
                    "tenant": tenant,
                    "limit": PAGE_LENGTH + 1,
                    "offset": (page - 1) * PAGE_LENGTH,
                },
            ).fetchall()
            _log(tx, "list_invoices", {"customer_id": customer_id, "page": page}, "answered")
        return InvoicePage(
            customer_id=customer_id,
            page=page,
            has_more=len(rows) > PAGE_LENGTH,
            invoices=[_line(row) for row in rows[:PAGE_LENGTH]],
        )

    def refund(self, order: RefundOrder) -> Receipt:
        """Pay a refund once: the ledger row, its key and the fence become true together.

        A repeat under the same key gets the first receipt and pays nothing.

        Raises:
            Refusal: nothing was paid; the call log says why.
        """
        with self._writing() as tx:
            # A refusal is raised after the commit: the log of it and the raised fence stay.
            settled = _settle(tx, order)
            outcome: CallOutcome = "refused" if isinstance(settled, Refusal) else settled[1]
            detail = str(settled) if isinstance(settled, Refusal) else ""
            _log(tx, "create_refund", order.arguments, outcome, order=order, detail=detail)
        if isinstance(settled, Refusal):
            raise settled
        return settled[0]

    def refunds(self) -> list[LedgerRow]:
        """Read the ledger."""
        with self._connection() as connection:
            rows = connection.execute(
                "SELECT id, invoice_id, amount_cents, idempotency_key, at FROM refunds ORDER BY id"
            )
            return [LedgerRow(*row) for row in rows]

    def calls(self) -> list[Call]:
        """Read the log of every call that arrived, in order."""
        with self._connection() as connection:
            rows = connection.execute(
                "SELECT id, at, tool, arguments, idempotency_key, fencing_token, attempt,"
                " outcome, detail FROM calls ORDER BY id"
            )
            return [Call(*row) for row in rows]

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        # A connection a call: tools run on worker threads, and sqlite3's belong to one.
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            yield connection
        finally:
            connection.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        # IMMEDIATE: two calls with one key must not both read "key unknown".
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")


def _settle(tx: sqlite3.Connection, order: RefundOrder) -> tuple[Receipt, CallOutcome] | Refusal:
    """Decide what comes of an order, in the order in which it can go wrong."""
    # The fence comes before the key: a worker that lost its run learns that here,
    # even when what it asks for is already paid.
    refusal = _fence(tx, order)
    if refusal is not None:
        return refusal
    known = tx.execute(
        "SELECT request, result FROM idempotency_keys WHERE key = ?", (order.idempotency_key,)
    ).fetchone()
    if known is not None:
        if known[0] != order.digest:
            return Refusal(
                f"the idempotency key {order.idempotency_key!r} was used for another request; "
                "use a new key for a new refund"
            )
        return Receipt.model_validate_json(known[1]), "repeated"
    return _pay(tx, order)


def _fence(tx: sqlite3.Connection, order: RefundOrder) -> Refusal | None:
    run_id, separator, step = order.idempotency_key.partition(":")
    if not (run_id and separator and step) or _text(order.idempotency_key) != order.idempotency_key:
        return Refusal("idempotency_key must be '<run_id>:<step key>'")
    if not 0 < order.fencing_token <= MAX_TOKEN:
        return Refusal(f"fencing_token must be between 1 and {MAX_TOKEN}")
    row = tx.execute("SELECT token FROM fences WHERE run_id = ?", (run_id,)).fetchone()
    if row is not None and order.fencing_token < row[0]:
        return Refusal(
            f"stale fencing token {order.fencing_token}: run {run_id} was taken over under token "
            f"{row[0]}; this worker must stop"
        )
    tx.execute(
        "INSERT INTO fences VALUES (?, ?)"
        " ON CONFLICT (run_id) DO UPDATE SET token = excluded.token",
        (run_id, order.fencing_token),
    )
    return None


def _pay(tx: sqlite3.Connection, order: RefundOrder) -> tuple[Receipt, CallOutcome] | Refusal:
    row = tx.execute(
        _LINES + "WHERE i.id = :id AND (:tenant IS NULL OR i.tenant = :tenant)",
        {"id": _text(order.invoice_id), "tenant": order.tenant},
    ).fetchone()
    if row is None:
        return Refusal(f"there is no invoice {order.invoice_id!r}")
    invoice = _line(row)
    rest = invoice.amount_cents - invoice.refunded_cents
    if order.amount_cents <= 0:
        return Refusal(f"amount_cents must be positive, not {order.amount_cents}")
    if order.amount_cents > rest:
        return Refusal(
            f"{order.amount_cents} cents is more than the {rest} cents of invoice "
            f"{invoice.id} that are not refunded yet"
        )
    number = tx.execute(
        "INSERT INTO refunds (invoice_id, amount_cents, idempotency_key, at) VALUES (?, ?, ?, ?)",
        (invoice.id, order.amount_cents, order.idempotency_key, _now()),
    ).lastrowid
    receipt = Receipt(
        refund_id=f"rf_{number:04d}",
        invoice_id=invoice.id,
        amount_cents=order.amount_cents,
        currency=invoice.currency,
    )
    tx.execute(
        "INSERT INTO idempotency_keys VALUES (?, ?, ?)",
        (order.idempotency_key, order.digest, receipt.model_dump_json()),
    )
    return receipt, "applied"


def _log(
    tx: sqlite3.Connection,
    tool: str,
    arguments: dict[str, object],
    outcome: CallOutcome,
    *,
    order: RefundOrder | None = None,
    detail: str = "",
) -> None:
    key = token = attempt = None
    if order is not None:
        key = _text(order.idempotency_key)
        token = min(max(order.fencing_token, 0), MAX_TOKEN)
        earlier = tx.execute("SELECT count(*) FROM calls WHERE idempotency_key = ?", (key,))
        attempt = earlier.fetchone()[0] + 1
    tx.execute(
        "INSERT INTO calls (at, tool, arguments, idempotency_key, fencing_token, attempt,"
        " outcome, detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (_now(), tool, json.dumps(arguments), key, token, attempt, outcome, _text(detail)),
    )


def _line(row: tuple[str, str, str, int, int, str, str]) -> InvoiceLine:
    names = InvoiceLine.model_fields
    return InvoiceLine.model_validate(dict(zip(names, row, strict=True)))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _text(text: str) -> str:
    # JSON may carry half of a surrogate pair, which SQLite cannot store.
    return text.encode("utf-8", "replace").decode("utf-8")
