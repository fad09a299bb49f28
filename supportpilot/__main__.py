"""python -m supportpilot: submit a ticket, see what waits for a person, decide."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from langgraph_durable import Decision, DurableError
from supportpilot.app import durable
from supportpilot.build import STEPS_MODE

cli = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

Tenant = Annotated[str, typer.Option(help="Whose ticket it is.")]
By = Annotated[str, typer.Option(help="Who decides; kept in the audit.")]


@cli.command()
def submit(
    ticket: str,
    customer: Annotated[str, typer.Option(help="The customer, such as c_42.")],
    tenant: Tenant = "t_acme",
    agent: Annotated[str, typer.Option(help="support.v1 or support.v2.")] = STEPS_MODE,
    key: Annotated[str | None, typer.Option(help="The same key again is the same run.")] = None,
) -> None:
    """Submit a ticket and print the id of its run."""
    state = {"ticket": ticket, "customer_id": customer}
    print(durable.submit(agent, state, tenant=tenant, idempotency_key=key))


@cli.command()
def show(run_id: str, tenant: Tenant = "t_acme") -> None:
    """Print where a run stands, and its reply once there is one."""
    run = durable.get(run_id, tenant=tenant)
    reply = run.output.get("reply") if isinstance(run.output, dict) else None
    shown = {"run": run.id, "status": run.status, "reply": reply, "error": run.error}
    print(json.dumps(shown, ensure_ascii=False))


@cli.command()
def inbox(tenant: Tenant = "t_acme") -> None:
    """Print the questions that wait for a person, one a line."""
    for question in durable.questions(tenant=tenant):
        asked = {"question": question.id, "run": question.run_id, "shown": question.payload}
        print(json.dumps(asked, ensure_ascii=False, default=str))


@cli.command()
def approve(question_id: str, by: By, tenant: Tenant = "t_acme") -> None:
    """Let a call go ahead as shown. The same click again changes nothing."""
    durable.decide(question_id, Decision.approve(by=by), tenant=tenant)
    print(f"approved by {by}")


@cli.command()
def reject(
    question_id: str,
    by: By,
    reason: Annotated[str, typer.Option(help="The customer is told.")],
    tenant: Tenant = "t_acme",
) -> None:
    """Refuse a call for good; the customer is told the reason."""
    durable.decide(question_id, Decision.reject(by=by, reason=reason), tenant=tenant)
    print(f"rejected by {by}")


def main() -> None:
    """Run the command line; a refusal is a sentence, not a traceback."""
    try:
        cli()
    except DurableError as refused:
        typer.echo(str(refused), err=True)
        raise SystemExit(1) from refused


if __name__ == "__main__":
    main()
