"""`langgraph-durable runs …`: look at runs, signal events to them, cancel and retry them."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
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
from langgraph_durable.cli.printing import (
    at,
    complain,
    from_json,
    plain,
    print_json,
    print_table,
    say,
)
from langgraph_durable.cli.questions import print_questions, question_data
from langgraph_durable.errors import BadInput
from langgraph_durable.redaction import Redaction
from langgraph_durable.runs import Cost, Event, Run, Status, Step, Usage
from langgraph_durable.testing.replay import export_run
from langgraph_durable.values import readable

commands = typer.Typer(
    help="Look at runs, signal events to them, cancel and retry them.", no_args_is_help=True
)

WATCH_SECONDS = 0.2


@commands.command("list")
def runs_list(
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    status: Annotated[Status | None, typer.Option(help="Only this status.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first."""
    found = open_durable(app_path, db).runs(tenant=tenant, status=status, agent=agent, limit=limit)
    if as_json:
        print_json([_run_data(run) for run in found])
        return
    print_table(
        ("run", "tenant", "agent", "mode", "status", "attempts", "created"),
        [
            [r.id, r.tenant, r.agent, r.mode, r.status.value, r.attempts, at(r.created_at)]
            for r in found
        ],
    )


@commands.command("show")
def runs_show(
    run_id: str,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run: its steps, its open questions and what happened to it."""
    durable = open_durable(app_path, db)
    run = durable.get(run_id, tenant)
    steps, events = durable.journal(run_id), durable.events(run_id)
    if as_json:
        print_json(
            {
                **_run_data(run),
                "cost": durable.cost(run),
                "steps": [_step_data(s, run.redaction) for s in steps],
                "events": list(events),
            }
        )
        return
    say(f"run {run.id}  {run.agent} v{run.version} ({run.mode} mode)  tenant {run.tenant}")
    tried = f"attempts {run.attempts} of {run.max_attempts}  claims {run.epoch}"
    unwound = f"  unwound, to end as {run.unwinding.value}" if run.unwinding else ""
    say(f"status {run.status.value}  {tried}{unwound}")
    say(_used(run.usage))
    if (cost := durable.cost(run)) is not None:
        say(_paid(cost))
    if run.error:
        say(f"error {run.error.get('type')}: {run.error.get('message')}")
    if run.output is not None:
        say(f"output {readable(run.shown_output, 500)}")
    undone = durable.undone(steps)
    print_table(
        ("seq", "key", "kind", "name", "status", "tries", "claim", "ms"),
        [
            [
                s.seq,
                s.key,
                s.kind,
                s.name,
                f"{s.state.value}; {undone[s.key]}" if s.key in undone else s.state.value,
                s.attempts,
                s.epoch,
                f"{s.seconds * 1000:.1f}",
            ]
            for s in steps
        ],
    )
    print_questions(run.questions)
    print_table(
        ("at", "event", "by", "what"),
        [[at(e.at), e.type, e.actor, readable(dict(e.data), 90)] for e in events],
    )


@commands.command("export")
def runs_export(
    run_id: str,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The only form there is.")] = True,
    with_values: Annotated[
        bool, typer.Option("--with-values", help="Also the fields that are redacted elsewhere.")
    ] = False,
) -> None:
    """Print a run as JSON that `testing.replay_check` reads: everything it was told is in it."""
    durable = open_durable(app_path, db)
    if durable.redaction.names and not with_values:
        raise BadInput(
            "a replay needs the true values, so an export has those of redacted fields as well: "
            "say --with-values, and keep the file as you keep the database"
        )
    print_json(export_run(durable, run_id, tenant))


@commands.command("send")
def runs_send(
    run_id: str,
    event: Annotated[str, typer.Argument(help="What has happened, by the name that is awaited.")],
    payload: Annotated[str, typer.Argument(help="What is told with it, as JSON.")] = "null",
    signal_id: Annotated[
        str | None, typer.Option("--id", help="The same signal again under it changes nothing.")
    ] = None,
    by: ByOption = "operator",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Signal an event to a run, which takes it when it waits for it, now or later."""
    told = from_json("the payload", payload)
    durable = open_durable(app_path, db)
    sent = durable.send(run_id, event, told, tenant=tenant, id=signal_id, by=by)
    taken = f", taken by step {sent.taken_by!r}" if sent.taken_by else ""
    say(f"signal {sent.id}: {sent.event} to run {run_id}{taken}")


@commands.command("signals")
def runs_signals(
    run_id: str,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what was signalled to a run, and which step took it."""
    durable = open_durable(app_path, db)
    found = [
        dataclasses.replace(signal, payload=durable.redaction.shown(signal.payload))
        for signal in durable.signals(run_id, tenant)
    ]
    if as_json:
        print_json([dataclasses.asdict(signal) for signal in found])
        return
    print_table(
        ("sent", "signal", "event", "payload", "by", "taken by"),
        [
            [at(s.sent_at), s.id, s.event, readable(s.payload, 90), s.sent_by, s.taken_by or ""]
            for s in found
        ],
    )


@commands.command("cancel")
def runs_cancel(
    run_id: str,
    by: ByOption = "operator",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Cancel a run."""
    status = open_durable(app_path, db).cancel(run_id, by=by, tenant=tenant)
    say(f"run {run_id} is {status.value}")


@commands.command("retry")
def runs_retry(
    run_id: str,
    by: ByOption = "operator",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Queue a failed run again: its journal and decisions are kept."""
    run = open_durable(app_path, db).retry(run_id, by=by, tenant=tenant)
    say(f"run {run_id} is {run.status.value}")


@commands.command("watch")
def runs_watch(
    run_id: str,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    timeout_seconds: Annotated[float, typer.Option(min=0, help="0 waits for ever.")] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Print what happens to a run until it has ended; exit with 1 unless it succeeded."""
    durable = open_durable(app_path, db)
    until = time.monotonic() + timeout_seconds if timeout_seconds else None
    seen = 0
    while True:
        run = durable.get(run_id, tenant)  # before its events: the last one is not missed
        for event in durable.events(run_id, tenant, after=seen):
            seen = event.id
            _print_event(event, as_json)
        if run.status.is_final:
            break
        if until is not None and time.monotonic() >= until:
            complain(f"run {run_id} is {run.status.value} still")
            raise typer.Exit(1)
        time.sleep(WATCH_SECONDS)
    if run.status is not Status.SUCCEEDED:
        raise typer.Exit(1)


def _print_event(event: Event, as_json: bool) -> None:
    if as_json:
        line = json.dumps(dataclasses.asdict(event), default=plain, ensure_ascii=False)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        return
    shown = readable(dict(event.data), 120) if event.data else ""
    say(f"{at(event.at)}  {event.type:<20} {event.actor}  {shown}")


def _used(usage: Usage) -> str:
    return (
        f"model calls {usage.model_calls}, tool calls {usage.tool_calls}, "
        f"tokens {usage.input_tokens} in {usage.output_tokens} out; "
        f"replay answered {usage.saved_steps} steps ({usage.saved_tokens} tokens)"
    )


def _paid(cost: Cost) -> str:
    apart = cost.unpriced_tokens
    return f"cost {cost}" + (f", and {apart} tokens of unknown price" if apart else "")


def _run_data(run: Run) -> dict[str, Any]:
    data = {f.name: getattr(run, f.name) for f in dataclasses.fields(run)}
    del data["redaction"]
    data |= {"input": run.shown_input, "output": run.shown_output}
    return {**data, "questions": [question_data(q) for q in run.questions]}


def _step_data(step: Step, redaction: Redaction) -> dict[str, Any]:
    data = dataclasses.asdict(step)
    for name in ("value", "compensation"):
        data[name] = redaction.shown(json.loads(data[name])) if data[name] else None
    return data
