"""What an operator must know: runs that nobody can take, stuck leases, overdue questions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from langgraph_durable.runs import FINAL, PARKED, QuestionState, Status, StepState
from langgraph_durable.store import rows
from langgraph_durable.store.rows import Codec
from langgraph_durable.store.schema import (
    among,
    events,
    outbox,
    questions,
    runs,
    steps,
    workers,
)
from langgraph_durable.store.timeline import Timeline

LIVE_SECONDS = 60.0
LEFT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that needs a look: what it is about, and what to do."""

    kind: str
    run_id: str
    what: str


def complaints(tx: sa.Connection, time: Timeline, limit: int = 100) -> list[Complaint]:
    """Return what is wrong, the most urgent first."""
    return [
        *_nobody_can_take(tx, time, limit),
        *_stuck_leases(tx, time, limit),
        *_overdue_questions(tx, time, limit),
        *_overdue_timers(tx, time, limit),
        *_orphaned_threads(tx, limit),
        *_undelivered(tx, time, limit),
    ]


def _nobody_can_take(tx: sa.Connection, time: Timeline, limit: int) -> list[Complaint]:
    pairs = _served(tx, time)
    due = sa.select(runs.c.id, runs.c.agent, runs.c.version).where(
        runs.c.status == Status.QUEUED.value, runs.c.run_after <= time.now()
    )
    found = tx.execute(due.order_by(runs.c.run_after).limit(10 * limit))
    return [
        Complaint(
            "no worker",
            row.id,
            f"no live worker has agent {row.agent!r} version {row.version!r}: deploy one that has",
        )
        for row in found
        if (row.agent, row.version) not in pairs
    ][:limit]


def _served(tx: sa.Connection, time: Timeline) -> set[tuple[str, str]]:
    """Return the (agent, version) pairs that live workers have announced."""
    live = tx.execute(
        sa.select(workers.c.agents).where(workers.c.seen_at > time.later(-LIVE_SECONDS))
    )
    return {pair for row in live for pair in announced(row.agents)}


def announced(text: str) -> set[tuple[str, str]]:
    """Read what a worker announced: a line `name<TAB>version` for each agent."""
    lines = (line.partition("\t") for line in text.splitlines() if line)
    return {(name, version) for name, _, version in lines}


def _overdue(
    wanted: sa.Select[Any], due: sa.Column[Any], time: Timeline, limit: int
) -> sa.Select[Any]:
    """Return the query of rows that were due so long ago that a live worker had seen them."""
    return wanted.where(due < time.later(-LIVE_SECONDS)).order_by(due).limit(limit)


def _stuck_leases(tx: sa.Connection, time: Timeline, limit: int) -> list[Complaint]:
    is_owned = runs.c.status.in_((Status.RUNNING.value, Status.CANCELLING.value))
    wanted = sa.select(runs.c.id, runs.c.worker, runs.c.lease_until).where(is_owned)
    found = tx.execute(_overdue(wanted, runs.c.lease_until, time, limit))
    return [
        Complaint(
            "stuck lease",
            row.id,
            f"the lease of worker {row.worker} ended at {_at(row.lease_until)} and nobody took over",
        )
        for row in found
    ]


def _overdue_questions(tx: sa.Connection, time: Timeline, limit: int) -> list[Complaint]:
    is_open = questions.c.state == QuestionState.OPEN.value
    wanted = sa.select(questions.c.run_id, questions.c.id, questions.c.expires_at).where(is_open)
    found = tx.execute(_overdue(wanted, questions.c.expires_at, time, limit))
    return [
        Complaint(
            "overdue question",
            row.run_id,
            f"question {row.id} expired at {_at(row.expires_at)}, and no worker has swept it",
        )
        for row in found
    ]


def _overdue_timers(tx: sa.Connection, time: Timeline, limit: int) -> list[Complaint]:
    is_parked = runs.c.status.in_([status.value for status in PARKED])
    wanted = sa.select(runs.c.id, runs.c.wake_at).where(is_parked, runs.c.wake_at.is_not(None))
    found = tx.execute(_overdue(wanted, runs.c.wake_at, time, limit))
    return [
        Complaint(
            "overdue timer",
            row.id,
            f"it was to wake at {_at(row.wake_at)}, and no worker has swept it",
        )
        for row in found
    ]


def _orphaned_threads(tx: sa.Connection, limit: int) -> list[Complaint]:
    """Find finished runs that still hold their thread: a second run would wait for ever."""
    found = tx.execute(
        sa.select(runs.c.id, runs.c.thread)
        .where(runs.c.holds_thread, runs.c.status.in_([s.value for s in FINAL]))
        .limit(limit)
    )
    return [
        Complaint("orphaned thread", row.id, f"it has ended and still holds thread {row.thread!r}")
        for row in found
    ]


