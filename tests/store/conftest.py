"""A store on each database; most tests share one schema and find it empty."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from desk import Desk

from langgraph_durable.store import RunStore, open_engine, schema
from langgraph_durable.testing.fakes import FakeClock


@pytest.fixture(scope="session")
def postgres_with_schema(postgres_server_url: str) -> Iterator[str]:
    """One database with the schema; the tests that use it empty its tables."""
    url = sa.make_url(postgres_server_url).set(drivername="postgresql+psycopg")
    name = f"store_{uuid.uuid4().hex[:12]}"
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE template0")
    ready = url.set(database=name).render_as_string(hide_password=False)
    store = RunStore(open_engine(ready))
    store.upgrade()
    store.engine.dispose()
    try:
        yield ready
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def sqlite_with_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the schema; the tests that use it take a copy."""
    path = tmp_path_factory.mktemp("schema") / "empty.db"
    store = RunStore(open_engine(f"sqlite:///{path}"))
    store.upgrade()
    store.engine.dispose()
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def ready_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind that has the schema."""
    if request.param == "sqlite":
        copy = tmp_path / "durable.db"
        shutil.copy(request.getfixturevalue("sqlite_with_schema"), copy)
        return f"sqlite:///{copy}"
    url: str = request.getfixturevalue("postgres_with_schema")
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as tx:
        for table in schema.metadata.sorted_tables:
            tx.execute(sa.delete(table))
    return url


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until it is turned."""
    return FakeClock()


@pytest.fixture
def desk(ready_url: str, clock: FakeClock) -> Iterator[Desk]:
    """A store on each database, with a clock of the test's."""
    desk = Desk(ready_url, clock)
    yield desk
    desk.engine.dispose()


@pytest.fixture
def live(ready_url: str) -> Iterator[Desk]:
    """A store on each database, by the time of the database."""
    desk = Desk(ready_url, None)
    yield desk
    desk.engine.dispose()


@pytest.fixture
def on_sqlite(sqlite_with_schema: Path, tmp_path: Path) -> Iterator[Desk]:
    """A store on SQLite only, by the time of the machine."""
    shutil.copy(sqlite_with_schema, tmp_path / "durable.db")
    desk = Desk(f"sqlite:///{tmp_path / 'durable.db'}", None)
    yield desk
    desk.engine.dispose()
