"""Ask, decide, close. The run's row is locked before its questions, always.

Two people who decide two questions of one run at the same instant would each see the
other's question still open, and nobody would wake the run: the lock on the run prevents
that, and it orders a decision against an expiry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from langgraph_durable.errors import AlreadyDecided, Conflict, NotFound, NotWaiting
from langgraph_durable.runs import (
    DEFAULT_ROLE,
    Decision,
    Lease,
    Question,
    QuestionState,
    Refusal,
    Status,
)
from langgraph_durable.store import events, rows, rules, waiting
from langgraph_durable.store.locks import lock
from langgraph_durable.store.rows import Codec
from langgraph_durable.store.schema import UtcTime, among, questions, runs
from langgraph_durable.store.timeline import Timeline
from langgraph_durable.store.waiting import IS_OPEN
from langgraph_durable.values import clean_text

OPEN = QuestionState.OPEN.value


def ask(
    tx: sa.Connection,
    time: Timeline,
    codec: Codec,
    lease: Lease,
    tenant: str,
    asked: Sequence[Question],
) -> int:
    """Put the questions of a pass; return how many are new.

    A question that is already open with the same payload stays as it is, and so does one
    that was answered while the pass ran. One whose payload changed is closed and asked again,
    so that nobody approves what is not shown.
    """
    named = questions.c.id.in_([question.id for question in asked])
    found = tx.execute(
        sa.select(questions.c.id, questions.c.key, questions.c.digest, questions.c.state).where(
            questions.c.run_id == lease.run_id, sa.or_(IS_OPEN, named)
        )
    ).all()
    open_ = {row.key: row for row in found if row.state == OPEN}
    known_ids = {row.id for row in found}
    new = 0
    for question in asked:
        if question.id in known_ids:
            continue
        known = open_.get(question.key)
        if known is not None and known.digest == question.digest:
            continue
        if known is not None:
            _close(tx, time, questions.c.id == known.id)
        _insert(tx, time, codec, lease, tenant, question)
        data = {"question_id": question.id, "key": question.key, "tool": question.tool}
        data |= {"role": question.role} if question.role else {}
        events.append(tx, time, lease.run_id, tenant, "question_asked", lease.worker, data)
        new += 1
    return new


def _insert(
    tx: sa.Connection, time: Timeline, codec: Codec, lease: Lease, tenant: str, question: Question
) -> None:
    where = f"question {question.key!r}"
    refused = refused_before(tx, codec, tenant, question) if question.kind == "tool" else None

    def later(seconds: float | None) -> sa.ColumnElement[Any] | None:
        return None if seconds is None else time.later(seconds)

    tx.execute(
        sa.insert(questions).values(
            id=question.id,
            run_id=lease.run_id,
            tenant=tenant,
            key=question.key,
            kind=question.kind,
            tool=clean_text(question.tool),
            payload=codec.encode(question.payload, where),
            digest=question.digest,
            allowed=json.dumps(question.allowed),
            role=question.role,
            schema=json.dumps(question.schema) if question.schema is not None else None,
            interrupt_id=question.interrupt_id,
            on_expiry=question.on_expiry,
            fallback=codec.encode(question.default, where),
            state=OPEN,
            asked_at=time.now(),
            expires_at=later(question.expires_in_seconds),
            approvals=question.approvals,
            remind_seconds=question.remind_after_seconds,
            remind_at=later(question.remind_after_seconds),
            escalate_to=question.escalate_to,
            escalate_at=later(question.escalate_after_seconds),
            refused_before=None if refused is None else rows.refusal_text(refused),
        )
    )


def refused_before(
    tx: sa.Connection, codec: Codec, tenant: str, question: Question
) -> Refusal | None:
    """Return the last refusal of this very request: the tenant, the tool, the arguments.

    It counts those before it.
    """
    found = tx.execute(
        sa.select(questions)
        .where(
            questions.c.tenant == tenant,
            questions.c.tool == clean_text(question.tool),
            questions.c.digest == question.digest,
            among(questions.c.state, QuestionState.DECIDED.value),
        )
        .order_by(questions.c.decided_at.desc())
    )
    last: Refusal | None = None
    for row in found:
        made = rows.question(row, codec).decision
        if made is None or made.choice != "reject":
            continue
        if last is None:
            last = Refusal(made.by, row.decided_at, made.reason, row.run_id, row.id)
        else:
            last = replace(last, times=last.times + 1)
    return last


def _close(tx: sa.Connection, time: Timeline, which: sa.ColumnElement[bool]) -> None:
    tx.execute(
        sa.update(questions)
        .where(which, IS_OPEN)
        .values(state=QuestionState.CLOSED.value, decided_at=time.now())
    )


def close_all(tx: sa.Connection, time: Timeline, run_id: str) -> None:
    """Close what is still open when a run ends."""
    _close(tx, time, questions.c.run_id == run_id)


def close_alike(tx: sa.Connection, time: Timeline, decided: Question) -> None:
    """Close what other runs of the tenant asked alike when a tenant's budget was raised.

    One answer raises it for all of them; each would else raise it once more.
    """
    is_raised = decided.decision is not None and decided.decision.choice != "reject"
    if not is_raised or not decided.tool.startswith("budget.tenant."):
        return
    alike = (
        sa.select(questions.c.id, questions.c.run_id)
        .where(
            IS_OPEN,
            questions.c.tenant == decided.tenant,
            questions.c.tool == decided.tool,
            questions.c.digest == decided.digest,
        )
        .order_by(questions.c.run_id)
    )
    for row in tx.execute(alike).all():
        lock(tx, row.run_id, None)
        _close(tx, time, questions.c.id == row.id)
        data = {"question_id": row.id, "answered_by": decided.id}
        events.append(tx, time, row.run_id, decided.tenant, "question_closed", "store", data)
        wake(tx, time, row.run_id)


def close_fatal(tx: sa.Connection, codec: Codec, run_id: str) -> None:
    """Close the questions that failed a run, expired ones and budgets: retried, it asks again."""
    budgets = sa.select(questions).where(
        questions.c.run_id == run_id,
        questions.c.kind == "budget",
        questions.c.state == QuestionState.DECIDED.value,
    )
    asked = [rows.question(row, codec) for row in tx.execute(budgets).all()]
    refused = [q.id for q in asked if q.decision is not None and q.decision.choice == "reject"]
    tx.execute(
        sa.update(questions)
        .where(questions.c.id.in_(refused))
        .values(state=QuestionState.CLOSED.value)
    )
    tx.execute(
        sa.update(questions)
        .where(
            questions.c.run_id == run_id,
            questions.c.state == QuestionState.EXPIRED.value,
            questions.c.on_expiry == "fail",
        )
        .values(state=QuestionState.CLOSED.value)
    )


def decide(
    tx: sa.Connection,
    time: Timeline,
    codec: Codec,
    question_id: str,
    decision: Decision,
    *,
    approval_id: str,
    tenant: str | None,
) -> Question:
    """Store the one decision of a question, and wake its run when no question is open.

    The first decision wins. The same one again changes nothing and is a success; a
    different one is refused. Where several people must approve, the question stays open
    until as many have said the same; a refusal by one of them decides.

    Raises:
        NotFound: no such question for this tenant.
        AlreadyDecided: another decision was stored first.
        NotWaiting: the question has expired or was closed.
    """
    question = get(tx, codec, question_id, tenant)
    text = rows.decision_text(decision, codec, f"decision on {question_id}")
    lock(tx, question.run_id, None)
    if question.approvals > 1 and decision.choice != "reject":
        said = hashlib.sha256(_said(decision, codec).encode()).hexdigest()
        if not waiting.approved_enough(tx, time, question, decision, text, said):
            return get(tx, codec, question_id, tenant)
    stored = tx.execute(
        sa.update(questions)
        .where(
            questions.c.id == question_id,
            IS_OPEN,
            sa.or_(questions.c.expires_at.is_(None), questions.c.expires_at > time.now()),
        )
        .values(
            state=QuestionState.DECIDED.value,
            decision=text,
            decided_by=clean_text(decision.by),
            decided_at=time.now(),
            approval_id=approval_id if decision.choice in ("approve", "edit") else None,
        )
    )
    if stored.rowcount == 0:
        return _same_again(get(tx, codec, question_id, tenant), decision, codec)
    data = {
        "question_id": question_id,
        "key": question.key,
        "choice": decision.choice,
        "reason": decision.reason,
    }
    rules.make(tx, time, question, decision)
    events.append(tx, time, question.run_id, question.tenant, "question_decided", decision.by, data)
    wake(tx, time, question.run_id)
    return get(tx, codec, question_id, tenant)


def decide_all(
    tx: sa.Connection,
    time: Timeline,
    codec: Codec,
    run_id: str,
    decisions: Decision | Mapping[str, Decision],
    *,
    check: Callable[[Question, Decision], Decision],
    new_id: Callable[[], str],
    tenant: str | None,
) -> list[Question]:
    """Decide all open questions of a run alike, or those that are named each by its own; or none.

    `check` refuses a decision by raising, before anything is written, or returns it as it is
    to be stored.

    Raises:
        NotFound: no such run for this tenant, or no such question of it.
        Conflict: none is named and the run waits for nobody.
        AlreadyDecided, NotWaiting: a named one takes this decision no more.
    """
    run = lock(tx, run_id, tenant)
    asked = {question.id: question for question in of_runs(tx, codec, [run_id]).get(run_id, [])}
    if isinstance(decisions, Decision):
        decisions = {id_: decisions for id_, q in asked.items() if q.state is QuestionState.OPEN}
        if not decisions:
            raise Conflict(f"run {run_id} is {run.status}; it waits for nobody's decision")
    for question_id in decisions:
        if question_id not in asked:
            raise NotFound("question", question_id)
    decisions = {id_: check(asked[id_], decision) for id_, decision in decisions.items()}
    return [
        decide(tx, time, codec, id_, decision, approval_id=new_id(), tenant=tenant)
        for id_, decision in decisions.items()
    ]


def _same_again(question: Question, decision: Decision, codec: Codec) -> Question:
    made = question.decision
    if made is None:
        if question.state is QuestionState.OPEN:  # past its expiry, not swept yet
            raise NotWaiting(question.id, QuestionState.EXPIRED.value)
        raise NotWaiting(question.id, question.state.value)
    # by what is stored, not by ==: to Python True is 1, and NaN is not NaN
    if _said(made, codec) != _said(decision, codec):
        raise AlreadyDecided(question.id, made.choice, made.by)
    return question


def _said(decision: Decision, codec: Codec) -> str:
    """Return what a decision says, whoever made it and why."""
    return rows.decision_text(replace(decision, by="", reason=""), codec, "the decision")


def wake(tx: sa.Connection, time: Timeline, run_id: str) -> bool:
    """Queue a waiting run that has no open question left; its row is locked by the caller.

    It goes to the front of its priority (it has waited since it was submitted).
    """
    still_open = sa.select(questions.c.id).where(questions.c.run_id == run_id, IS_OPEN)
    if tx.execute(still_open.limit(1)).first() is not None:
        return False
    moved = tx.execute(
        sa.update(runs)
        .where(runs.c.id == run_id, runs.c.status == Status.WAITING_HUMAN.value)
        .values(status=Status.QUEUED.value, run_after=runs.c.created_at, wake_at=None)
        .returning(runs.c.tenant)
    ).one_or_none()
    if moved is None:
        return False
    events.append(tx, time, run_id, moved.tenant, "run_resumed", "store")
    return True


def expire(tx: sa.Connection, time: Timeline, question_id: str, run_id: str) -> bool:
    """Expire one overdue question and wake its run; False if a decision came first."""
    run = lock(tx, run_id, None)
    expired = tx.execute(
        sa.update(questions)
        .where(
            questions.c.id == question_id,
            IS_OPEN,
            questions.c.expires_at <= time.now(),
        )
        .values(state=QuestionState.EXPIRED.value, decided_at=time.now())
    )
    if expired.rowcount == 0:
        return False
    events.append(
        tx, time, run_id, run.tenant, "question_expired", "store", {"question_id": question_id}
    )
    wake(tx, time, run_id)
    return True


def get(tx: sa.Connection, codec: Codec, question_id: str, tenant: str | None) -> Question:
    """Return one question.

    Raises:
        NotFound: no such question for this tenant.
    """
    query = sa.select(questions).where(questions.c.id == question_id)
    if tenant is not None:
        query = query.where(questions.c.tenant == tenant)
    row = tx.execute(query).one_or_none()
    if row is None:
        raise NotFound("question", question_id)
    return waiting.with_approvals(tx, [rows.question(row, codec)])[0]


@dataclass(frozen=True, slots=True)
class Inbox:
    """Which questions to list: oldest first, those behind a cursor (asked_at, id)."""

    tenant: str | None = None
    run_id: str | None = None
    state: QuestionState | None = QuestionState.OPEN
    role: str | None = None
    tool: str | None = None
    agents: Collection[str] | None = None
    after: tuple[datetime, str] | None = None
    limit: int = 100


def listed(tx: sa.Connection, codec: Codec, inbox: Inbox) -> list[Question]:
    """Return questions, oldest first."""
    query = sa.select(questions).order_by(questions.c.asked_at, questions.c.id).limit(inbox.limit)
    for column in ("tenant", "run_id", "state", "tool"):
        wanted = getattr(inbox, column)
        if wanted is not None:
            query = query.where(questions.c[column] == str(wanted))
    if inbox.role is not None:
        anyone = questions.c.role.is_(None) if inbox.role == DEFAULT_ROLE else sa.false()
        query = query.where(sa.or_(questions.c.role == inbox.role, anyone))
    if inbox.state is QuestionState.OPEN:
        # in words, not as a parameter: SQLite uses a partial index only then
        query = query.where(sa.text("questions.state = 'open'"))
    if inbox.agents is not None:
        theirs = sa.select(runs.c.id).where(runs.c.agent.in_(inbox.agents))
        query = query.where(questions.c.run_id.in_(theirs))
    if inbox.after is not None:
        at, id_ = inbox.after
        place = sa.tuple_(sa.literal(at, UtcTime()), sa.literal(id_))
        query = query.where(sa.tuple_(questions.c.asked_at, questions.c.id) > place)
    found = [rows.question(row, codec) for row in tx.execute(query)]
    return waiting.with_approvals(tx, found)


def of_runs(tx: sa.Connection, codec: Codec, run_ids: Sequence[str]) -> dict[str, list[Question]]:
    """Return all questions of some runs, in the order asked."""
    found: dict[str, list[Question]] = {}
    query = (
        sa.select(questions)
        .where(questions.c.run_id.in_(run_ids))
        .order_by(questions.c.asked_at, questions.c.key)
    )
    asked = [rows.question(row, codec) for row in tx.execute(query)]
    for question in waiting.with_approvals(tx, asked):
        found.setdefault(question.run_id, []).append(question)
    return found
