"""The decisions: approve, reject, edit, respond."""

from __future__ import annotations

from typing import Annotated

import typer

from langgraph_durable.cli.options import AppOption, ByOption, DbOption, TenantOption, open_durable
from langgraph_durable.cli.printing import from_json, say
from langgraph_durable.errors import BadInput
from langgraph_durable.runs import Decision

commands = typer.Typer()


@commands.command()
def approve(
    question_id: str,
    by: ByOption,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Approve a question: the call is made exactly as shown."""
    _decide(question_id, Decision.approve(by), app_path, db, tenant)


@commands.command()
def reject(
    question_id: str,
    by: ByOption,
    reason: Annotated[str, typer.Option(help="Why; the agent is told.")] = "",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Refuse a question: the call is not made, and the agent goes on with the refusal."""
    _decide(question_id, Decision.reject(by, reason), app_path, db, tenant)


@commands.command()
def edit(
    question_id: str,
    arguments: Annotated[
        str, typer.Argument(help="The arguments to use instead, as a JSON object.")
    ],
    by: ByOption,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Approve a question with other arguments."""
    given = from_json("the arguments", arguments)
    if not isinstance(given, dict):
        raise BadInput("the arguments must be a JSON object")
    _decide(question_id, Decision.edit(by, given), app_path, db, tenant)


@commands.command()
def respond(
    question_id: str,
    value: Annotated[str, typer.Argument(help="The answer, as JSON.")],
    by: ByOption,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Answer a question with a value."""
    _decide(question_id, Decision.respond(by, from_json("the answer", value)), app_path, db, tenant)


def _decide(
    question_id: str, decision: Decision, app_path: str | None, db: str | None, tenant: str | None
) -> None:
    durable = open_durable(app_path, db)
    before = durable.store.question(question_id, tenant)
    question = durable.decide(question_id, decision, tenant=tenant)
    if question.decision is None:  # several people must approve
        so_far = f"approved by {', '.join(question.approved_by)}; {question.approvals} must"
        say(f"question {question.id}: {so_far}")
        return
    made = question.decision
    again = " (it was decided so already; nothing changed)" if before.decision is not None else ""
    say(f"question {question.id}: {made.choice} by {made.by}{again}")
