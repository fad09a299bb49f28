"""Messages for the world outside, written in the transaction of what they tell.

A message that is here is delivered at least once, after the others of its run; `key` tells
its repeats apart. A worker takes a message by moving its next try, so that no other one
delivers it meanwhile and a dead worker's message comes up again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

from langgraph_durable.store.schema import among, outbox
from langgraph_durable.store.timeline import Timeline
from langgraph_durable.topics import split
from langgraph_durable.values import clean_text

State = Literal["pending", "delivered", "dead"]
IS_PENDING = among(outbox.c.state, "pending")
MAX_ERROR_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Message:
    """One thing to tell. `id` is the same at every delivery."""

    id: str
    topic: str
    run_id: str
    tenant: str
    payload: Mapping[str, Any]
    created_at: datetime
    state: State = "pending"
    attempts: int = 0
    error: str | None = None
    row: int = 0


def put(
    tx: sa.Connection,
    time: Timeline,
    run_id: str,
    tenant: str,
    key: str,
    topic: str,
    payload: Mapping[str, Any],
) -> None:
    """Write a message; one of this run with the same key stays as it is."""
    from sqlalchemy.dialects import postgresql, sqlite

    make = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
    tx.execute(
        make(outbox)
        .on_conflict_do_nothing(index_elements=["run_id", "key"])
        .values(
            run_id=run_id,
            tenant=tenant,
            key=key,
            topic=topic,
            payload=json.dumps(payload, default=str),
            state="pending",
            next_at=time.now(),
            created_at=time.now(),
        )
    )


def take(
    tx: sa.Connection, time: Timeline, topics: Sequence[str], hold_seconds: float, limit: int
) -> list[Message]:
    """Take due messages of these topics, of each run the first pending; hold them for a while."""
    earlier = outbox.alias("earlier")
    waits = (
        sa.exists()
        .where(
            earlier.c.run_id == outbox.c.run_id,
            earlier.c.id < outbox.c.id,
            among(earlier.c.state, "pending"),
        )
        .correlate(outbox)
    )
    due = (
        sa.select(outbox.c.id)
        .where(
            IS_PENDING,
            outbox.c.next_at <= time.now(),
            sa.or_(*(_is_of(pattern) for pattern in topics)),
            sa.not_(waits),
        )
        .order_by(outbox.c.next_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    taken = tx.execute(
        sa.update(outbox)
        .where(outbox.c.id.in_(due))
        .values(next_at=time.later(hold_seconds), attempts=outbox.c.attempts + 1)
        .returning(*outbox.c)
    ).all()
    return sorted((_message(row) for row in taken), key=lambda message: message.row)


def _is_of(pattern: str) -> sa.ColumnElement[bool]:
    """`topics.matches` in SQL."""
    text, opens = split(pattern)
    begins = sa.func.substr(outbox.c.topic, 1, len(text)) if opens else outbox.c.topic
    return begins == text


def delivered(tx: sa.Connection, time: Timeline, row: int) -> None:
    """Take note that a message arrived."""
    tx.execute(
        sa.update(outbox)
        .where(outbox.c.id == row, IS_PENDING)
        .values(state="delivered", delivered_at=time.now(), error=None)
    )


def failed(
    tx: sa.Connection, time: Timeline, row: int, error: str, again_in_seconds: float | None
) -> None:
    """Take note that a delivery failed; without another try the message is dead."""
    later = {"next_at": time.later(again_in_seconds)} if again_in_seconds is not None else {}
    tx.execute(
        sa.update(outbox)
        .where(outbox.c.id == row, IS_PENDING)
        .values(
            state="dead" if again_in_seconds is None else "pending",
            error=clean_text(error)[:MAX_ERROR_CHARACTERS],
            **later,
        )
    )


def of_run(tx: sa.Connection, run_id: str) -> list[Message]:
    """Return the messages of a run, in order."""
    found = tx.execute(sa.select(outbox).where(outbox.c.run_id == run_id).order_by(outbox.c.id))
    return [_message(row) for row in found]


@dataclass(frozen=True, slots=True)
class Letters:
    """Which messages to list, newest first."""

    tenant: str | None = None
    run_id: str | None = None
    state: State | None = None
    limit: int = 100


def listed(tx: sa.Connection, which: Letters) -> list[Message]:
    """Return messages, newest first."""
    query = sa.select(outbox).order_by(outbox.c.id.desc()).limit(which.limit)
    if which.state is not None:
        query = query.where(among(outbox.c.state, which.state))
    found = tx.execute(query.where(*_of(which.tenant, which.run_id)))
    return [_message(row) for row in found]


def find(tx: sa.Connection, message_id: str, tenant: str | None) -> Message | None:
    """Return a message by its id."""
    run_id, _, key = message_id.partition(":")
    query = sa.select(outbox).where(outbox.c.key == key, *_of(tenant, run_id))
    row = tx.execute(query).one_or_none()
    return None if row is None else _message(row)


def _revive(tx: sa.Connection, time: Timeline, *which: sa.ColumnElement[bool]) -> list[Message]:
    """Have dead messages tried again, as if for the first time; returns those that were dead."""
    revived = tx.execute(
        sa.update(outbox)
        .where(among(outbox.c.state, "dead"), *which)
        .values(state="pending", attempts=0, next_at=time.now())
        .returning(*outbox.c)
    )
    return sorted((_message(row) for row in revived), key=lambda message: message.row)


def revive_one(tx: sa.Connection, time: Timeline, message: Message) -> list[Message]:
    """Have a message tried again, if it is dead."""
    return _revive(tx, time, outbox.c.id == message.row)


def revive_all(
    tx: sa.Connection, time: Timeline, tenant: str | None, run_id: str | None
) -> list[Message]:
    """Have all dead messages tried again, of one tenant or run."""
    return _revive(tx, time, *_of(tenant, run_id))


def _of(tenant: str | None, run_id: str | None) -> list[sa.ColumnElement[bool]]:
    wanted = ((outbox.c.tenant, tenant), (outbox.c.run_id, run_id))
    return [column == value for column, value in wanted if value is not None]


def _message(row: sa.Row[Any]) -> Message:
    return Message(
        id=f"{row.run_id}:{row.key}",
        topic=row.topic,
        run_id=row.run_id,
        tenant=row.tenant,
        payload=json.loads(row.payload),
        created_at=row.created_at,
        state=row.state,
        attempts=row.attempts,
        error=row.error,
        row=row.id,
    )
