"""Forget finished runs: all that belongs to one goes in one transaction, and never a live run's.

LangGraph's checkpoints are the memory of a conversation, so a thread's go when no run of
this store names it any more. They are deleted here, and not by LangGraph's savers, because
they must go together with the run or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from langgraph_durable.runs import FINAL, QuestionState, thread_name
from langgraph_durable.store.schema import among, events, outbox, questions, runs, signals, steps

#: Tables that hold a run's rows, by their column `run_id`.
BELONGING: Sequence[sa.Table] = (steps, questions, signals, events, outbox)
#: LangGraph's own tables, on either database; those that aren't there are passed over.
CHECKPOINTS = ("checkpoints", "writes", "checkpoint_writes", "checkpoint_blobs")


def purge(
    tx: sa.Connection, before: datetime, tenant: str | None = None, limit: int = 500
) -> list[str]:
    """Delete runs that ended before a time, with all that belongs to them; returns their ids.

    A run whose messages are still to be delivered stays, and one that a person is still asked
    to look at. The status is checked in the
    statement that deletes: a run that an operator retries at this instant is either purged
    before or kept whole.
    """
    undelivered = sa.exists().where(outbox.c.run_id == runs.c.id, outbox.c.state == "pending")
    unseen = sa.exists().where(
        questions.c.run_id == runs.c.id, among(questions.c.state, QuestionState.OPEN.value)
    )
    old = (
        sa.select(runs.c.id)
        .where(
            runs.c.finished_at < before,
            runs.c.status.in_([status.value for status in FINAL]),
            sa.not_(undelivered.correlate(runs)),
            sa.not_(unseen.correlate(runs)),
        )
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
    _forget_threads(tx, (row for row in gone if row.mode == "graph"))
    return ids


def _forget_threads(tx: sa.Connection, gone: Iterable[Any]) -> None:
    threads = {(row.tenant, row.agent, row.thread) for row in gone}
    free = [thread_name(*thread) for thread in threads if not _is_named(tx, *thread)]
    inspector = sa.inspect(tx)
    for name in CHECKPOINTS if free else ():
        if inspector.has_table(name):
            table = sa.table(name, sa.column("thread_id"))
            tx.execute(sa.delete(table).where(table.c.thread_id.in_(free)))


def _is_named(tx: sa.Connection, tenant: str, agent: str, thread: str) -> bool:
    named = sa.select(runs.c.id).where(
        runs.c.tenant == tenant, runs.c.agent == agent, runs.c.thread == thread
    )
    return tx.execute(named.limit(1)).first() is not None
