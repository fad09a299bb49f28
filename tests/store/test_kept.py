"""The connection that the journal's thread keeps: one, as long as nothing goes wrong on it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from desk import Desk, step


def in_thread(work: Callable[[], None]) -> None:
    """Run in a thread of its own; raise what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def lent_out(desk: Desk) -> int:
    pool = desk.engine.pool
    assert isinstance(pool, sa.QueuePool)
    return pool.checkedout()


def opened(desk: Desk) -> list[int]:
    """Count the connections that are taken out of the pool from now on."""
    taken: list[int] = []
    sa.event.listen(desk.engine, "checkout", lambda *_: taken.append(1))
    return taken


def test_a_thread_keeps_one_connection_and_gives_it_back(live: Desk) -> None:
    lease = live.started().lease
    taken = opened(live)

    def work() -> None:
        with live.store.keeping_connection():
            for n in range(5):
                live.store.put_step(lease, step(f"s{n}"))
                assert lent_out(live) == 1
        assert lent_out(live) == 0

    in_thread(work)
    assert len(taken) == 1
    assert len(live.store.load(lease).steps) == 5


def test_a_thread_that_keeps_none_gives_each_back(live: Desk) -> None:
    lease = live.started().lease
    taken = opened(live)
    for n in range(3):
        live.store.put_step(lease, step(f"s{n}"))
        assert lent_out(live) == 0
    assert len(taken) == 3


def test_threads_keep_connections_of_their_own(live: Desk) -> None:
    lease = live.started().lease

    def other() -> None:
        live.store.put_step(lease, step("theirs"))
        assert lent_out(live) == 1  # the first thread's

    with live.store.keeping_connection():
        live.store.put_step(lease, step("mine"))
        in_thread(other)
    assert lent_out(live) == 0


def test_a_connection_that_an_error_came_from_isnt_kept(live: Desk) -> None:
    lease = live.started().lease
    keeps = live.store._recording
    with live.store.keeping_connection():
        live.store.put_step(lease, step("a"))
        before = keeps._connection
        with pytest.raises(sa.exc.DBAPIError), keeps.lent() as connection:
            connection.exec_driver_sql("no such statement")
        assert lent_out(live) == 0
        live.store.put_step(lease, step("b"))
        assert lent_out(live) == 1
        assert keeps._connection is not before
    assert lent_out(live) == 0
    assert len(live.store.load(lease).steps) == 2


def test_a_kept_connection_that_was_dropped_is_replaced(live: Desk) -> None:
    if not live.is_postgres:
        pytest.skip("SQLite has no server")
    lease = live.started().lease
    with live.store.keeping_connection():
        for n in range(3):
            live.store.put_step(lease, step(f"s{n}"))
            with sa.create_engine(live.url, poolclass=sa.NullPool).connect() as admin:
                admin.exec_driver_sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        live.store.put_step(lease, step("last"))
        assert lent_out(live) == 1
    assert lent_out(live) == 0
    assert len(live.store.load(lease).steps) == 4


def test_leaving_by_an_error_gives_it_back_too(live: Desk) -> None:
    lease = live.started().lease

    def work() -> None:
        with live.store.keeping_connection():
            live.store.put_step(lease, step())
            raise KeyError("the journal's thread dies")

    with pytest.raises(KeyError):
        in_thread(work)
    assert lent_out(live) == 0
