"""How an idle worker hears of work at once: LISTEN/NOTIFY, or a change of the SQLite file.

Both are hints. A worker polls behind them, so a hint that is lost (a pooler in
transaction mode swallows LISTEN, a connection drops) costs the poll interval, never a run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)

CHANNEL = "langgraph_durable"
_SQLITE_LOOK_SECONDS = 0.025
_RECONNECT_SECONDS = 2.0


def notify(tx: sa.Connection) -> None:
    """Tell idle workers, when this transaction commits, that a run can be claimed."""
    if tx.dialect.name == "postgresql":
        tx.execute(sa.select(sa.func.pg_notify(CHANNEL, "")))


class Wakeups(threading.Thread):
    """Calls `ring` whenever another process may have queued a run."""

    def __init__(self, engine: sa.Engine, ring: Callable[[], None]) -> None:
        super().__init__(name="durable-wakeups", daemon=True)
        self._engine, self._ring = engine, ring
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()

    def run(self) -> None:
        """Listen until stopped; a broken connection is opened again."""
        listen = _listen if self._engine.dialect.name == "postgresql" else _watch
        while not self._stopping.is_set():
            try:
                with self._engine.connect() as connection:
                    listen(connection, self._ring, self._stopping)
            except (SQLAlchemyError, OSError) as error:
                log.info("wake-ups pause, polling goes on: %s", error)
                self._stopping.wait(_RECONNECT_SECONDS)
            except Exception as error:  # psycopg's own, raised by the notifies generator
                log.info("wake-ups pause, polling goes on: %s", error)
                self._stopping.wait(_RECONNECT_SECONDS)


def _listen(connection: sa.Connection, ring: Callable[[], None], stopping: threading.Event) -> None:
    raw: Any = connection.connection.driver_connection
    connection.detach()  # this connection listens: it must not go back to the pool
    raw.autocommit = True
    raw.execute(f"LISTEN {CHANNEL}")
    ring()  # what was queued before we listened
    try:
        while not stopping.is_set():
            for _ in raw.notifies(timeout=0.5, stop_after=1):
                ring()
    finally:
        raw.close()  # SQLAlchemy doesn't close what was detached from its pool
        connection.invalidate()  # no rollback on it: it may be broken


def _watch(connection: sa.Connection, ring: Callable[[], None], stopping: threading.Event) -> None:
    """Look at `data_version`: it changes when another connection commits. No table is read."""
    cursor: Any = connection.connection.cursor()
    seen = None
    while not stopping.is_set():
        version = cursor.execute("PRAGMA data_version").fetchone()[0]
        if version != seen:
            seen = version
            ring()
        time.sleep(_SQLITE_LOOK_SECONDS)
