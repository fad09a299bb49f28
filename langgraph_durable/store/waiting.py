"""What time and people do to an open question, beside deciding it.

It expires, somebody is reminded, another role may decide it, it is handed over, or one of
several people approves. Each is a conditional update: of many workers, one does it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from langgraph_durable.errors import NotWaiting
from langgraph_durable.runs import Decision, Question, QuestionState
from langgraph_durable.store import events
from langgraph_durable.store.locks import lock
from langgraph_durable.store.schema import among, approvals, questions
from langgraph_durable.store.timeline import Timeline
from langgraph_durable.values import clean_text

IS_OPEN = among(questions.c.state, QuestionState.OPEN.value)
DUE_LIMIT = 100
_TIMES = ("expires_at", "escalate_at", "remind_at")
WAKE = "wake_at"
_ORDER = (WAKE, *_TIMES)


def due(tx: sa.Connection, time: Timeline, asleep: sa.Select[Any]) -> list[tuple[str, str, str]]:
    """Return (what, question id, run id) of open questions for which a time has come.

    An expiry comes first: a question that is over is neither escalated nor reminded of. If
    there are parked runs to wake (`asleep` finds them), one of them is told as well: all is
    one look, because an idle worker looks again and again.
    """
    run = asleep.limit(1).subquery()
    wake: sa.ColumnElement[str] = sa.literal_column(f"'{WAKE}'").label("what")
    parts = [sa.select(wake, run.c.id, run.c.id.label("run_id"))]
    parts += [
        sa.select(
            sa.literal_column(f"'{name}'").label("what"), questions.c.id, questions.c.run_id
        ).where(IS_OPEN, questions.c[name].is_not(None), questions.c[name] <= time.now())
        for name in _TIMES
    ]
    found = tx.execute(sa.union_all(*parts).limit(DUE_LIMIT)).all()
    return sorted(((r.what, r.id, r.run_id) for r in found), key=lambda one: _ORDER.index(one[0]))


def remind(tx: sa.Connection, time: Timeline, question_id: str, run_id: str) -> bool:
    """Say once an interval that a question waits; however many passed, it is said once."""
    run = lock(tx, run_id, None)
    row = tx.execute(
        sa.select(questions.c.remind_seconds).where(questions.c.id == question_id)
    ).one_or_none()
    if row is None or row.remind_seconds is None:
        return False
    values = {
        "reminded": questions.c.reminded + 1,
        "remind_at": time.later(row.remind_seconds),
    }
    said = _changed(tx, time, question_id, "remind_at", values)
    if said is None:
        return False
    data = {**_told(said), "times": said.reminded}
    events.append(tx, time, run_id, run.tenant, "question_reminded", "store", data)
    return True


def escalate(tx: sa.Connection, time: Timeline, question_id: str, run_id: str) -> bool:
    """Let another role decide from now on."""
    run = lock(tx, run_id, None)
    values = {"role": questions.c.escalate_to, "escalate_at": None, "person": None}
    said = _changed(tx, time, question_id, "escalate_at", values)
    if said is None:
        return False
    events.append(tx, time, run_id, run.tenant, "question_escalated", "store", _told(said))
    return True


def _changed(
    tx: sa.Connection, time: Timeline, question_id: str, due_column: str, values: dict[str, Any]
) -> sa.Row[Any] | None:
    return tx.execute(
        sa.update(questions)
        .where(questions.c.id == question_id, IS_OPEN, questions.c[due_column] <= time.now())
        .values(**values)
        .returning(*questions.c)
    ).one_or_none()


def _told(row: sa.Row[Any]) -> dict[str, Any]:
    return {"question_id": row.id, "key": row.key, "tool": row.tool, "role": row.role}


def delegate(
    tx: sa.Connection,
    time: Timeline,
    question: Question,
    *,
    role: str | None,
    person: str | None,
    by: str,
) -> None:
    """Hand an open question to another role, or to a person.

    Raises:
        NotWaiting: it is not open any more.
    """
    lock(tx, question.run_id, None)
    values: dict[str, Any] = {"person": person}
    if role is not None:
        values["role"] = role
    moved = tx.execute(
        sa.update(questions)
        .where(questions.c.id == question.id, IS_OPEN, _in_time(time))
        .values(**values)
    )
    if moved.rowcount == 0:
        state = tx.execute(
            sa.select(questions.c.state).where(questions.c.id == question.id)
        ).scalar_one()
        is_over = state == QuestionState.OPEN.value
        raise NotWaiting(question.id, QuestionState.EXPIRED.value if is_over else state)
    data = {"question_id": question.id, "key": question.key, "role": role, "person": person}
    events.append(tx, time, question.run_id, question.tenant, "question_delegated", by, data)


def _in_time(time: Timeline) -> sa.ColumnElement[bool]:
    return sa.or_(questions.c.expires_at.is_(None), questions.c.expires_at > time.now())


# --- more than one person must approve -------------------------------------------------


def approved_enough(
    tx: sa.Connection, time: Timeline, question: Question, decision: Decision, text: str, said: str
) -> bool:
    """Keep one person's approval, and return whether as many as needed have said the same.

    A person counts once, whatever they say again; only their last word counts. The question's
    run is locked by the caller. True also when the question is no longer open: what was
    decided is then told by the decision itself.
    """
    still = sa.select(questions.c.id).where(questions.c.id == question.id, IS_OPEN, _in_time(time))
    if tx.execute(still).first() is None:
        return True
    by = clean_text(decision.by)
    mine = sa.and_(approvals.c.question_id == question.id, approvals.c.person == _person(by))
    before = tx.execute(sa.select(approvals.c.said).where(mine)).scalar()
    if before != said:
        tx.execute(sa.delete(approvals).where(mine))
        tx.execute(
            sa.insert(approvals).values(
                question_id=question.id,
                person=_person(by),
                name=by,
                run_id=question.run_id,
                said=said,
                decision=text,
                at=time.now(),
            )
        )
        data = {
            "question_id": question.id,
            "key": question.key,
            "choice": decision.choice,
            "reason": decision.reason,
            "needed": question.approvals,
        }
        events.append(tx, time, question.run_id, question.tenant, "question_approved", by, data)
    same = sa.select(sa.func.count()).where(
        approvals.c.question_id == question.id, approvals.c.said == said
    )
    return int(tx.execute(same).scalar_one()) >= question.approvals


def _person(by: str) -> str:
    """One person under two spellings is not two people."""
    return by.strip().casefold()


def with_approvals(tx: sa.Connection, found: Iterable[Question]) -> list[Question]:
    """Add to each question who approved it so far."""
    listed = list(found)
    several = [question.id for question in listed if question.approvals > 1]
    if not several:
        return listed
    people: dict[str, list[str]] = {}
    query = sa.select(approvals).where(approvals.c.question_id.in_(several))
    for row in tx.execute(query.order_by(approvals.c.at, approvals.c.person)):
        people.setdefault(row.question_id, []).append(row.name)
    return [replace(q, approved_by=tuple(people.get(q.id, ()))) for q in listed]
