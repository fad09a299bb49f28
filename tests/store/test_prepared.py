"""Statements are prepared on the server, unless a pooler in transaction mode stands between."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from desk import Desk, step
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from sqlalchemy.engine import make_url

from langgraph_durable.checkpoint import Savers
from langgraph_durable.checkpoint.postgres import PostgresSavers
from langgraph_durable.store import open_engine
from langgraph_durable.store.engine import PREPARE_AFTER, prepare
from langgraph_durable.values import Types


class Pooler:
    """Passes messages on, and tells clients a process number of its own making.

    PgBouncer does so, because it has to route the cancel requests of its clients.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._open += [client, server]
            threading.Thread(target=self._pass, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    @staticmethod
    def _pass(client: socket.socket, server: socket.socket) -> None:
        try:
            while some := client.recv(65_536):
                server.sendall(some)
        except OSError:
            pass

    @staticmethod
    def _answer(server: socket.socket, client: socket.socket) -> None:
        try:
            with server.makefile("rb") as said:
                while head := said.read(5):
                    body = said.read(struct.unpack("!I", head[1:])[0] - 4)
                    if head[:1] == b"K":  # BackendKeyData: the process, and its secret
                        body = struct.pack("!I", 4_000_001) + body[4:]
                    client.sendall(head + body)
        except (OSError, ValueError):
            pass


@pytest.fixture
def pooled(postgres_with_schema: str) -> Iterator[str]:
    """The address of a pooler before the tests' server."""
    url = make_url(postgres_with_schema)
    pooler = Pooler(f"{url.query['host']}/.s.PGSQL.{url.port or 5432}")
    here = url.set(host="127.0.0.1", port=pooler.port, query={"sslmode": "disable"})
    yield here.render_as_string(hide_password=False)
    pooler.close()


def prepared_after(url: str, times: int) -> int:
    """How many statements a connection keeps when one came so often."""
    engine = open_engine(url)
    prepare(engine)
    try:
        with engine.connect() as connection:
            for _ in range(times):
                connection.exec_driver_sql("SELECT 1")
            kept = "SELECT count(*) FROM pg_prepared_statements"
            return connection.execute(sa.text(kept)).scalar_one()
    finally:
        engine.dispose()


def test_a_statement_that_comes_again_is_prepared(postgres_with_schema: str):
    assert prepared_after(postgres_with_schema, PREPARE_AFTER) == 0
    assert prepared_after(postgres_with_schema, PREPARE_AFTER + 1) == 1


def test_nothing_is_prepared_behind_a_pooler(pooled: str):
    assert prepared_after(pooled, 3 * PREPARE_AFTER) == 0


@pytest.mark.parametrize(("behind_a_pooler", "threshold"), [(False, PREPARE_AFTER), (True, None)])
def test_checkpoints_go_by_the_same_rule(
    request: pytest.FixtureRequest, behind_a_pooler: bool, threshold: int | None
):
    url = request.getfixturevalue("pooled" if behind_a_pooler else "postgres_with_schema")
    target = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)

    async def main() -> int | None:
        savers = PostgresSavers(target, Types())
        await savers.open()
        try:
            async with savers._pool.connection() as connection:
                return connection.prepare_threshold
        finally:
            await savers.aclose()

    assert asyncio.run(main()) == threshold


@pytest.fixture
def own(postgres_url: str) -> Iterator[Desk]:
    """A store with a schema of its own, which the test may alter."""
    desk = Desk(postgres_url, None)
    desk.store.upgrade()
    yield desk
    desk.engine.dispose()


MANY = 2 * PREPARE_AFTER


def test_steps_go_on_when_what_was_prepared_is_gone(own: Desk):
    lease = own.started().lease
    with own.store.keeping_connection():
        for n in range(MANY):
            own.store.put_step(lease, step(f"before {n}"))
        kept = own.store._recording._connection
        assert kept is not None
        # not by psycopg, which would take note
        kept.connection.driver_connection.pgconn.exec_(b"DEALLOCATE ALL")
        for n in range(MANY):
            own.store.put_step(lease, step(f"after {n}"))
    assert len(own.store.load(lease).steps) == 2 * MANY


@pytest.mark.parametrize(
    "migration",
    [
        "ALTER TABLE steps ALTER COLUMN seq TYPE bigint",
        "ALTER TABLE steps ALTER COLUMN key TYPE varchar(1000)",
        "ALTER TABLE runs ALTER COLUMN attempts TYPE bigint",
    ],
)
def test_a_migration_of_what_prepared_statements_return_is_lived_through(own: Desk, migration: str):
    lease = own.started().lease

    def use(when: str) -> None:
        for n in range(MANY):
            own.store.put_step(lease, step(f"{when} {n}"))
            own.store.load(lease)
            own.store.get(lease.run_id)

    with own.store.keeping_connection():
        use("before")
        with sa.create_engine(own.url, poolclass=sa.NullPool).begin() as tx:
            tx.exec_driver_sql(migration)
        use("after")
    assert len(own.store.load(lease).steps) == 2 * MANY


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE checkpoints ALTER COLUMN checkpoint_id TYPE varchar(300)", "DISCARD ALL"],
)
def test_checkpoints_are_read_when_what_was_prepared_is_stale(own: Desk, change: str):
    lease = own.started(mode="graph").lease

    async def main() -> None:
        savers = Savers.for_url(own.url)
        assert isinstance(savers, PostgresSavers)
        await savers.open()
        config: RunnableConfig = {"configurable": {"thread_id": lease.run_id, "checkpoint_ns": ""}}
        try:
            async with savers.fenced(lease) as saver:
                await saver.aput(config, empty_checkpoint(), {}, {})
                for stale in (change.encode(), b"SELECT 1"):
                    for _ in range(2 * MANY):  # the pool has two connections, in turn
                        assert len([found async for found in saver.alist(config)]) == 1
                    for _ in range(2):
                        async with savers._pool.connection() as connection:
                            connection.pgconn.exec_(stale)
        finally:
            await savers.aclose()

    asyncio.run(main())
