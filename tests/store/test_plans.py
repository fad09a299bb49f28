"""A million finished runs don't slow a claim: what the databases say they would read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from desk import Desk, step
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from langgraph_durable.runs import Lease, Replayed
from langgraph_durable.store import Ending, Inbox, Page, Served, Write

FINISHED, PARKED, QUEUED = 50_000, 5_000, 200
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {0})"
RUNS = (
    "INSERT INTO runs (id, tenant, agent, version, mode, thread, status, input, run_after, "
    f"created_at, asked, holds_thread) {NUMBERS} SELECT '{{1}}' || i, 't' || (i %% 100), 'a', '1', 'steps', "
    "'{1}' || i, '{1}', '{{}}', '2026-01-01 00:00:00', '2026-01-01 00:00:00', 1, {2} FROM n"
)
QUESTIONS = (
    "INSERT INTO questions (id, run_id, tenant, key, kind, tool, payload, digest, allowed, "
    f"on_expiry, state, asked_at, expires_at) {NUMBERS} SELECT '{{1}}' || i, 'waiting_human' || "
    "(i %% 5000), 't' || (i %% 100), '{1}' || i, 'tool', '', '1', '', '[]', 'fail', '{1}', "
    "'2026-01-01 00:00:00', '2099-01-01 00:00:00' FROM n"
)
STEPS = (
    "INSERT INTO steps (run_id, key, kind, name, state, fingerprint, request, place, recorded_at) "
    f"{NUMBERS} SELECT 'succeeded' || (i / 10), 'k' || (i %% 10), 'once', '', 'recorded', '', '', '', "
    "'2026-01-01 00:00:00' FROM n"
)
EVENTS = (
    "INSERT INTO events (run_id, tenant, type, at, actor, data) "
    f"{NUMBERS} SELECT 'succeeded' || (i / 4), 't', 'x', '2026-01-01 00:00:00', '', '{{{{}}}}' FROM n"
)


@pytest.fixture
def crowded(live: Desk) -> Desk:
    """A database with many finished and parked runs, and a few that are due."""
    with live.engine.begin() as tx:
        for status, count, holds in (
            ("succeeded", FINISHED, "false"),
            ("waiting_human", PARKED, "true"),
            ("sleeping", PARKED, "true"),
            ("queued", QUEUED, "false"),
        ):
            fill(tx, RUNS.format(count, status, holds))
        for state, count in (("open", PARKED), ("decided", 20_000)):
            fill(tx, QUESTIONS.format(count, state))
        fill(tx, STEPS.format(20_000))
        fill(tx, EVENTS.format(20_000))
        tx.exec_driver_sql(
            "UPDATE runs SET wake_at = '2099-01-01 00:00:00' WHERE status = 'sleeping'"
        )
        tx.exec_driver_sql("ANALYZE")
    return live


def fill(tx: sa.Connection, sql: str) -> None:
    tx.exec_driver_sql(sql if tx.dialect.name == "postgresql" else sql.replace("%%", "%"), ())


def plans(desk: Desk, call: Callable[[], object]) -> str:
    """Run a call of the store, and return how the database would read for each statement.

    On PostgreSQL also when it keeps a plan for any parameters, as for a prepared statement.
    """
    said: list[tuple[str, object]] = []

    def note(_c: object, _cur: object, sql: str, parameters: object, *_: object) -> None:
        if not sql.startswith(("BEGIN", "PRAGMA", "EXPLAIN")):
            said.append((sql, parameters))

    sa.event.listen(desk.engine, "before_cursor_execute", note)
    call()
    sa.event.remove(desk.engine, "before_cursor_execute", note)
    word = "EXPLAIN " if desk.is_postgres else "EXPLAIN QUERY PLAN "
    lines = []
    with desk.engine.connect() as tx:
        for sql, given in said:
            parameters = given[0] if isinstance(given, list) else given  # of many rows, one
            for row in tx.exec_driver_sql(word + sql, parameters):
                lines.append(str(row[0] if desk.is_postgres else row[-1]))
            if desk.is_postgres:
                raw: Any = tx.connection.driver_connection
                query = PostgresQuery(Transformer(raw))
                query.convert(sql, parameters or None)
                for row in raw.execute(b"EXPLAIN (GENERIC_PLAN) " + query.query):
                    lines.append(str(row[0]))
        tx.rollback()
    return "\n".join(lines)


def reads_all(plan: str, table: str) -> bool:
    """Whether a plan reads a whole table."""
    return bool(
        re.search(rf"Seq Scan on {table}\b", plan)
        or re.search(rf"SCAN {table}(?! USING (COVERING )?INDEX {table}_)", plan)
    )


@pytest.mark.promise("S-15")
def test_statements_of_a_busy_day_find_their_rows_by_an_index(crowded: Desk):
    store = crowded.store
    lease = Lease("succeeded7", 1, "w")
    reads: list[tuple[str, Callable[[], object], list[str]]] = [
        ("claim", crowded.claim, ["runs_due", "runs_leased|runs_by_status", "runs_on_thread"]),
        (
            "claims",
            lambda: store.claim_some("w", 60, Served([("a", "1")]), 20),
            ["runs_due", "runs_leased|runs_by_status", "runs_on_thread"],
        ),
        ("heartbeat", lambda: store.heartbeat([lease], 60), []),
        ("put", lambda: store.put_steps([Write(lease, step())], 60), []),
        ("finish", lambda: store.finish([Ending(lease, "1", Replayed())], 60), []),
        ("get", lambda: store.get("waiting_human7"), ["questions_of_run"]),
        ("tenant", lambda: store.list_runs(Page(tenant="t7", limit=50)), ["runs_by_tenant"]),
        ("newest", lambda: store.list_runs(Page(limit=50)), ["runs_by_time"]),
        ("inbox", lambda: store.list_questions(Inbox(tenant="t7")), ["questions_inbox"]),
        ("sweep", store.sweep, ["runs_to_wake", "questions_due"]),
        ("audit", lambda: store.list_events("succeeded7"), ["events_of_run"]),
        ("journal", lambda: store.load(lease), ["questions_of_run"]),
    ]
    for name, call, indexes in reads:
        plan = plans(crowded, call)
        for index in indexes:
            assert re.search(index, plan), f"{name}:\n{plan}"
        for table in ("runs", "steps", "questions", "events"):
            assert not reads_all(plan, table), f"{name} reads all of {table}:\n{plan}"
        if name in ("journal", "get"):
            assert "steps_pkey" in plan or "sqlite_autoindex_steps_1" in plan, f"{name}:\n{plan}"
        if name == "sweep" and crowded.is_postgres:  # nothing is due: nothing is read
            assert plan.count("Index Cond") >= 2, plan
    for _ in range(20):
        assert crowded.take().run.id.startswith("queued")
