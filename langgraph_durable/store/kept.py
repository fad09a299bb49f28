"""A connection that a thread keeps: many small transactions need not fetch one each.

To fetch a connection and to give it back takes SQLAlchemy as long as PostgreSQL takes to
record a step. The journal's thread records one step after another, so it keeps its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa


class KeptConnections(threading.local):
    """What each thread keeps of an engine's connections: nothing, unless it is `keeping` one."""

    def __init__(self, engine: sa.Engine) -> None:
        """Called anew in every thread that looks here."""
        self._engine = engine
        self._is_keeping = False
        self._connection: sa.Connection | None = None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Let the calling thread keep its connection until it leaves this block."""
        self._is_keeping = True
        try:
            yield
        finally:
            self._is_keeping = False
            self._drop()

    @contextmanager
    def lent(self) -> Iterator[sa.Connection]:
        """Lend the thread's connection; one that an error came from is not kept."""
        connection = self._connection or self._engine.connect()
        self._connection = connection
        try:
            yield connection
        except BaseException:
            self._drop()
            raise
        if not self._is_keeping:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
