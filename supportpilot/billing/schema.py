"""The tables of the billing system."""

from __future__ import annotations

TABLES = """
CREATE TABLE IF NOT EXISTS invoices (
    id            TEXT PRIMARY KEY,
    tenant        TEXT NOT NULL,
    customer_id   TEXT NOT NULL,
    position      INTEGER NOT NULL,
    description   TEXT NOT NULL,
    period        TEXT NOT NULL,
    amount_cents  INTEGER NOT NULL CHECK (amount_cents > 0),
    currency      TEXT NOT NULL,
    issued_on     TEXT NOT NULL,
    UNIQUE (customer_id, position)
) STRICT;

-- The ledger: money that left. Rows are only ever added.
CREATE TABLE IF NOT EXISTS refunds (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    invoice_id    TEXT NOT NULL REFERENCES invoices (id),
    amount_cents  INTEGER NOT NULL CHECK (amount_cents > 0),
    idempotency_key TEXT NOT NULL UNIQUE,
    at            TEXT NOT NULL
) STRICT;

-- What a key was first used for, and the answer it got: a repeat gets the same one.
CREATE TABLE IF NOT EXISTS idempotency_keys (
    key           TEXT PRIMARY KEY,
    request       TEXT NOT NULL,
    result        TEXT NOT NULL
) STRICT;

-- The highest fencing token that was seen from each run.
CREATE TABLE IF NOT EXISTS fences (
    run_id        TEXT PRIMARY KEY,
    token         INTEGER NOT NULL
) STRICT;

-- Every call that arrived, whatever came of it.
CREATE TABLE IF NOT EXISTS calls (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    at            TEXT NOT NULL,
    tool          TEXT NOT NULL,
    arguments     TEXT NOT NULL,
    idempotency_key TEXT,
    fencing_token INTEGER,
    attempt       INTEGER,
    outcome       TEXT NOT NULL CHECK (outcome IN ('answered', 'applied', 'repeated', 'refused')),
    detail        TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX IF NOT EXISTS calls_by_key ON calls (idempotency_key);
CREATE INDEX IF NOT EXISTS refunds_by_invoice ON refunds (invoice_id);
"""
