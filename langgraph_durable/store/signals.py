"""Signals: what is told to a run, in the order in which it arrived, each taken once.

A signal is taken by the very commit that records the step which took it, under that step's
fence: so a crash neither loses it nor lets another step take it again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from langgraph_durable.errors import Conflict, DurableError
from langgraph_durable.runs import FINAL, PARKED, Signal, Status, StepState
from langgraph_durable.store import events, queue, rows
from langgraph_durable.store.locks import lock
from langgraph_durable.store.rows import Codec
from langgraph_durable.store.schema import signals, steps
from langgraph_durable.store.timeline import Timeline
from langgraph_durable.values import clean_text

MAX_UNTAKEN = 1_000  # signals of one run that wait to be taken
IS_UNTAKEN = signals.c.taken_by.is_(None)


@dataclass(frozen=True, slots=True)
class NewSignal:
    """A signal as it is sent; `payload` is encoded."""

    run_id: str
    id: str
    event: str
    payload: str
    digest: str
    by: str


def send(
    tx: sa.Connection, time: Timeline, codec: Codec, new: NewSignal, tenant: str | None
) -> tuple[Signal, bool]:
    """Keep a signal for a run; returns it, and whether the run was woken.

    The run's row is locked: either the pass that is about to park sees the signal as it
    settles, or the signal finds the run parked.

    Raises:
        NotFound: no such run for this tenant.
        Conflict: the run has ended, its buffer is full, or the id was used for another signal.
    """
    run = lock(tx, new.run_id, tenant)
    known = tx.execute(
        sa.select(signals).where(signals.c.run_id == new.run_id, signals.c.id == new.id)
    ).one_or_none()
    if known is not None:
        if (known.event, known.digest) != (new.event, new.digest):
            raise Conflict(
                f"signal {new.id!r} of run {new.run_id} was already sent as {known.event!r} with "
                "another payload or event. Give a new signal a new id."
            )
        return rows.signal(known, codec), False
    _refuse_deaf(tx, new, run)
    row = tx.execute(
        sa.insert(signals)
        .values(
            run_id=new.run_id,
            id=new.id,
            event=new.event,
            payload=new.payload,
            digest=new.digest,
            sent_by=clean_text(new.by),
            sent_at=time.now(),
        )
        .returning(*signals.c)
    ).one()
    data = {"signal_id": new.id, "event": new.event}
    events.append(tx, time, run.id, run.tenant, "signal_sent", new.by, data)
    is_woken = (
        Status(run.status) in PARKED
        and _is_awaited(tx, new.run_id, new.event)
        and queue.wake(tx, time, new.run_id)
    )
    return rows.signal(row, codec), is_woken


def _refuse_deaf(tx: sa.Connection, new: NewSignal, run: sa.Row[Any]) -> None:
    status = Status(run.status)
    if run.unwinding is not None:
        raise Conflict(f"run {new.run_id} is being unwound; it takes no signals any more")
    if status in FINAL or status is Status.CANCELLING:
        raise Conflict(f"run {new.run_id} is {status.value}; it takes no signals any more")
    untaken = tx.execute(
        sa.select(sa.func.count())
        .select_from(signals)
        .where(signals.c.run_id == new.run_id, IS_UNTAKEN)
    ).scalar_one()
    if untaken >= MAX_UNTAKEN:
        raise Conflict(
            f"{MAX_UNTAKEN:,} signals wait for run {new.run_id}, which is the limit: it must take "
            "some before it is sent more"
        )


def _is_awaited(tx: sa.Connection, run_id: str, event: str) -> bool:
    waits = sa.select(steps.c.key).where(
        steps.c.run_id == run_id,
        steps.c.state == StepState.WAITING.value,
        steps.c.name == event,
    )
    return tx.execute(waits.limit(1)).first() is not None


def has_come(tx: sa.Connection, run_id: str, events_: Collection[str]) -> bool:
    """Whether one of these events was signalled, and no step has taken it."""
    if not events_:
        return False
    come = sa.select(signals.c.number).where(
        signals.c.run_id == run_id, IS_UNTAKEN, signals.c.event.in_(events_)
    )
    return tx.execute(come.limit(1)).first() is not None


def untaken(tx: sa.Connection, codec: Codec, run_id: str, event: str, limit: int) -> list[Signal]:
    """Return the signals of an event that no step has taken, the oldest first."""
    found = tx.execute(
        sa.select(signals)
        .where(signals.c.run_id == run_id, IS_UNTAKEN, signals.c.event == event)
        .order_by(signals.c.number)
        .limit(limit)
    )
    return [rows.signal(row, codec) for row in found]


def take(tx: sa.Connection, run_id: str, number: int, key: str) -> None:
    """Let the step under `key`, which is written in this transaction, have a signal.

    Raises:
        DurableError: another step has it (the fence doesn't let that happen).
    """
    taken = tx.execute(
        sa.update(signals)
        .where(
            signals.c.number == number,
            signals.c.run_id == run_id,
            sa.or_(IS_UNTAKEN, signals.c.taken_by == key),
        )
        .values(taken_by=key)
    )
    if taken.rowcount != 1:
        raise DurableError(f"step {key!r} of run {run_id}: its signal was taken by another step")


def of_run(tx: sa.Connection, codec: Codec, run_id: str) -> list[Signal]:
    """Return the signals of a run, taken or not, in the order of arrival."""
    found = tx.execute(
        sa.select(signals).where(signals.c.run_id == run_id).order_by(signals.c.number)
    )
    return [rows.signal(row, codec) for row in found]
