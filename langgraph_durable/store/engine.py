"""Open a database: one place that knows what SQLite and PostgreSQL need set."""

from __future__ import annotations

import atexit
import os
import sqlite3
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from langgraph_durable.encryption import Keyring
from langgraph_durable.errors import StoreError
from langgraph_durable.store.sealed import attach

BUSY_SECONDS = 30
_EXAMPLES = "Use sqlite:///support.db or postgresql+psycopg://user:password@host/database."


def open_engine(url: str, keys: Keyring | None = None) -> sa.Engine:
    """Create the engine of a database URL; nothing is connected yet.

    SQLite in memory becomes a file in a temporary folder, removed at exit: the journal's
    thread and LangGraph's savers have connections of their own. With `keys`, payloads are
    encrypted.

    Raises:
        StoreError: the URL can't be read, or names a database that isn't supported.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(f"database URL {url!r} can't be read. {_EXAMPLES}") from error
    backend = parsed.get_backend_name()
    if backend in ("postgresql", "postgres"):  # hosts write either
        backend = "postgresql"
        parsed = parsed.set(drivername="postgresql+psycopg")
    elif backend == "sqlite":
        parsed = parsed.set(drivername="sqlite")
        if parsed.database in (None, "", ":memory:"):
            parsed = parsed.set(database=_temporary_file())
        _require_folder(str(parsed.database))
    else:
        raise StoreError(f"database {backend!r} is not supported. {_EXAMPLES}")
    try:
        engine = sa.create_engine(parsed, **_options(backend))
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise StoreError(
            "the PostgreSQL driver is missing: pip install 'langgraph-durable[postgres]'"
        ) from error
    prepare(engine)
    if keys is not None:
        attach(engine, keys)
    _forked.add(engine)
    return engine


#: A child process must not speak on the connections that its parent has open.
_forked: weakref.WeakSet[sa.Engine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_forked):
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _options(backend: str) -> dict[str, Any]:
    if backend == "sqlite":
        return {"connect_args": {"timeout": BUSY_SECONDS, "check_same_thread": False}}
    # nothing is prepared on the server until `_prepare_statements` allows it; no ping before each
    # use: the store tries a transaction again that met a dropped connection
    return {
        "connect_args": {"connect_timeout": 10, "prepare_threshold": None},
    }


def _temporary_file() -> str:
    folder = tempfile.TemporaryDirectory(prefix="langgraph-durable-")
    atexit.register(folder.cleanup)
    return str(Path(folder.name) / "durable.db")


def _require_folder(database: str) -> None:
    folder = Path(database).absolute().parent
    if not folder.is_dir():
        raise StoreError(
            f"database {database!r} can't be opened: the folder {folder} doesn't exist"
        )


_prepared = "langgraph_durable_prepared"


def prepare(engine: sa.Engine) -> None:
    """Make an engine fit for the store, once: what it needs is set per connection.

    SQLite: write-ahead log (readers don't block), a busy timeout, and transactions that
    take the write lock at their start, so that none fails half-way with "database is
    locked". A connection with the execution option `reads_only` doesn't take it.
    PostgreSQL: statements are prepared where that can be.
    """
    if engine.dialect.name == "postgresql":
        if not sa.event.contains(engine, "connect", _prepare_statements):
            sa.event.listen(engine, "connect", _prepare_statements)
            sa.event.listen(engine, "handle_error", _on_error)
        return
    if sa.event.contains(engine, "connect", _on_connect):
        return
    sa.event.listen(engine, "connect", _on_connect)
    sa.event.listen(engine, "begin", _on_begin)


#: Statements are prepared on the server when they come for the n-th time (psycopg's default).
PREPARE_AFTER = 5
WHOSE_SERVER = "SELECT pg_backend_pid()"


def _prepare_statements(connection: Any, _record: object) -> None:
    """Let PostgreSQL keep the plans of statements that come again, if this server stays ours.

    To plan the statement that records a step takes longer than to execute it. What is
    prepared belongs to a server process, and a pooler in transaction mode gives each
    transaction another. Such a pooler tells its clients a process number of its own making
    (it has to route their cancel requests), so the two numbers differ.
    """
    with connection.cursor() as cursor:
        cursor.execute(WHOSE_SERVER)
        (serving,) = cursor.fetchone()
    connection.rollback()
    if serving == connection.info.backend_pid:
        connection.prepare_threshold = PREPARE_AFTER


def _on_error(context: sa.engine.ExceptionContext) -> None:
    """Give up a connection whose prepared statements are stale; the store then tries again."""
    if is_stale(context.original_exception):
        context.is_disconnect = True


def is_stale(error: Any) -> bool:
    """Whether a statement failed because it was prepared, which other connections haven't.

    A migration has changed the type of a column that it returns, or somebody in between (a
    pooler that tells the true process number) has dropped it or has another of its name.
    psycopg goes on using it, so each further statement of the kind would fail as well.
    """
    state = getattr(error, "sqlstate", None)
    if state == "0A000":  # a general code, and the message comes in the server's language
        return bool(error.diag.source_function == "RevalidateCachedQuery")
    return state in ("26000", "42P05")  # there is none of this name, or one already


def _on_connect(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions are begun by _on_begin
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    _write_ahead(cursor)
    # NORMAL survives a killed process; a power cut may lose the last commits, never more
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _write_ahead(cursor: sqlite3.Cursor) -> None:
    """Switch the file to a write-ahead log, once in its life.

    Processes that open a new file at one instant get in each other's way here, and SQLite
    doesn't apply the busy timeout to this statement.
    """
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def _on_begin(connection: sa.Connection) -> None:
    reads_only = connection.get_execution_options().get("reads_only", False)
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")