def _undelivered(tx: sa.Connection, time: Timeline, limit: int) -> list[Complaint]:
    """Find messages that nothing could be told to, and those that nobody tries to deliver."""
    dead = sa.select(outbox).where(among(outbox.c.state, "dead")).order_by(outbox.c.id)
    left = (
        sa.select(outbox)
        .where(among(outbox.c.state, "pending"), outbox.c.next_at < time.later(-LEFT_SECONDS))
        .order_by(outbox.c.next_at)
    )
    return [
        Complaint(
            "dead message",
            row.run_id,
            f"{row.topic} was given up after {row.attempts} tries: {row.error}",
        )
        for row in tx.execute(dead.limit(limit))
    ] + [
        Complaint(
            "undelivered message",
            row.run_id,
            f"{row.topic} is due since {_at(row.next_at)}, and no worker delivers it",
        )
        for row in tx.execute(left.limit(limit))
    ]


def _at(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


@dataclass(frozen=True, slots=True)
class Stats:
    """What a review of the runtime needs, over a span of days."""

    days: float
    runs: int
    steps: int
    runs_a_day: float
    steps_a_day: float
    by_status: dict[str, int]
    takeovers: int
    repeated_calls: int  # made again after a crash or an error, under their first key
    key_conflicts: int
    stuck: int
    human_wait_seconds: float  # in all, from a question to its decision
    questions: int


def stats(tx: sa.Connection, time: Timeline, days: float) -> Stats:
    """Count what happened in the last days (S-72)."""
    since = time.later(-days * 86_400)

    def number(query: sa.Select[Any]) -> int:
        return int(tx.execute(query).scalar() or 0)

    def happened(*types: str) -> int:
        return number(
            sa.select(sa.func.count()).where(events.c.type.in_(types), events.c.at >= since)
        )

    statuses = tx.execute(
        sa.select(runs.c.status, sa.func.count().label("n"))
        .where(runs.c.created_at >= since)
        .group_by(runs.c.status)
    )
    by_status = {row.status: int(row.n) for row in statuses}
    recorded = number(sa.select(sa.func.count()).where(steps.c.recorded_at >= since))
    again = sa.func.sum(steps.c.attempts - 1)
    decided = tx.execute(
        sa.select(questions.c.asked_at, questions.c.decided_at).where(
            questions.c.decided_at >= since, questions.c.state == QuestionState.DECIDED.value
        )
    ).all()
    waited = sum((row.decided_at - row.asked_at).total_seconds() for row in decided)
    submitted = sum(by_status.values())
    return Stats(
        days=days,
        runs=submitted,
        steps=recorded,
        runs_a_day=submitted / days,
        steps_a_day=recorded / days,
        by_status=by_status,
        takeovers=happened("run_taken_over"),
        repeated_calls=number(
            sa.select(again).where(steps.c.recorded_at >= since, steps.c.attempts > 1)
        ),
        key_conflicts=_key_conflicts(tx, since),
        stuck=len(_stuck_leases(tx, time, 1000)),
        human_wait_seconds=waited,
        questions=len(decided),
    )


def _key_conflicts(tx: sa.Connection, since: sa.ColumnElement[Any]) -> int:
    """Count runs that failed by a key; their errors may be sealed, so they are read here."""
    ended = sa.select(runs.c.error).where(
        runs.c.finished_at >= since, among(runs.c.status, Status.FAILED)
    )
    found = tx.execute(ended).scalars()
    kinds = [json.loads(error).get("type") for error in found if error is not None]
    return sum(kind in ("DuplicateKey", "NonDeterminismError") for kind in kinds)


@dataclass(frozen=True, slots=True)
class Parked:
    """A tool call, or a question of the code, that waits for a person (S-78).

    `reply_id` is the run's: the message that the answer belongs to, not the call.
    """

    reply_id: str
    tenant: str
    tool_call_id: str  # the step's key
    tool: str
    input: Any  # exactly what is shown
    state: str  # "asking", in words of AgentScope's tool calls
    question_id: str
    role: str | None
    asked_at: datetime


def parked(tx: sa.Connection, codec: Codec, tenant: str | None, limit: int) -> list[Parked]:
    """Return what is parked, the oldest first, in one query."""
    query = (
        sa.select(questions)
        .where(among(questions.c.state, QuestionState.OPEN.value))
        .order_by(questions.c.asked_at, questions.c.id)
        .limit(limit)
    )
    if tenant is not None:
        query = query.where(questions.c.tenant == tenant)
    return [
        Parked(
            reply_id=row.run_id,
            tenant=row.tenant,
            tool_call_id=row.key,
            tool=row.tool,
            input=rows.question(row, codec).shown,
            state=StepState.ASKING.value,
            question_id=row.id,
            role=row.role,
            asked_at=row.asked_at,
        )
        for row in tx.execute(query)
    ]
