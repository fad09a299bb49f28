"""The command line: run workers, look at runs, answer questions.

Exit codes: 0 done · 1 refused or failed · 2 wrong use · 3 not found · 4 conflict ·
5 the database can't be used.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum, StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from langgraph_durable import lint
from langgraph_durable import up as embedded
from langgraph_durable.app import Durable
from langgraph_durable.errors import BadInput, Conflict, DurableError, NotFound, StoreError
from langgraph_durable.keys import ApiKey
from langgraph_durable.runs import Decision, Event, Question, Run, Status, Step
from langgraph_durable.store import RunStore, open_engine
from langgraph_durable.testing.replay import export_run
from langgraph_durable.values import readable
from langgraph_durable.worker import Worker


class LogLevel(StrEnum):
    """How much a worker says."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


app = typer.Typer(
    name="langgraph-durable",
    help="Durable runs of LangGraph agents: workers, runs, questions.",
    epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong use, 3 not found, 4 conflict, "
    "5 the database can't be used.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
runs_app = typer.Typer(help="Look at runs, cancel and retry them.", no_args_is_help=True)
questions_app = typer.Typer(help="Look at what runs ask.", no_args_is_help=True)
db_app = typer.Typer(help="The database's schema.", no_args_is_help=True)
app.add_typer(runs_app, name="runs")
app.add_typer(questions_app, name="questions")
app.add_typer(db_app, name="db")
rules_app = typer.Typer(help="Rules that decisions carried.", no_args_is_help=True)
app.add_typer(rules_app, name="rules")
keys_app = typer.Typer(help="API keys: who may call, for which tenant.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")

WATCH_SECONDS = 0.2

# in a pipe a line is a line: nothing is wrapped to a terminal's width
out = Console(width=None if sys.stdout.isatty() else 1_000)
err = Console(stderr=True)

EXIT_CODES: Mapping[type[DurableError], int] = {NotFound: 3, Conflict: 4, StoreError: 5}

AppOption = Annotated[
    str | None, typer.Option("--app", help="Where the Durable is: package.module:name.")
]
DbOption = Annotated[
    str | None,
    typer.Option("--db", envvar="LANGGRAPH_DURABLE_DB", help="Database URL, if no --app is given."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TenantOption = Annotated[str | None, typer.Option(help="Only this tenant.")]
ByOption = Annotated[str, typer.Option(help="Who decides, for the audit.")]


def main() -> None:
    """Run the command line; an error is a sentence, not a traceback."""
    try:
        app()
    except DurableError as error:
        err.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        kind = next((k for k in EXIT_CODES if isinstance(error, k)), DurableError)
        sys.exit(EXIT_CODES.get(kind, 1))


def load(path: str) -> Durable:
    """Import the Durable that `package.module:name` names.

    Raises:
        BadInput: there is none.
    """
    found = _imported(path, "--app ")
    if not isinstance(found, Durable):
        module_name, _, name = path.partition(":")
        raise BadInput(f"--app {path}: {module_name} has no Durable called {name!r}")
    return found


def _imported(path: str, option: str = "") -> object:
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise BadInput(
            f"{option or 'say '}package.module:name, such as supportpilot.app:durable, not {path!r}"
        )
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BadInput(
            f"{option}{path}: {error}. Run it where the package can be imported."
        ) from error
    except DurableError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise BadInput(
            f"{option}{path}: {module_name} can't be imported: {type(error).__name__}: {error} "
            f"({at.filename}, line {at.lineno})"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        raise BadInput(f"{option}{path}: {module_name} has nothing called {name!r}")
    return found


def _open(app_path: str | None, db: str | None) -> Durable:
    if app_path:
        return load(app_path)
    if db:
        return Durable(db, create=False)
    raise BadInput(
        "say which database: --app package.module:name, --db URL, or LANGGRAPH_DURABLE_DB"
    )


# --- worker, agents, db ----------------------------------------------------------------


@app.command()
def worker(
    app_path: Annotated[
        str, typer.Option("--app", help="Where the Durable is: package.module:name.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Its name; by default host, process and a unique part.")
    ] = None,
    lease_seconds: Annotated[
        float, typer.Option(min=0.1, help="How long a claim holds without a sign of life.")
    ] = 60.0,
    concurrency: Annotated[int, typer.Option(min=1, help="How many runs at once.")] = 8,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long calls in flight may take to end after a stop.")
    ] = 30.0,
    log_level: Annotated[LogLevel, typer.Option(help="How much to say.")] = LogLevel.INFO,
) -> None:
    """Run what was submitted, until SIGTERM; then hand over and exit with 0."""
    logging.basicConfig(
        level=log_level.value.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    serving = Worker(
        load(app_path),
        name,
        lease_seconds=lease_seconds,
        concurrency=concurrency,
        drain_seconds=drain_seconds,
    )
    err.print(f"worker {serving.name} serves {app_path}", markup=False, highlight=False)
    if not serving.serve():
        logging.shutdown()
        os._exit(0)  # a thread of a run still works: nothing but the process's end stops it


@app.command()
def agents(
    app_path: Annotated[
        str, typer.Option("--app", help="Where the Durable is: package.module:name.")
    ],
    root: Annotated[str, typer.Option(help="The folder that ADR paths start from.")] = ".",
    as_json: JsonOption = False,
) -> None:
    """List agents with version, mode and ADR; fail where an ADR is missing or disagrees."""
    durable = load(app_path)
    problems = durable.check_adrs(root)
    listed = [
        {
            "name": agent.name,
            "version": agent.version,
            "mode": agent.mode,
            "adr": agent.adr,
            "problem": problems.get(f"{agent.name} {agent.version}"),
        }
        for agent in durable.agents
    ]
    if as_json:
        _print_json(listed)
    else:
        shown = [
            [a["name"], a["version"], a["mode"], a["adr"] or "-", a["problem"] or "ok"]
            for a in listed
        ]
        _print_table(("agent", "version", "mode", "ADR", "check"), shown)
    if problems:
        raise typer.Exit(1)


@db_app.command()
def upgrade(app_path: AppOption = None, db: DbOption = None) -> None:
    """Bring the schema up to this version; any number of processes may call it at once."""
    if db is None and app_path is None:
        raise BadInput("say which database: --db URL or --app package.module:name")
    store = RunStore(open_engine(db)) if db is not None else load(str(app_path)).store
    store.upgrade()
    out.print("the schema is up to date")


# --- runs ------------------------------------------------------------------------------


@runs_app.command("list")
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
    found = _open(app_path, db).runs(tenant=tenant, status=status, agent=agent, limit=limit)
    if as_json:
        _print_json([_run_data(run) for run in found])
        return
    _print_table(
        ("run", "tenant", "agent", "mode", "status", "attempts", "created"),
        [
            [r.id, r.tenant, r.agent, r.mode, r.status.value, r.attempts, _at(r.created_at)]
            for r in found
        ],
    )


@runs_app.command("show")
def runs_show(
    run_id: str,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run: its steps, its open questions and what happened to it."""
    durable = _open(app_path, db)
    run = durable.get(run_id, tenant)
    steps, events = durable.journal(run_id), durable.events(run_id)
    if as_json:
        _print_json(
            {**_run_data(run), "steps": [_step_data(s) for s in steps], "events": list(events)}
        )
        return
    usage = run.usage
    out.print(
        f"run {run.id}  {run.agent} v{run.version} ({run.mode} mode)  tenant {run.tenant}",
        markup=False,
    )
    out.print(
        f"status {run.status.value}  attempts {run.attempts} of {run.max_attempts}  claims {run.epoch}",
        markup=False,
    )
    out.print(
        f"model calls {usage.model_calls}, tool calls {usage.tool_calls}, tokens {usage.input_tokens} in "
        f"{usage.output_tokens} out; replay answered {usage.saved_steps} steps ({usage.saved_tokens} tokens)"
    )
    if run.error:
        out.print(f"error {run.error.get('type')}: {run.error.get('message')}", markup=False)
    if run.output is not None:
        out.print(f"output {readable(run.output, 500)}", markup=False)
    _print_table(
        ("seq", "key", "kind", "name", "status", "tries", "claim", "ms"),
        [
            [
                s.seq,
                s.key,
                s.kind,
                s.name,
                s.state.value,
                s.attempts,
                s.epoch,
                f"{s.seconds * 1000:.1f}",
            ]
            for s in steps
        ],
    )
    _print_questions(run.questions)
    _print_table(
        ("at", "event", "by", "what"),
        [[_at(e.at), e.type, e.actor, readable(dict(e.data), 90)] for e in events],
    )


@runs_app.command("export")
def runs_export(
    run_id: str,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The only form there is.")] = True,
) -> None:
    """Print a run as JSON that `testing.replay_check` reads: everything it was told is in it."""
    _print_json(export_run(_open(app_path, db), run_id, tenant))


@runs_app.command("cancel")
def runs_cancel(
    run_id: str,
    by: ByOption = "operator",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Cancel a run."""
    status = _open(app_path, db).cancel(run_id, by=by, tenant=tenant)
    out.print(f"run {run_id} is {status.value}")


@runs_app.command("retry")
def runs_retry(
    run_id: str,
    by: ByOption = "operator",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Queue a failed run again: its journal and decisions are kept."""
    run = _open(app_path, db).retry(run_id, by=by, tenant=tenant)
    out.print(f"run {run_id} is {run.status.value}")


@runs_app.command("watch")
def runs_watch(
    run_id: str,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    timeout_seconds: Annotated[float, typer.Option(min=0, help="0 waits for ever.")] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Print what happens to a run until it has ended; exit with 1 unless it succeeded."""
    durable = _open(app_path, db)
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
            err.print(f"run {run_id} is {run.status.value} still", markup=False, highlight=False)
            raise typer.Exit(1)
        time.sleep(WATCH_SECONDS)
    if run.status is not Status.SUCCEEDED:
        raise typer.Exit(1)


def _print_event(event: Event, as_json: bool) -> None:
    if as_json:
        line = json.dumps(dataclasses.asdict(event), default=_plain, ensure_ascii=False)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        return
    shown = readable(dict(event.data), 120) if event.data else ""
    out.print(
        f"{_at(event.at)}  {event.type:<20} {event.actor}  {shown}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


# --- operators -------------------------------------------------------------------------


@app.command()
def stats(
    days: Annotated[float, typer.Option(min=0.01, max=3650, help="How far back.")] = 7.0,
    app_path: AppOption = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count what a review needs: runs, repeated calls, stuck runs, conflicts, time waited."""
    found = _open(app_path, db).store.stats(days)
    if as_json:
        _print_json(found)
        return
    mean = found.human_wait_seconds / found.questions if found.questions else 0.0
    statuses = ", ".join(f"{n} {status}" for status, n in sorted(found.by_status.items()))
    _print_table(
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


@app.command()
def doctor(app_path: AppOption = None, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Look for what needs an operator; exit with 1 if there is anything."""
    found = _open(app_path, db).store.complaints()
    if as_json:
        _print_json(found)
    elif not found:
        out.print("nothing to complain about")
    else:
        _print_table(("what", "run", "details"), [[c.kind, c.run_id, c.what] for c in found])
    if found:
        raise typer.Exit(1)


@app.command()
def purge(
    older_than_days: Annotated[float, typer.Option(min=0, help="Keep runs that ended later.")],
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Forget finished runs with all that belongs to them; parked and running ones stay."""
    count = _open(app_path, db).purge(older_than_days * 86_400, tenant=tenant)
    out.print(f"{count} runs purged")


@app.command("lint")
def lint_command(
    target: Annotated[str, typer.Argument(help="package.module:name of a graph or a Durable.")],
    as_json: JsonOption = False,
) -> None:
    """Name the lines of nodes that would differ on replay; exit with 1 if there are any."""
    found = [f for graph in _graphs(target).values() for f in lint.check(graph)]
    if as_json:
        _print_json(found)
    else:
        for finding in found:
            out.print(str(finding), markup=False, highlight=False, soft_wrap=True)
        out.print(f"{len(found)} lines to change" if found else "nothing to change")
    if found:
        raise typer.Exit(1)


@app.command("migrate-report")
def migrate_report(
    target: Annotated[str, typer.Argument(help="package.module:name of a graph or a Durable.")],
    adr: Annotated[bool, typer.Option("--adr", help="Print a draft of the ADR instead.")] = False,
) -> None:
    """Say, node by node, what must change to go from graph mode to steps mode."""
    for name, graph in _graphs(target).items():
        report = lint.migration_report(graph, name)
        text = report.adr() if adr else "\n".join([f"{name}:", *report.lines()])
        out.print(text, markup=False, highlight=False, soft_wrap=True)


def _graphs(target: str) -> Mapping[str, object]:
    """Return what `package.module:name` names, or the agents of a Durable by name."""
    found = _imported(target)
    if not isinstance(found, Durable):
        return {target.rpartition(":")[2]: found}
    return {f"{a.name} {a.version}": a.graph or a.function for a in found.agents}


@app.command()
def up(
    app_path: Annotated[
        str, typer.Option("--app", help="Where the Durable is: package.module:name.")
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    tenant: Annotated[str, typer.Option(help="Whose keys are made.")] = "default",
    lease_seconds: Annotated[float, typer.Option(min=0.1)] = 60.0,
    concurrency: Annotated[int, typer.Option(min=1, help="How many runs at once.")] = 8,
    as_json: JsonOption = False,
) -> None:
    """Serve API and page, and work, in one process; prints address and keys."""
    logging.basicConfig(level=logging.WARNING)
    stays = embedded.set_pepper()
    durable = load(app_path)
    listener = embedded.listen(host, port)
    keys = embedded.fresh_keys(durable, tenant)
    url = f"http://{host}:{listener.getsockname()[1]}"
    if as_json:
        line = json.dumps({"url": url, "tenant": tenant, "keys": keys, "keys_stay": stays})
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    else:
        out.print(f"page {url}/   API {url}/v1   tenant {tenant}", markup=False, highlight=False)
        for name, secret in keys.items():
            sys.stdout.write(f"{name:<11} {secret}\n")
        if not stays:
            out.print("the keys end with this process: no LANGGRAPH_DURABLE_PEPPER is set")
        sys.stdout.flush()
    serving = Worker(durable, lease_seconds=lease_seconds, concurrency=concurrency)
    embedded.serve(durable, listener, serving)


# --- rules -----------------------------------------------------------------------------


@rules_app.command("list")
def rules_list(
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the rules that decisions carried, oldest first, ended ones too."""
    found = _open(app_path, db).rules(tenant)
    if as_json:
        _print_json(found)
        return
    _print_table(
        ("rule", "tenant", "says", "made by", "at", "until", "live"),
        [
            [r.id, r.tenant, json.dumps(r.data, ensure_ascii=False), r.made_by, _at(r.made_at),
             _at(r.expires_at) if r.expires_at else "-", "yes" if r.is_live else "no"]
            for r in found
        ],
    )  # fmt: skip


@rules_app.command("revoke")
def rules_revoke(
    rule_id: str,
    by: ByOption = "command line",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a rule at once; again changes nothing."""
    rule = _open(app_path, db).revoke_rule(rule_id, by=by, tenant=tenant)
    if as_json:
        _print_json(rule)
        return
    out.print(f"rule {rule.id} is revoked by {rule.revoked_by}", markup=False, highlight=False)


# --- questions -------------------------------------------------------------------------


@questions_app.command("list")
def questions_list(
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    role: Annotated[str | None, typer.Option(help="Only those that this role decides.")] = None,
    run_id: Annotated[str | None, typer.Option("--run", help="Only this run's.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List open questions, oldest first."""
    found = _open(app_path, db).questions(tenant=tenant, role=role, run_id=run_id)
    if as_json:
        _print_json([_question_data(q) for q in found])
        return
    if not found:
        out.print("no open questions")
    _print_questions(found)


@questions_app.command("show")
def questions_show(
    question_id: str, app_path: AppOption = None, db: DbOption = None, tenant: TenantOption = None
) -> None:
    """Show one question as JSON: exactly what will be done."""
    durable = _open(app_path, db)
    _print_json(_question_data(durable.store.question(question_id, tenant)))


@app.command()
def approve(
    question_id: str,
    by: ByOption,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Approve a question: the call is made exactly as shown."""
    _decide(question_id, Decision.approve(by), app_path, db, tenant)


@app.command()
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


@app.command()
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
    given = _json("the arguments", arguments)
    if not isinstance(given, dict):
        raise BadInput("the arguments must be a JSON object")
    _decide(question_id, Decision.edit(by, given), app_path, db, tenant)


@app.command()
def respond(
    question_id: str,
    value: Annotated[str, typer.Argument(help="The answer, as JSON.")],
    by: ByOption,
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """Answer a question with a value."""
    _decide(question_id, Decision.respond(by, _json("the answer", value)), app_path, db, tenant)


def _decide(
    question_id: str, decision: Decision, app_path: str | None, db: str | None, tenant: str | None
) -> None:
    durable = _open(app_path, db)
    before = durable.store.question(question_id, tenant)
    question = durable.decide(question_id, decision, tenant=tenant)
    if question.decision is None:  # several people must approve
        so_far = f"approved by {', '.join(question.approved_by)}; {question.approvals} must"
        out.print(f"question {question.id}: {so_far}", markup=False, highlight=False)
        return
    made = question.decision
    again = " (it was decided so already; nothing changed)" if before.decision is not None else ""
    out.print(
        f"question {question.id}: {made.choice} by {made.by}{again}", markup=False, highlight=False
    )


# --- keys ------------------------------------------------------------------------------


@keys_app.command("create")
def keys_create(
    tenant: Annotated[str, typer.Option(help="Whose runs it sees.")],
    name: Annotated[str, typer.Option(help="How the audit calls who uses it.")],
    role: Annotated[
        list[str],
        typer.Option(help="agent, supervisor, operator or an approver's role; repeat it."),
    ],
    scope: Annotated[
        list[str] | None, typer.Option(help="agent:<name>, to limit it to that agent; repeat it.")
    ] = None,
    expires_in_days: Annotated[float | None, typer.Option(help="By default it doesn't.")] = None,
    app_path: AppOption = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an API key. Its secret is printed this once; only its digest is kept."""
    issued = _open(app_path, db).keys.create(
        tenant=tenant,
        name=name,
        roles=role,
        scopes=scope or (),
        expires_in_seconds=None if expires_in_days is None else expires_in_days * 86_400,
        by="command line",
    )
    if as_json:
        _print_json({**_key_data(issued.key), "secret": issued.secret})
        return
    err.print(f"key {issued.key.id} of tenant {tenant}; keep its secret, it is not shown again:")
    sys.stdout.write(issued.secret + "\n")


@keys_app.command("list")
def keys_list(
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """List keys, oldest first, revoked and expired ones too."""
    found = [_key_data(key) for key in _open(app_path, db).keys.list(tenant)]
    if as_json:
        _print_json(found)
        return
    _print_table(
        ("key", "tenant", "name", "roles", "scopes", "live", "created", "expires"),
        [
            [k["id"], k["tenant"], k["name"], ", ".join(k["roles"]), ", ".join(k["scopes"]) or "all",
             "yes" if k["is_live"] else "no", _at(k["created_at"]),
             _at(k["expires_at"]) if k["expires_at"] else "-"]
            for k in found
        ],
    )  # fmt: skip


@keys_app.command("revoke")
def keys_revoke(
    key_id: str,
    by: ByOption = "command line",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """End a key at once."""
    key = _open(app_path, db).keys.revoke(key_id, tenant=tenant, by=by)
    out.print(f"key {key.id} ({key.name}) is revoked", markup=False, highlight=False)


def _key_data(key: ApiKey) -> dict[str, Any]:
    data = dataclasses.asdict(key)
    return {**data, "roles": sorted(key.roles), "scopes": sorted(key.scopes)}


# --- printing --------------------------------------------------------------------------


def _json(what: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadInput(f"{what} can't be read as JSON: {error}") from error


def _at(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")


def _run_data(run: Run) -> dict[str, Any]:
    data = {f.name: getattr(run, f.name) for f in dataclasses.fields(run)}
    return {**data, "questions": [_question_data(q) for q in run.questions]}


def _step_data(step: Step) -> dict[str, Any]:
    data = dataclasses.asdict(step)
    return {**data, "value": json.loads(step.value) if step.value else None}


def _question_data(question: Question) -> dict[str, Any]:
    return dataclasses.asdict(question)


def _print_questions(questions: Iterable[Question]) -> None:
    _print_table(
        ("question", "run", "kind", "what", "shown", "takes"),
        [
            [
                q.id,
                q.run_id,
                q.kind,
                q.tool or q.key,
                readable(q.payload, 120),
                ", ".join(q.allowed),
            ]
            for q in questions
        ],
    )


def _print_table(columns: Iterable[str], lines: Iterable[Iterable[Any]]) -> None:
    lines = list(lines)
    if not lines:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0, overflow="fold")
    for line in lines:
        table.add_row(*(str(cell) for cell in line))
    out.print(table, markup=False)


def _print_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, default=_plain, indent=2, ensure_ascii=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return readable(value)


if __name__ == "__main__":
    main()
