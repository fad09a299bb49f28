"""Databases that go away, are locked, or are used by many: no run and no answer is lost."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
import store_processes as processes
from desk import Desk, at_once, question, step
from sqlalchemy.exc import DBAPIError

from langgraph_durable.errors import StoreError
from langgraph_durable.runs import Asked, Decision, Done, Status
from langgraph_durable.store import RunStore, Write, open_engine


@pytest.fixture
def on_postgres(postgres_with_schema: str) -> Iterator[Desk]:
    desk = Desk(postgres_with_schema, None)
    desk.wipe()
    yield desk
    desk.engine.dispose()


@pytest.fixture
def admin(postgres_with_schema: str) -> Iterator[sa.Engine]:
    """A connection that outlives the terminated ones."""
    engine = sa.create_engine(
        postgres_with_schema, isolation_level="AUTOCOMMIT", poolclass=sa.StaticPool
    )
    engine.connect().close()
    yield engine
    engine.dispose()


def terminate(admin: sa.Engine) -> int:
    with admin.connect() as tx:
        return len(
            tx.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).all()
        )


@pytest.mark.promise("H-15")
def test_connections_that_were_cut_between_two_calls_are_made_anew(
    on_postgres: Desk, admin: sa.Engine
):
    desk, asked = on_postgres, question()
    at_once(*[lambda: desk.store.sweep()] * 4)  # several connections in the pool

    def cut() -> None:
        assert terminate(admin) >= 1

    desk.submit()
    cut()
    lease = desk.take().lease
    cut()
    assert desk.store.heartbeat([lease], 60) == {lease: Status.RUNNING}
    cut()
    desk.store.put_step(lease, step())
    cut()
    assert [s.key for s in desk.store.load(lease).steps] == ["classify"]
    desk.store.settle(lease, Asked((asked,)))
    cut()
    desk.decide(asked.id)
    cut()
    desk.store.settle(desk.take().lease, Done("1"))
    cut()
    assert desk.status(lease) is Status.SUCCEEDED


@pytest.mark.promise("H-15")
@pytest.mark.parametrize("moment", ["before the statement", "before the commit"])
def test_a_connection_that_is_cut_in_the_middle_of_a_call_loses_and_doubles_nothing(
    on_postgres: Desk, admin: sa.Engine, moment: str
):
    desk, asked = on_postgres, question()
    cuts = {"left": 0}

    def cut(*_: object) -> None:
        if cuts["left"]:
            cuts["left"] -= 1
            terminate(admin)

    name = "before_cursor_execute" if moment == "before the statement" else "commit"
    sa.event.listen(desk.engine, name, cut)

    def cutting(call: Any) -> Any:
        cuts["left"] = 1
        result = call()
        assert cuts["left"] == 0
        return result

    run = cutting(lambda: desk.submit(idempotency_key="k"))
    claim = cutting(desk.take)
    assert (claim.run.id, claim.run.attempts) == (run.id, 0)
    cutting(lambda: desk.store.put_steps([Write(claim.lease, step(k)) for k in "ab"], 60))
    cutting(lambda: desk.store.settle(claim.lease, Asked((asked,))))
    cutting(lambda: desk.decide(asked.id))
    again = cutting(desk.take)
    cutting(lambda: desk.store.settle(again.lease, Done("1")))
    assert [s.key for s in desk.store.list_steps(run.id) if s.value] == ["a", "b"]
    assert desk.types(run) == [
        "run_submitted", "run_claimed", "question_asked", "run_parked", "question_decided",
        "run_resumed", "run_claimed", "run_succeeded",
    ]  # fmt: skip


@pytest.mark.promise("H-15")
@pytest.mark.parametrize("call", ["create", "put", "settle", "decide", "cancel"])
def test_a_commit_whose_answer_was_lost_is_not_made_twice(desk: Desk, call: str):
    """The commit succeeds, and the connection breaks before the client hears of it."""
    asked = question()
    lost = {"left": 0}

    def lose(connection: sa.Connection) -> None:
        if not lost["left"]:
            return
        lost["left"] -= 1
        connection.connection.commit()
        error = DBAPIError("COMMIT", None, Exception("gone"))
        error.connection_invalidated = True
        raise error

    parked = desk.started().lease
    desk.store.settle(parked, Asked((asked,)))
    owned = desk.started().lease
    sa.event.listen(desk.engine, "commit", lose)
    lost["left"] = 1
    made: list[Any] = []
    {
        "create": lambda: made.append(desk.submit()),
        "put": lambda: made.append(desk.store.put_steps([Write(owned, step("k"))], 60)),
        "settle": lambda: made.append(desk.store.settle(owned, Done("1"))),
        "decide": lambda: made.append(desk.decide(asked.id)),
        "cancel": lambda: made.append(desk.store.cancel(parked.run_id, by="x")),
    }[call]()
    assert lost["left"] == 0
    events = [e for r in (parked, owned) for e in desk.types(r)]
    once = {"settle": "run_succeeded", "decide": "question_decided", "cancel": "run_cancelled"}
    if call in once:
        assert events.count(once[call]) == 1
    if call == "create":
        assert desk.types(made[0]) == ["run_submitted"]
    if call == "put":
        assert made == [[None]]
        assert len(desk.store.list_steps(owned.run_id)) == 1


@pytest.mark.promise("H-15")
def test_a_database_that_stays_away_is_an_error_of_the_store_in_bounded_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("langgraph_durable.store.PATIENCE_SECONDS", 0.2)
    lease = desk.started().lease

    def broken(*_: object) -> None:
        raise sa.exc.OperationalError("SELECT", None, _gone(desk))

    sa.event.listen(desk.engine, "before_cursor_execute", broken)
    for call in (
        lambda: desk.store.get(lease.run_id),
        lambda: desk.store.heartbeat([lease], 60),
        lambda: desk.store.put_step(lease, step()),
        lambda: desk.store.claim("w", 60, _served()),
        desk.store.sweep,
    ):
        with pytest.raises(StoreError, match=r"the database can't be used: .*gone"):
            call()


def _served() -> Any:
    from langgraph_durable.store import Served

    return Served([("a", "1")])


def _gone(desk: Desk) -> Exception:
    import sqlite3

    import psycopg

    return (
        psycopg.OperationalError("gone") if desk.is_postgres else sqlite3.OperationalError("gone")
    )


@pytest.mark.promise("H-15")
def test_a_pool_without_a_free_connection_is_an_error_of_the_store(ready_url: str):
    engine = sa.create_engine(ready_url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    store = RunStore(engine)
    with engine.connect(), pytest.raises(StoreError):
        store.sweep()
    engine.dispose()


# --- locks on PostgreSQL ---------------------------------------------------------------


@pytest.mark.promise("H-05")
def test_whoever_waits_waits_for_the_run_and_nothing_else(on_postgres: Desk):
    """The run's row is the first of all locks: so no two calls wait for each other."""
    desk, asked, other = on_postgres, question("a", expires_in_seconds=0.0), question("b")
    parked, owned = desk.started().lease, desk.started().lease
    desk.store.settle(parked, Asked((asked, other)))
    calls = {
        "decide": lambda: desk.decide(other.id),
        "expire": desk.store.sweep,
        "cancel": lambda: desk.store.cancel(parked.run_id, by="x"),
        "settle": lambda: desk.store.settle(owned, Done("1")),
    }
    with desk.engine.connect() as holder:
        holder.exec_driver_sql("SELECT 1 FROM runs FOR UPDATE")
        waiting = [threading.Thread(target=at_once, args=(call,)) for call in calls.values()]
        for thread in waiting:
            thread.start()
        seen = _waiting(desk, len(calls))
        assert desk.claim("w9") is None  # a claim skips what is locked; it never waits
        assert all("FROM runs" in sql and "FOR UPDATE" in sql for sql in seen), seen
        with desk.engine.connect() as tx:  # and none of them holds a question yet
            tx.exec_driver_sql("SELECT 1 FROM questions FOR UPDATE NOWAIT")
        holder.rollback()
    for thread in waiting:
        thread.join(20)
    assert desk.status(parked) is Status.CANCELLED
    assert desk.status(owned) is Status.SUCCEEDED


