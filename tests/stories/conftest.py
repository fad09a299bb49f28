"""A shop on SQLite for each story, and on PostgreSQL too for the important ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from shop import Shop

from langgraph_durable import Durable


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the schema, to be copied: faster than to migrate each time."""
    path = tmp_path_factory.mktemp("stories") / "empty.db"
    Durable(f"sqlite:///{path}").store.engine.dispose()
    return path


@pytest.fixture
def shop(empty_file: Path, tmp_path: Path) -> Iterator[Shop]:
    """A shop on SQLite."""
    copy = tmp_path / "durable.db"
    shutil.copy(empty_file, copy)
    shop = Shop(f"sqlite:///{copy}")
    yield shop
    shop.stop()


@pytest.fixture
def any_shop(database_url: str) -> Iterator[Shop]:
    """A shop on each database."""
    shop = Shop(database_url)
    yield shop
    shop.stop()


@pytest.fixture(params=["graph", "steps"])
def mode(request: pytest.FixtureRequest) -> str:
    """Each mode."""
    return str(request.param)
