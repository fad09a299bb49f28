"""What an operator asks of the database: counts, complaints, a purge, the schema."""

from __future__ import annotations

from typing import Annotated

import typer

from langgraph_durable.cli.options import (
    AppOption,
    DbOption,
    JsonOption,
    TenantOption,
    load,
    open_durable,
)
from langgraph_durable.cli.printing import print_json, print_table, say
from langgraph_durable.errors import BadInput
from langgraph_durable.store import RunStore, open_engine

commands = typer.Typer()
database = typer.Typer(help="The database's schema.", no_args_is_help=True)


@database.command()
def upgrade(app_path: AppOption = None, db: DbOption = None) -> None:
    """Bring the schema up to this version; any number of processes may call it at once."""
    if db is None and app_path is None:
        raise BadInput("say which database: --db URL or --app package.module:name")
    store = RunStore(open_engine(db)) if db is not None else load(str(app_path)).store
    store.upgrade()
    say("the schema is up to date")


@commands.command()
def stats(
    days: Annotated[float, typer.Option(min=0.01, max=3650, help="How far back.")] = 7.0,
    app_path: AppOption = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count what a review needs: runs, repeated calls, stuck runs, conflicts, time waited."""
    found = open_durable(app_path, db).store.stats(days)
    if as_json:
        print_json(found)
        return
    mean = found.human_wait_seconds / found.questions if found.questions else 0.0
    statuses = ", ".join(f"{n} {status}" for status, n in sorted(found.by_status.items()))
    print_table(
        (f"last {days:g} days", ""),
        [
            ["runs", f"{found.runs} ({found.runs_a_day:.1f} a day): {statuses or 'none'}"],
            ["steps", f"{found.steps} ({found.steps_a_day:.1f} a day)"],
            ["taken over from a dead worker", found.takeovers],
            ["calls repeated under their first key", found.repeated_calls],
            ["runs failed by a key conflict", found.key_conflicts],
            ["stuck now", found.stuck],
            ["questions decided", found.questions],
            ["waited for people", f"{found.human_wait_seconds:.0f} s, {mean:.0f} s a question"],
        ],
    )


@commands.command()
def doctor(app_path: AppOption = None, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Look for what needs an operator; exit with 1 if there is anything."""
    found = open_durable(app_path, db).store.complaints()
    if as_json:
        print_json(found)
    elif not found:
        say("nothing to complain about")
    else:
        print_table(("what", "run", "details"), [[c.kind, c.run_id, c.what] for c in found])
    if found:
        raise typer.Exit(1)


@commands.command()
def purge(
    older_than_days: Annotated[float, typer.Option(min=0, help="Keep runs that ended later.")],
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Forget finished runs with all that belongs to them; parked and running ones stay."""
    count = open_durable(app_path, db).purge(older_than_days * 86_400, tenant=tenant)
    say(f"{count} runs purged")
