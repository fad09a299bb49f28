"""Fenced savers on SQLite: a connection for each pass, with triggers that only it sees.

LangGraph's SQLite saver commits by itself, so nothing can be put around it; the triggers
run inside its statements. They need the checkpoints in the same file as the runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiosqlite
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from tenacity import stop_after_attempt, wait_random_exponential

from ..errors import StoreError
from ..store import fence
from .again import again
from .fenced import Act, FencedSaver, Pass, T
from .savers import Savers

_ATTEMPTS = 8  # SQLite itself waits up to `fence.BUSY_SECONDS` in each


class SqliteSavers(Savers):
    """The savers of a SQLite file. Nothing stays open between passes."""

    async def open(self) -> None:
        """Create LangGraph's tables where they are missing."""
        self._warn_of_unreachable()
        try:
            async with self._plain(new=True) as saver:
                await _until_free(saver.setup)
        except sqlite3.OperationalError as error:
            raise StoreError(f"the SQLite file {self._target} can't be opened: {error}") from error

    async def aclose(self) -> None:
        """Do nothing: each pass closes its own connection."""

    async def delete_thread(self, thread_id: str) -> None:
        """Delete a thread's checkpoints: not fenced, so only for a thread of no live run."""
        async with self._plain() as saver:
            await _until_free(lambda: saver.adelete_thread(thread_id))

    @asynccontextmanager
    async def _saver(self, now: Pass) -> AsyncIterator[FencedSaver]:
        async with self._plain(now) as saver:
            await saver.conn.executescript(fence.SQLITE_FENCE)
            await saver.conn.execute(fence.SQLITE_LEASE, (now.lease.run_id, now.lease.epoch))
            yield FencedSqliteSaver(now, saver)

    @asynccontextmanager
    async def _plain(
        self, now: Pass | None = None, *, new: bool = False
    ) -> AsyncIterator[AsyncSqliteSaver]:
        async with aiosqlite.connect(
            self._target, timeout=fence.BUSY_SECONDS, factory=_Connection
        ) as connection:
            await connection.executescript(fence.SQLITE_PRAGMAS)
            saver = AsyncSqliteSaver(connection, serde=self._serializer(now))
            saver.is_setup = not new  # `open` has seen to it, once for all passes
            yield saver


class FencedSqliteSaver(FencedSaver):
    """LangGraph's SQLite saver for one pass."""

    _plain: AsyncSqliteSaver

    async def _write(self, act: Act[T], *, progress: bool = False) -> T:
        # the triggers check the lease and mark progress, so there is nothing to add
        try:
            return await _until_free(lambda: act(self._plain))
        except sqlite3.IntegrityError as error:
            if fence.LEASE_LOST in str(error):
                raise self._pass.lose() from None
            raise

    async def _read(self, act: Act[T]) -> T:
        return await _until_free(lambda: act(self._plain))


class _Cursor(sqlite3.Cursor):
    """Ends the transaction of each statement (for `executemany`, of all its rows) itself.

    LangGraph's saver awaits its commit. Until then the whole file would be locked while
    this process is waited for, whose loop may be blocked by a node, or by a call that wants
    to write to the file; a cancelled write would even leave it locked.
    """

    def execute(self, sql: str, parameters: Any = ()) -> _Cursor:
        with self.connection:
            super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any]) -> _Cursor:
        with self.connection:
            super().executemany(sql, parameters)
        return self


class _Connection(sqlite3.Connection):
    def cursor(self, _: Any = None) -> _Cursor:  # type: ignore[override]
        return super().cursor(_Cursor)

    # The connection's own `execute`, by which checkpoints are written, makes its cursor in C
    # and asks no `cursor` of ours.

    def execute(self, sql: str, parameters: Any = (), /) -> _Cursor:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> _Cursor:
        return self.cursor().executemany(sql, parameters)


async def _until_free(act: Callable[[], Awaitable[T]]) -> T:
    """Try again while the file is locked.

    SQLite waits by itself in the ordinary case. It doesn't where two connections would wait
    for each other, as when the journal mode is set or the log of a killed process recovered.
    """

    wait = wait_random_exponential(multiplier=0.02, max=1)
    return await again(act, _is_locked, wait, stop_after_attempt(_ATTEMPTS))


def _is_locked(error: BaseException) -> bool:
    if not isinstance(error, sqlite3.OperationalError):
        return False
    primary = error.sqlite_errorcode & 0xFF  # the rest of the code says which kind of busy
    return primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
