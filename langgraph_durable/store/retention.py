"""Forget finished runs: all that belongs to one goes together, and never a live run's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from langgraph_durable.runs import FINAL
from langgraph_durable.store.schema import approvals, events, outbox, questions, runs, steps

#: Tables that hold a run's rows, by their column `run_id`.
BELONGING: Sequence[sa.Table] = (steps, questions, approvals, events, outbox)


@dataclass(frozen=True, slots=True)
class Purged:
    """A run that is gone, and the LangGraph thread that no run of this store names any more."""

    run_id: str
    tenant: str
    agent: str
    thread: str
    mode: str
    thread_is_free: bool


def purge(
    tx: sa.Connection, before: datetime, tenant: str | None = None, limit: int = 500
) -> list[Purged]:
    """Delete runs that ended before a time, with their steps, questions and events.

    The status is checked in the same statement that deletes the run: one that an operator
    retries at this instant is either purged before or kept whole.
    """
    old = (
        sa.select(runs.c.id)
        .where(runs.c.finished_at < before, runs.c.status.in_([s.value for s in FINAL]))
        .order_by(runs.c.finished_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    if tenant is not None:
        old = old.where(runs.c.tenant == tenant)
    gone = tx.execute(
        sa.delete(runs)
        .where(runs.c.id.in_(old.scalar_subquery()))
        .returning(runs.c.id, runs.c.tenant, runs.c.agent, runs.c.thread, runs.c.mode)
    ).all()
    ids = [row.id for row in gone]
    for table in BELONGING:
        tx.execute(sa.delete(table).where(table.c.run_id.in_(ids)))
    return [_purged(tx, row) for row in gone]


def _purged(tx: sa.Connection, row: Any) -> Purged:
    """A thread's checkpoints are the memory of a conversation: kept while any run names it."""
    still = tx.execute(
        sa.select(runs.c.id)
        .where(runs.c.tenant == row.tenant, runs.c.agent == row.agent, runs.c.thread == row.thread)
        .limit(1)
    ).first()
    return Purged(row.id, row.tenant, row.agent, row.thread, row.mode, still is None)
