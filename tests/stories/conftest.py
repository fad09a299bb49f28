"""A shop on SQLite for each story, and on PostgreSQL too for the important ones."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from shop import Shop

from langgraph_durable import Durable


def _ready(url: str) -> None:
    """Give a database its tables, LangGraph's too: they are copied, faster than made each time."""
    shop = Shop(url)
    shop.deploy(_nothing(), "graph")
    shop.begin({})
    shop.stop()


def _nothing() -> object:
    from langgraph.graph import START, StateGraph

    graph = StateGraph(dict)
    graph.add_node("nothing", lambda _: {})
    graph.add_edge(START, "nothing")
    return graph


@pytest.fixture(scope="session")
def ready_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables."""
    path = tmp_path_factory.mktemp("stories") / "ready.db"
    Durable(f"sqlite:///{path}").store.engine.dispose()
    return path


@pytest.fixture(scope="session")
def ready_database(postgres_server_url: str) -> Iterator[tuple[sa.Engine, sa.URL]]:
    """A PostgreSQL database with all tables, to be a template; and who may make others."""
    url = sa.make_url(postgres_server_url).set(drivername="postgresql+psycopg")
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    ready = url.set(database=f"stories_{uuid.uuid4().hex[:12]}")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {ready.database} TEMPLATE template0")
    _ready(ready.render_as_string(hide_password=False))
    yield admin, ready
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {ready.database} WITH (FORCE)")


@pytest.fixture
def shop(ready_file: Path, tmp_path: Path) -> Iterator[Shop]:
    """A shop on SQLite."""
    copy = tmp_path / "durable.db"
    shutil.copy(ready_file, copy)
    shop = Shop(f"sqlite:///{copy}")
    yield shop
    shop.stop()


@pytest.fixture
def postgres_shop(ready_database: tuple[sa.Engine, sa.URL]) -> Iterator[Shop]:
    """A shop on PostgreSQL."""
    admin, ready = ready_database
    name = f"story_{uuid.uuid4().hex[:12]}"
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE {ready.database}")
    shop = Shop(ready.set(database=name).render_as_string(hide_password=False))
    yield shop
    shop.stop()
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
def any_shop(request: pytest.FixtureRequest) -> Shop:
    """A shop on each database."""
    shop: Shop = request.getfixturevalue("shop" if request.param == "sqlite" else "postgres_shop")
    return shop


@pytest.fixture(params=["graph", "steps"])
def mode(request: pytest.FixtureRequest) -> str:
    """Each mode."""
    return str(request.param)