def _waiting(desk: Desk, count: int) -> list[str]:
    query = (
        "SELECT query FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock'"
    )
    until = time.monotonic() + 20
    while True:
        with desk.engine.connect() as tx:
            seen = list(tx.exec_driver_sql(query).scalars())
        if len(seen) == count:
            return seen
        assert time.monotonic() < until, seen
        time.sleep(0.02)


@pytest.mark.promise("H-12")
def test_deciding_expiring_cancelling_and_sweeping_at_once_never_deadlock(on_postgres: Desk):
    desk = on_postgres

    def deadlocks() -> int:
        with desk.engine.connect() as tx:
            query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            return int(tx.exec_driver_sql(query).scalar_one())

    before = deadlocks()
    for _ in range(15):
        asked = [question(k, expires_in_seconds=0.01) for k in ("a", "b", "c")]
        lease = desk.started().lease
        desk.store.settle(lease, Asked(tuple(asked)))
        got = at_once(
            lambda: desk.decide(asked[2].id, Decision.approve("x")),  # noqa: B023
            lambda: desk.decide(asked[0].id, Decision.approve("x")),  # noqa: B023
            desk.store.sweep,
            desk.store.sweep,
            lambda: desk.store.cancel(lease.run_id, by="x"),  # noqa: B023
        )
        assert not any(isinstance(one, (StoreError, DBAPIError)) for one in got), got
    assert deadlocks() == before


