"""What the steps of one claimed run may call and use: its tenant's rules and budgets."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from langgraph_durable.app import Durable
from langgraph_durable.context import Allowance, Services
from langgraph_durable.context.allowances import added_by
from langgraph_durable.errors import BadInput, UnknownAgent
from langgraph_durable.policy import Rule, Standing
from langgraph_durable.runs import Budget, Price, QuestionState, Run, StandingRule
from langgraph_durable.store import Inbox, Used

log = logging.getLogger(__name__)

MAX_RAISES = 1_000


def services_of(durable: Durable, run: Run, rules: Sequence[StandingRule]) -> Services:
    """Return the services of one pass over a run; asks the database about a tenant's budget."""
    return replace(
        durable.services,
        standing=tuple(_heard(rules)),
        was_refused=partial(durable.store.was_refused, run.tenant),
        allowances=tuple(_allowances(durable, run)),
    )


def _heard(rules: Sequence[StandingRule]) -> Iterator[Standing]:
    for rule in rules:
        try:
            yield Standing(rule.id, Rule.from_data(rule.data), rule.role, rule.approvals)
        except BadInput as error:  # stored by another version of this package
            log.warning("rule %s can't be read and is not heard: %s", rule.id, error)


def _allowances(durable: Durable, run: Run) -> Iterator[Allowance]:
    try:
        of_run = durable.find(run.agent, run.version).budget
    except UnknownAgent:
        return  # the run fails by it
    if of_run is not None:
        yield Allowance("run", of_run)
    of_tenant = durable.budgets.get(run.tenant)
    if of_tenant is not None:
        used = durable.store.used_by_tenant(run.tenant, of_tenant.window_seconds, run.id)
        raises = _raises(durable, run.tenant, of_tenant)
        yield Allowance("tenant", of_tenant, _summed(used, durable.services.prices), raises)


def _summed(used: Sequence[Used], prices: Mapping[str, Price]) -> dict[str, float]:
    models = [u for u in used if u.kind == "llm"]
    priced = [(prices.get(u.name), u) for u in models]
    return {
        "tokens": float(sum(u.input_tokens + u.output_tokens for u in models)),
        "model_calls": float(sum(u.calls for u in models)),
        "tool_calls": float(sum(u.calls for u in used if u.kind == "tool")),
        "cost": float(sum(p.of(u.input_tokens, u.output_tokens) for p, u in priced if p)),
    }


def _raises(durable: Durable, tenant: str, budget: Budget) -> dict[str, tuple[float, int]]:
    """Return what people added to a tenant's budget inside its window, in all its runs."""
    found = {}
    since = durable.store.earlier(budget.window_seconds)
    for what, limit in budget.limits.items():
        wanted = Inbox(
            tenant=tenant,
            tool=f"budget.tenant.{what}",
            state=QuestionState.DECIDED,
            limit=MAX_RAISES,
        )
        added = [
            more
            for question in durable.store.list_questions(wanted)
            if question.decided_at is not None and question.decided_at >= since
            if (more := added_by(question, limit)) is not None
        ]
        found[what] = (sum(added), len(added))
    return found
