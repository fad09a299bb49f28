"""One schema, whoever makes it; and a database that this code doesn't fit is left alone."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
import store_processes as processes
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from langgraph_durable import Durable, Worker
from langgraph_durable import worker as worker_module
from langgraph_durable.errors import SchemaMismatch, StoreError
from langgraph_durable.runs import Status
from langgraph_durable.store import RunStore, open_engine, schema
from langgraph_durable.store.migrate import VERSION_TABLE, head


@pytest.fixture
def store(database_url: str) -> Iterator[RunStore]:
    store = RunStore(open_engine(database_url))
    yield store
    store.engine.dispose()


def set_version(store: RunStore, version: str) -> None:
    with store.engine.begin() as tx:
        tx.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '{version}'")


@pytest.mark.promise("S-01")
def test_eight_processes_upgrade_an_empty_database_at_once(database_url: str, store: RunStore):
    make = processes.context()
    barrier, told = make.Barrier(8), make.Queue()
    started = [processes.started(processes.upgrade, database_url, barrier, told) for _ in range(8)]
    assert [told.get(timeout=60) for _ in started] == ["ok"] * 8
    for process in started:
        process.join(10)
    store.check_schema()
    with store.engine.connect() as tx:
        versions = tx.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalars().all()
    assert versions == [head()]


@pytest.mark.promise("S-01")
def test_the_migrations_build_what_the_tables_say(store: RunStore):
    store.upgrade()
    options = {"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
    with store.engine.connect() as tx, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # alembic doesn't compare indexes of expressions: see below
        found = compare_metadata(MigrationContext.configure(tx, opts=options), schema.metadata)
    assert found == []


def described(engine: sa.Engine) -> list[str]:
    queries = [
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'langgraph_durable_version'"
    ]
    if engine.dialect.name == "postgresql":
        queries = [
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"
            " AND tablename <> 'langgraph_durable_version'",
            "SELECT concat_ws(' ', table_name, column_name, data_type, is_nullable, column_default) "
            "FROM information_schema.columns WHERE table_schema = 'public' AND "
            "table_name <> 'langgraph_durable_version'",
        ]
    with engine.connect() as tx:
        rows = [row for query in queries for row in tx.exec_driver_sql(query).scalars()]
    return sorted(_in_any_order("".join(row.replace('"', "").split())) for row in rows)


def _in_any_order(sql: str) -> str:
    """Return a table with its columns sorted: SQLite puts one that came later behind the key."""
    head, _, body = sql.partition("(")
    if not head.startswith("CREATETABLE"):
        return sql
    return f"{head}({','.join(sorted(re.split(r',(?![^(]*[)])', body[:-1])))})"


@pytest.mark.promise("S-01")
def test_the_migrations_build_the_same_indexes_with_their_conditions(store: RunStore):
    schema.metadata.create_all(store.engine)
    expected = described(store.engine)
    schema.metadata.drop_all(store.engine)
    store.upgrade()
    assert described(store.engine) == expected


@pytest.mark.promise("S-01")
def test_an_upgrade_of_what_is_up_to_date_changes_nothing(store: RunStore):
    store.upgrade()
    before = described(store.engine)
    store.upgrade()
    store.check_schema(create=True)
    assert described(store.engine) == before


@pytest.mark.promise("S-01")
def test_an_older_or_missing_schema_says_which_command_to_run(store: RunStore):
    store.engine.connect().close()  # an empty SQLite file
    with pytest.raises(SchemaMismatch, match=r"no schema yet\. Run: langgraph-durable db upgrade"):
        store.check_schema()
    store.upgrade()
    with store.engine.begin() as tx:
        tx.exec_driver_sql(f"DELETE FROM {VERSION_TABLE}")
    with pytest.raises(SchemaMismatch, match="langgraph-durable db upgrade"):
        store.check_schema()


@pytest.mark.promise("S-01")
def test_an_older_schema_is_named(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    store.upgrade()
    monkeypatch.setattr("langgraph_durable.store.migrate.head", lambda: "0099")
    with pytest.raises(
        SchemaMismatch, match=r"older than this code's 0099\. Run: langgraph-durable db upgrade"
    ):
        store.check_schema(create=True)


@pytest.mark.promise("S-01")
def test_a_newer_schema_is_refused_and_not_touched(store: RunStore, database_url: str):
    store.upgrade()
    set_version(store, "9999")
    for refused in (store.check_schema, store.upgrade, lambda: Durable(database_url)):
        with pytest.raises(SchemaMismatch, match="9999, which is newer than this code's"):
            refused()
    with store.engine.connect() as tx:
        kept = tx.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar_one()
    assert kept == "9999"


@pytest.mark.promise("S-60")
def test_a_worker_that_meets_a_newer_schema_stops_claiming(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(worker_module, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(worker_module, "ANNOUNCE_SECONDS", 0.02)
    durable = Durable(database_url)

    @durable.agent("a")
    async def a(ctx: object, given: object) -> object:
        return given

    worker = Worker(durable, concurrency=1)
    serving = threading.Thread(target=worker.serve)
    serving.start()
    try:
        first = durable.submit("a", 1)
        assert durable.wait(first, timeout_seconds=20).status is Status.SUCCEEDED
        set_version(durable.store, "9999")
        serving.join(20)
        assert not serving.is_alive()
    finally:
        worker.stop()
        serving.join(20)
    second = durable.submit("a", 2)
    assert durable.get(second).status is Status.QUEUED
    assert "claims nothing more" in caplog.text
    with pytest.raises(SchemaMismatch):
        worker.serve()
    durable.store.engine.dispose()


@pytest.mark.promise("H-15")
def test_a_database_that_cannot_be_opened_says_so_without_its_password(tmp_path):
    with pytest.raises(StoreError, match=r"the folder .* doesn't exist"):
        open_engine(f"sqlite:///{tmp_path}/no/such/folder.db")
    with pytest.raises(StoreError, match="not supported"):
        open_engine("mysql://u:secret@h/db")
    (tmp_path / "not.db").write_text("this is not a database, and is long enough to tell" * 9)
    with pytest.raises(StoreError, match="can't be opened"):
        RunStore(open_engine(f"sqlite:///{tmp_path}/not.db")).check_schema()
    unreachable = "postgresql://u:secret@127.0.0.1:1/db"
    with pytest.raises(StoreError, match="can't be opened") as told:
        RunStore(open_engine(unreachable)).check_schema()
    assert "secret" not in str(told.value)


@pytest.mark.promise("H-15")
def test_a_missing_table_is_an_error_of_the_store_on_both_databases(store: RunStore):
    with pytest.raises(StoreError, match="the database can't be used"):
        store.get("r1")
