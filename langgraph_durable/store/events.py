"""The audit: what a person or a worker did to a run, appended in the same transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from langgraph_durable.runs import Event
from langgraph_durable.store import outbox
from langgraph_durable.store.schema import events
from langgraph_durable.store.timeline import Timeline
from langgraph_durable.values import clean_text

#: Events that people outside are told of (where somebody listens: `Durable(notify=...)`).
NOTICES: Mapping[str, str] = {
    "question_asked": "question.asked",
    "question_reminded": "question.reminded",
    "question_escalated": "question.escalated",
    "question_delegated": "question.delegated",
    "question_expired": "question.expired",
    "run_succeeded": "run.ended",
    "run_failed": "run.ended",
    "run_cancelled": "run.ended",
}


def append(
    tx: sa.Connection,
    time: Timeline,
    run_id: str,
    tenant: str,
    type_: str,
    actor: str,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Write one line, and the notice that goes with it.

    `type_` is a fact in the past tense, such as `run_claimed`.
    """
    who = clean_text(actor)
    line = sa.insert(events).values(
        run_id=run_id, tenant=tenant, type=type_, at=time.now(), actor=who, data=_text(data)
    )
    topic = NOTICES.get(type_)
    if topic is None or not tx.get_execution_options().get("notifies"):
        tx.execute(line)
        return
    event_id = tx.execute(line.returning(events.c.id)).scalar_one()
    payload = {"event": type_, "run_id": run_id, "tenant": tenant, "actor": who, **(data or {})}
    outbox.put(tx, time, run_id, tenant, f"event:{event_id}", topic, payload)


def append_all(
    tx: sa.Connection,
    time: Timeline,
    type_: str,
    lines: Sequence[tuple[str, str, str, Mapping[str, Any]]],
) -> None:
    """Write the same fact about several runs: (run, tenant, actor, data) of each.

    For what happens to many runs at once and nobody outside is told of.
    """
    if lines:
        made = [
            {"run_id": run_id, "tenant": tenant, "actor": clean_text(actor), "data": _text(data)}
            for run_id, tenant, actor, data in lines
        ]
        tx.execute(sa.insert(events).values(type=type_, at=time.now()), made)


def _text(data: Mapping[str, Any] | None) -> str:
    return json.dumps(data or {}, default=str)


def of_run(tx: sa.Connection, run_id: str, after: int = 0, limit: int = 10_000) -> Sequence[Event]:
    """Return the events of a run in order, those behind id `after`."""
    found = tx.execute(
        sa.select(events)
        .where(events.c.run_id == run_id, events.c.id > after)
        .order_by(events.c.id)
        .limit(limit)
    )
    return [
        Event(row.id, row.run_id, row.tenant, row.type, row.at, row.actor, json.loads(row.data))
        for row in found
    ]


def is_told(tx: sa.Connection, run_id: str, type_: str, data: Mapping[str, Any]) -> bool:
    """Whether a run has an event that says just this."""
    alike = sa.select(events.c.data).where(events.c.run_id == run_id, events.c.type == type_)
    # compared here: where payloads are encrypted, no two of the same look the same
    return _text(data) in tx.execute(alike).scalars().all()


def newest(tx: sa.Connection) -> int:
    """Return the id of the newest event; 0 if there is none."""
    found = tx.execute(sa.select(sa.func.max(events.c.id))).scalar_one()
    return int(found or 0)
