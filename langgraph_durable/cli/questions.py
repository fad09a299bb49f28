"""`langgraph-durable questions …`: look at what runs ask, and hand it over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from langgraph_durable.cli.options import (
    AppOption,
    ByOption,
    DbOption,
    JsonOption,
    TenantOption,
    open_durable,
)
from langgraph_durable.cli.printing import print_json, print_table, say
from langgraph_durable.runs import Question
from langgraph_durable.values import readable

commands = typer.Typer(help="Look at what runs ask.", no_args_is_help=True)


@commands.command("list")
def questions_list(
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    role: Annotated[str | None, typer.Option(help="Only those that this role decides.")] = None,
    run_id: Annotated[str | None, typer.Option("--run", help="Only this run's.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List open questions, oldest first."""
    found = open_durable(app_path, db).questions(tenant=tenant, role=role, run_id=run_id)
    if as_json:
        print_json([question_data(q) for q in found])
        return
    if not found:
        say("no open questions")
    print_questions(found)


@commands.command("show")
def questions_show(
    question_id: str, app_path: AppOption = None, db: DbOption = None, tenant: TenantOption = None
) -> None:
    """Show one question as JSON: exactly what will be done."""
    durable = open_durable(app_path, db)
    print_json(question_data(durable.store.question(question_id, tenant)))


@commands.command("delegate")
def questions_delegate(
    question_id: str,
    role: Annotated[str | None, typer.Option(help="The role that decides from now on.")] = None,
    person: Annotated[
        str | None, typer.Option(help="The one who decides, by the name of their key.")
    ] = None,
    by: ByOption = "command line",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hand an open question to another role, or to one person."""
    question = open_durable(app_path, db).delegate(
        question_id, by=by, role=role, person=person, tenant=tenant
    )
    if as_json:
        print_json(question_data(question))
        return
    say(f"question {question.id} is handed to {question.person or question.role}")


def question_data(question: Question) -> dict[str, Any]:
    """Return a question as data, as people see it."""
    seen = dataclasses.replace(
        question, payload=question.shown, decision=question.shown_decision, default=None
    )
    data = {**dataclasses.asdict(seen), "default": question.redaction.shown(question.default)}
    del data["redaction"]
    return data


def print_questions(questions: Iterable[Question]) -> None:
    """Print questions as a table."""
    print_table(
        ("question", "run", "kind", "what", "shown", "takes"),
        [
            [
                q.id,
                q.run_id,
                q.kind,
                q.tool or q.key,
                readable(q.shown, 120),
                ", ".join(q.allowed),
            ]
            for q in questions
        ],
    )
