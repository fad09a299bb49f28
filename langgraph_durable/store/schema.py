"""Tables and indexes. The migrations build the same; a test compares the two.

Times are `timestamptz` on PostgreSQL and UTC text on SQLite. Values are ASCII JSON in
`TEXT`, so that NUL and lone surrogates behave the same on both. `runs.lease_until` has
no index on purpose: it changes with every heartbeat, and a row whose changed columns are
not indexed is updated in place (PostgreSQL's HOT); the few leased rows are found by the
partial index `runs_leased`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from langgraph_durable.store.sealed import Blinded, Sealed


class UtcTime(TypeDecorator[datetime]):
    """An aware time in UTC, on both databases."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Store UTC; SQLite's text form keeps no zone."""
        if value is None or dialect.name != "sqlite":
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Give the zone back."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def sqlite_time(at: datetime) -> str:
    """Return an aware time as `UtcTime` keeps it in SQLite, for statements that bypass types."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


metadata = sa.MetaData()


def _text(name: str, **kw: Any) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, **kw)


def _maybe(name: str, kind: Any = sa.Text) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)


def _count(name: str, default: int = 0) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, server_default=str(default))


def _sealed(place: str, nullable: bool = False) -> sa.Column[Any]:
    """A payload: encrypted where the database has keys. `place` is "table.column"."""
    return sa.Column(place.partition(".")[2], Sealed(place), nullable=nullable)


# SQLite uses a partial index only if the statement has its condition word for word.
OWNED = ("running", "cancelling")
ENDED = ("succeeded", "failed", "cancelled")
LEASED = f"status IN {OWNED}"
UNFINISHED = f"status NOT IN {ENDED}"


def among(column: sa.ColumnElement[str], *values: str) -> sa.ColumnElement[bool]:
    """Say that a column has one of our own words, written out in the statement.

    Behind a parameter SQLite doesn't recognise the condition of a partial index, and would
    read all runs of a tenant instead.
    """
    words: list[sa.ColumnElement[str]] = [sa.literal_column(f"'{value}'") for value in values]
    return column == words[0] if len(words) == 1 else column.in_(words)


def _partial(name: str, *columns: Any, where: str, unique: bool = False) -> sa.Index:
    return sa.Index(
        name, *columns, unique=unique, postgresql_where=sa.text(where), sqlite_where=sa.text(where)
    )


runs = sa.Table(
    "runs",
    metadata,
    _text("id", primary_key=True),
    _text("tenant"),
    _text("agent"),
    _text("version"),
    _text("mode"),
    _text("thread"),
    # true from the first claim to the end: one unfinished run at a time holds a thread
    sa.Column("holds_thread", sa.Boolean, nullable=False, server_default=sa.false()),
    _text("status"),
    _count("priority"),
    _sealed("runs.input"),
    _sealed("runs.output", nullable=True),
    _sealed("runs.error", nullable=True),
    _count("attempts"),
    _count("max_attempts", 3),
    _count("epoch"),
    _count("progress_epoch"),  # the last epoch under which a checkpoint was written
    _maybe("worker"),
    _maybe("previous_worker"),
    _maybe("claimed_from"),  # the status that the last claim found
    _maybe("unwinding"),  # "failed" or "cancelled": its compensations run, then it ends so
    _maybe("lease_until", UtcTime),
    sa.Column("run_after", UtcTime, nullable=False),
    _maybe("deadline_seconds", sa.Float),
    _maybe("idempotency_key"),
    _count("asked"),  # how many questions were ever put: 0 spares a claim one query
    _count("saved_steps"),
    _count("saved_tokens"),
    sa.Column("created_at", UtcTime, nullable=False),
    _maybe("started_at", UtcTime),
    _maybe("finished_at", UtcTime),
    _maybe("wake_at", UtcTime),  # of a parked run: when its timer is over
)

# Claims look only at these few rows, however many runs are finished or parked.
_partial("runs_due", runs.c.priority.desc(), runs.c.run_after, runs.c.id, where="status = 'queued'")
_partial("runs_leased", runs.c.agent, where=LEASED)
_partial("runs_to_wake", runs.c.wake_at, where="wake_at IS NOT NULL")
_partial("runs_on_thread", runs.c.tenant, runs.c.thread, runs.c.created_at, where=UNFINISHED)
_partial("runs_hold_thread", runs.c.tenant, runs.c.thread, where="holds_thread", unique=True)
_partial(
    "runs_idempotency",
    runs.c.tenant,
    runs.c.idempotency_key,
    where="idempotency_key IS NOT NULL",
    unique=True,
)
sa.Index("runs_by_tenant", runs.c.tenant, runs.c.created_at, runs.c.id)
sa.Index("runs_by_status", runs.c.status, runs.c.created_at, runs.c.id)
sa.Index("runs_by_time", runs.c.created_at, runs.c.id)

steps = sa.Table(
    "steps",
    metadata,
    _text("run_id", primary_key=True),
    _text("key", primary_key=True),
    _count("seq"),
    _text("kind"),
    _text("name"),
    _text("state"),
    _sealed("steps.fingerprint"),
    _sealed("steps.request"),
    _sealed("steps.value", nullable=True),
    _text("place"),
    _sealed("steps.error", nullable=True),
    _count("attempts"),
    _count("input_tokens"),
    _count("output_tokens"),
    _maybe("approval_id"),
    _count("epoch"),
    sa.Column("seconds", sa.Float, nullable=False, server_default="0"),
    sa.Column("recorded_at", UtcTime, nullable=False),
    _sealed("steps.compensation", nullable=True),  # the call that undoes it
)

questions = sa.Table(
    "questions",
    metadata,
    _text("id", primary_key=True),
    _text("run_id"),
    _text("tenant"),
    _text("key"),
    _text("kind"),
    _text("tool"),
    _sealed("questions.payload"),
    sa.Column("digest", Blinded("questions.digest"), nullable=False),
    _text("allowed"),
    _maybe("role"),
    _maybe("schema"),
    _maybe("interrupt_id"),
    _text("on_expiry"),
    _sealed("questions.fallback", nullable=True),
    _text("state"),
    sa.Column("asked_at", UtcTime, nullable=False),
    _maybe("expires_at", UtcTime),
    _sealed("questions.decision", nullable=True),
    _maybe("decided_by"),
    _maybe("decided_at", UtcTime),
    _maybe("approval_id"),
    _count("approvals", 1),  # how many different people must approve
    _maybe("remind_seconds", sa.Float),
    _maybe("remind_at", UtcTime),
    _count("reminded"),
    _maybe("escalate_to"),
    _maybe("escalate_at", UtcTime),
    _maybe("person"),  # whom it was handed to, by name
    _sealed("questions.refused_before", nullable=True),  # the last refusal of the very same request
)
sa.Index("questions_of_run", questions.c.run_id)
_partial(
    "questions_open_key", questions.c.run_id, questions.c.key, where="state = 'open'", unique=True
)
_partial("questions_inbox", questions.c.tenant, questions.c.asked_at, where="state = 'open'")
_partial("questions_due", questions.c.expires_at, where="state = 'open' AND expires_at IS NOT NULL")
_partial(
    "questions_to_remind", questions.c.remind_at, where="state = 'open' AND remind_at IS NOT NULL"
)
_partial(
    "questions_to_escalate",
    questions.c.escalate_at,
    where="state = 'open' AND escalate_at IS NOT NULL",
)
_partial(
    "questions_decided",
    questions.c.tenant,
    questions.c.tool,
    questions.c.digest,
    questions.c.decided_at,
    where="state = 'decided'",
)

approvals = sa.Table(  # of questions that more than one person must approve
    "approvals",
    metadata,
    _text("question_id", primary_key=True),
    _text("person", primary_key=True),  # the name without regard to case
    _text("name"),
    _text("run_id"),
    sa.Column("said", Blinded("approvals.said"), nullable=False),  # the digest of what was approved
    _sealed("approvals.decision"),
    sa.Column("at", UtcTime, nullable=False),
)
sa.Index("approvals_of_run", approvals.c.run_id)

rules = sa.Table(  # those that decisions carried
    "rules",
    metadata,
    _text("id", primary_key=True),
    _text("tenant"),
    _sealed("rules.data"),
    _maybe("role"),  # who may decide what the rule answers
    _count("approvals", 1),
    _text("question_id"),
    _text("run_id"),
    _text("made_by"),
    sa.Column("made_at", UtcTime, nullable=False),
    _maybe("expires_at", UtcTime),
    _maybe("revoked_at", UtcTime),
    _maybe("revoked_by"),
)
sa.Index("rules_by_tenant", rules.c.tenant, rules.c.made_at, rules.c.id)

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column(
        "id",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    _text("run_id"),
    _text("tenant"),
    _text("key"),
    _text("topic"),
    _sealed("outbox.payload"),
    _text("state"),  # pending, delivered or dead
    _count("attempts"),
    sa.Column("next_at", UtcTime, nullable=False),
    _sealed("outbox.error", nullable=True),
    sa.Column("created_at", UtcTime, nullable=False),
    _maybe("delivered_at", UtcTime),
)
sa.Index("outbox_key", outbox.c.run_id, outbox.c.key, unique=True)
_partial("outbox_pending", outbox.c.run_id, outbox.c.id, where="state = 'pending'")
_partial("outbox_due", outbox.c.next_at, where="state = 'pending'")
_partial("outbox_dead", outbox.c.id, where="state = 'dead'")

signals = sa.Table(  # what people and programs outside tell a run
    "signals",
    metadata,
    sa.Column(
        "number",  # the order of arrival
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    _text("run_id"),
    _text("id"),  # the sender's
    _text("event"),
    _sealed("signals.payload"),
    # of the payload: a repeat under the same id must bring the same
    sa.Column("digest", Blinded("signals.digest"), nullable=False),
    _text("sent_by"),
    sa.Column("sent_at", UtcTime, nullable=False),
    _maybe("taken_by"),  # the key of the step
)
sa.Index("signals_id", signals.c.run_id, signals.c.id, unique=True)
_partial(
    "signals_untaken", signals.c.run_id, signals.c.event, signals.c.number, where="taken_by IS NULL"
)

events = sa.Table(
    "events",
    metadata,
    sa.Column(
        "id",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    _text("run_id"),
    _text("tenant"),
    _text("type"),
    sa.Column("at", UtcTime, nullable=False),
    _text("actor"),
    _sealed("events.data"),
)
sa.Index("events_of_run", events.c.run_id, events.c.id)

workers = sa.Table(
    "workers",
    metadata,
    _text("name", primary_key=True),
    _text("agents"),
    sa.Column("seen_at", UtcTime, nullable=False),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    _text("id", primary_key=True),  # the public part of the key
    _text("tenant"),
    _text("name"),
    _text("roles"),
    _text("scopes"),
    _text("digest"),  # HMAC of the secret part, keyed with the pepper
    sa.Column("created_at", UtcTime, nullable=False),
    _text("created_by"),
    _maybe("expires_at", UtcTime),
    _maybe("revoked_at", UtcTime),
    _maybe("revoked_by"),
)
sa.Index("api_keys_by_tenant", api_keys.c.tenant, api_keys.c.created_at, api_keys.c.id)

encryption = sa.Table(  # one row in a database that is encrypted
    "encryption",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    _sealed("encryption.digests"),  # the key of its digests
)