# --- SQLite under several processes ----------------------------------------------------


@pytest.mark.promise("H-16")
def test_a_write_lock_held_elsewhere_for_two_seconds_is_waited_for(on_sqlite: Desk):
    desk, held = on_sqlite, processes.context().Event()
    lease = desk.started().lease
    path = desk.engine.url.database
    holder = processes.started(processes.hold_the_write_lock, path, 2.0, held)
    assert held.wait(30)
    started = time.monotonic()
    assert desk.run(lease).id == lease.run_id  # a reader is not blocked
    assert desk.store.list_steps(lease.run_id) == []
    assert time.monotonic() - started < 1.0
    got = at_once(
        lambda: desk.store.put_step(lease, step()),
        lambda: desk.store.heartbeat([lease], 60),
        lambda: desk.submit(),
        desk.store.sweep,
    )
    holder.join(20)
    assert not any(isinstance(one, Exception) for one in got), got


@pytest.mark.promise("H-16")
def test_a_lock_that_sqlite_reports_at_once_is_tried_again(
    on_sqlite: Desk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("langgraph_durable.store.engine.BUSY_SECONDS", 0)
    held = processes.context().Event()
    impatient = RunStore(open_engine(on_sqlite.url))
    holder = processes.started(
        processes.hold_the_write_lock, on_sqlite.engine.url.database, 0.5, held
    )
    assert held.wait(30)
    assert impatient.sweep() == 0
    holder.join(20)
    impatient.engine.dispose()


@pytest.mark.promise("H-16")
def test_a_process_that_is_killed_in_a_transaction_leaves_the_file_as_it_was(on_sqlite: Desk):
    desk, held = on_sqlite, processes.context().Event()
    run = desk.submit()
    killed = processes.started(processes.die_in_a_transaction, desk.engine.url.database, held)
    assert held.wait(30)
    killed.kill()
    killed.join(20)
    assert desk.take().run.id == run.id
    with desk.engine.connect() as tx:
        assert tx.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"


@pytest.mark.promise("H-16")
def test_four_worker_processes_and_a_reader_share_one_sqlite_file(
    on_sqlite: Desk, caplog: pytest.LogCaptureFixture
):
    desk, count = on_sqlite, 200
    runs = [desk.submit() for _ in range(count)]
    told = processes.context().Queue()
    caplog.set_level(logging.WARNING)
    workers = [processes.started(processes.work, desk.url, f"w{i}", told) for i in range(4)]
    reports: list[Any] = []
    while len(reports) < len(workers):  # reads throughout
        desk.run(runs[len(reports)].id)
        while not told.empty():
            reports.append(told.get())
        time.sleep(0.02)
    for worker in workers:
        worker.join(10)
    assert [line for _, _, lines in reports for line in lines] == []
    assert sorted(r for _, done, _ in reports for r in done) == sorted(run.id for run in runs)
    for run in runs:
        steps = desk.store.list_steps(run.id)
        assert [s.key for s in steps] == ["s1", "s2", "s3"]
        assert len({s.value for s in steps}) == 1  # by one worker, under its first claim
        assert {s.epoch for s in steps} == {1}
        assert desk.types(run) == ["run_submitted", "run_claimed", "run_succeeded"]
    assert "locked" not in caplog.text


@pytest.mark.promise("S-01")
def test_a_forked_child_does_not_speak_on_its_parents_connections(on_postgres: Desk):
    store = RunStore(open_engine(on_postgres.url))
    store.sweep()  # a connection is open, and in the pool
    parents = store.engine.pool.checkedin()
    child = os.fork()
    if child == 0:
        os._exit(store.engine.pool.checkedin())
    assert parents == 1
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.sweep() == 0
    store.engine.dispose()
