"""Rules that decisions carried: who made each, on which question, and until when."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from langgraph_durable.errors import NotFound
from langgraph_durable.runs import Decision, Question, StandingRule
from langgraph_durable.store import events
from langgraph_durable.store.schema import rules, runs
from langgraph_durable.store.timeline import Timeline
from langgraph_durable.values import clean_text


def make(tx: sa.Connection, time: Timeline, question: Question, decision: Decision) -> None:
    """Store the rules of a decision; they hold for the tenant of its question."""
    for number, data in enumerate(decision.rules, start=1):
        rule_id = f"{question.id}-{number}"
        tx.execute(
            sa.insert(rules).values(
                id=rule_id,
                tenant=question.tenant,
                data=json.dumps(data, default=float),  # a bound may be a Decimal
                role=question.role,
                approvals=question.approvals,
                question_id=question.id,
                run_id=question.run_id,
                made_by=clean_text(decision.by),
                made_at=time.now(),
                expires_at=decision.until,
            )
        )
        said = {"rule_id": rule_id, "rule": data, "until": decision.until}
        events.append(tx, time, question.run_id, question.tenant, "rule_made", decision.by, said)


def any_live(time: Timeline, tenant: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether a tenant has a rule in force."""
    return sa.exists().where(rules.c.tenant == tenant, _is_live(time))


def live(tx: sa.Connection, time: Timeline, tenant: str) -> list[StandingRule]:
    """Return the rules in force for a tenant, oldest first."""
    return _found(tx, _query(time).where(rules.c.tenant == tenant, _is_live(time)))


def listed(
    tx: sa.Connection, time: Timeline, tenant: str | None, agents: Collection[str] | None
) -> list[StandingRule]:
    """Return rules, oldest first, revoked and expired ones too; or those that runs of agents made."""
    query = _query(time)
    if tenant is not None:
        query = query.where(rules.c.tenant == tenant)
    if agents is not None:
        theirs = sa.select(runs.c.id).where(runs.c.agent.in_(agents))
        query = query.where(rules.c.run_id.in_(theirs))
    return _found(tx, query)


def revoke(
    tx: sa.Connection, time: Timeline, rule_id: str, tenant: str | None, by: str
) -> StandingRule:
    """Revoke a rule; revoking it again changes nothing.

    Raises:
        NotFound: no such rule for this tenant.
    """
    which = rules.c.id == rule_id
    if tenant is not None:
        which = sa.and_(which, rules.c.tenant == tenant)
    revoked = tx.execute(
        sa.update(rules)
        .where(which, rules.c.revoked_at.is_(None))
        .values(revoked_at=time.now(), revoked_by=clean_text(by))
    )
    found = _found(tx, _query(time).where(which))
    if not found:
        raise NotFound("rule", rule_id)
    rule = found[0]
    if revoked.rowcount:
        said = {"rule_id": rule.id, "rule": rule.data}
        events.append(tx, time, rule.run_id, rule.tenant, "rule_revoked", by, said)
    return rule


def _is_live(time: Timeline) -> sa.ColumnElement[bool]:
    return sa.and_(
        rules.c.revoked_at.is_(None),
        sa.or_(rules.c.expires_at.is_(None), rules.c.expires_at > time.now()),
    )


def _query(time: Timeline) -> sa.Select[Any]:
    return sa.select(rules, _is_live(time).label("is_live")).order_by(rules.c.made_at, rules.c.id)


def _found(tx: sa.Connection, query: sa.Select[Any]) -> list[StandingRule]:
    return [
        StandingRule(
            id=row.id,
            tenant=row.tenant,
            data=json.loads(row.data),
            made_by=row.made_by,
            made_at=row.made_at,
            question_id=row.question_id,
            run_id=row.run_id,
            role=row.role,
            approvals=row.approvals,
            expires_at=row.expires_at,
            revoked_at=row.revoked_at,
            revoked_by=row.revoked_by,
            is_live=bool(row.is_live),
        )
        for row in tx.execute(query)
    ]
