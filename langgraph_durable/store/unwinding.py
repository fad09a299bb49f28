"""Unwinding: a run that failed or was cancelled waits for its compensations, then it ends.

The marker `runs.unwinding` is set by the transaction that decides the end, and names it. From
then on every claim of the run unwinds it, whoever makes it, and nothing drives it forward.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from langgraph_durable.runs import COMPENSATE, Lease, Refused, Status, Step, StepState
from langgraph_durable.store import events, questions
from langgraph_durable.store.rows import Codec
from langgraph_durable.store.schema import runs, steps
from langgraph_durable.store.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Left:
    """What a run that ends leaves behind: keys of steps, the first to be undone first."""

    compensated: tuple[str, ...]  # a compensation is due
    unknown: tuple[str, ...]  # the call was begun, and its outcome was never recorded


def left(tx: sa.Connection, run_id: str) -> Left:
    """Return what a run did that is to be undone, and what it may have done."""
    intent = StepState.INTENT.value
    found = tx.execute(
        sa.select(steps.c.key, steps.c.state, steps.c.compensation)
        .where(
            steps.c.run_id == run_id,
            sa.or_(steps.c.compensation.is_not(None), steps.c.state == intent),
        )
        .order_by(steps.c.recorded_at.desc(), steps.c.seq.desc())
    ).all()
    return Left(
        tuple(row.key for row in found if row.compensation is not None),
        tuple(row.key for row in found if row.state == intent),
    )


def begin(
    tx: sa.Connection,
    time: Timeline,
    run: sa.Row[Any],
    end: Status,
    what: Left,
    *,
    actor: str,
    error: Mapping[str, Any] | None = None,
    **values: Any,
) -> None:
    """Decide how a run ends, and queue it for its compensations; its row is locked."""
    tx.execute(
        sa.update(runs)
        .where(runs.c.id == run.id)
        .values(
            status=Status.QUEUED.value,
            unwinding=end.value,
            error=json.dumps(error) if error else None,
            attempts=0,  # what undoes a step has attempts of its own
            run_after=runs.c.created_at,
            previous_worker=runs.c.worker,
            worker=None,
            lease_until=None,
            wake_at=None,
            **values,
        )
    )
    if run.asked:
        questions.close_all(tx, time, run.id)
    data: dict[str, Any] = {"to": end.value, "steps": what.compensated, "unknown": what.unknown}
    if error:
        data["error"] = error
    events.append(tx, time, run.id, run.tenant, "run_compensating", actor, data)


def tell(tx: sa.Connection, time: Timeline, codec: Codec, lease: Lease, step: Step) -> None:
    """Write the event of a compensating step in the transaction that records it, once."""
    if step.state is not StepState.RECORDED or not step.key.startswith(COMPENSATE):
        return
    value = codec.decode(step.value)
    data = {"key": step.key.removeprefix(COMPENSATE), "by": step.key, "tool": step.name}
    type_ = "step_compensated"
    if isinstance(value, Refused):
        type_ = "step_not_compensated"
        data |= {"reason": value.reason, "decided_by": value.by}
    tenant = tx.execute(sa.select(runs.c.tenant).where(runs.c.id == lease.run_id)).scalar_one()
    # a commit whose answer was lost is made again
    if not events.is_told(tx, lease.run_id, type_, data):
        events.append(tx, time, lease.run_id, tenant, type_, lease.worker, data)
