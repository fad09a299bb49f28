"""`langgraph-durable outbox …`: messages that steps sent, and sending dead ones again."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from langgraph_durable.cli.options import (
    AppOption,
    ByOption,
    DbOption,
    JsonOption,
    TenantOption,
    open_durable,
)
from langgraph_durable.cli.printing import at, print_json, print_table, say
from langgraph_durable.values import readable

commands = typer.Typer(help="Messages that steps sent.", no_args_is_help=True)

RunOption = Annotated[str | None, typer.Option("--run", help="Only this run's.")]


@commands.command("list")
def outbox_list(
    dead: Annotated[bool, typer.Option("--dead", help="Only those that were given up.")] = False,
    run_id: RunOption = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """List messages, newest first."""
    durable = open_durable(app_path, db)
    found = [
        replace(message, payload=durable.redaction.shown(message.payload))
        for message in durable.outbox(
            tenant=tenant, run_id=run_id, state="dead" if dead else None, limit=limit
        )
    ]
    if as_json:
        print_json(found)
        return
    if not found:
        say("no dead messages" if dead else "no messages")
    print_table(
        ("message", "topic", "state", "tries", "since", "says", "error"),
        [
            [m.id, m.topic, m.state, str(m.attempts), at(m.created_at),
             readable(m.payload, 80), m.error or "-"]
            for m in found
        ],
    )  # fmt: skip


@commands.command("resend")
def outbox_resend(
    message_id: Annotated[str | None, typer.Argument(help="The message's id.")] = None,
    all_dead: Annotated[bool, typer.Option("--all-dead", help="All that were given up.")] = False,
    run_id: RunOption = None,
    by: ByOption = "command line",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Have a dead message tried again by the workers; its id stays the same."""
    if (message_id is None) is not all_dead or (message_id is not None and run_id is not None):
        raise typer.BadParameter("name a message, or give --all-dead (of one --run)")
    durable = open_durable(app_path, db)
    if message_id is not None:
        message = durable.resend(message_id, by=by, tenant=tenant)
        say(f"{message.id} ({message.topic}) is tried again")
        return
    count = durable.resend_dead(by=by, tenant=tenant, run_id=run_id)
    say(f"{count} dead messages are tried again")
