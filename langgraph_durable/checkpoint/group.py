"""Group commit of checkpoints on PostgreSQL: what many runs write, in few messages.

A message is one transaction: the writes, and behind them one look at the leases of all
their runs. The lock on a run's row is thus never held while this process is waited for,
whose loop may be blocked by a node, or by a call that wants that very lock; the journal's
thread, which renews the leases of all runs, doesn't wait for it either.

The journal locks rows of many runs as well, in another order. So a message doesn't wait for
a lock while it holds others: it gives up, and its writes go by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import AsyncClientCursor, AsyncConnection, OperationalError
from psycopg.errors import LockNotAvailable
from psycopg.rows import DictRow
from psycopg_pool import AsyncConnectionPool, PoolClosed

from ..runs import Lease
from ..store import fence

MAX_MESSAGES = 2  # under way at once
MAX_WRITES = 25  # in one message

Pool = AsyncConnectionPool[AsyncConnection[DictRow]]
Statement = tuple[LiteralString, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Write:
    """What LangGraph's saver has to write at once, and the lease that may write it."""

    lease: Lease
    said: Sequence[Statement]


@dataclass(frozen=True, slots=True)
class _Waiting:
    write: Write
    done: asyncio.Future[None]

    def tell(self, error: BaseException | None = None) -> None:
        if self.done.done():  # who waited was cancelled
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class GroupWriter:
    """The writes of all passes of a worker; while a message is under way the next gather."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: list[_Waiting] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def with_others(self, write: Write) -> None:
        """Write, in one transaction with what other runs write.

        Raises:
            DivisionByZero: another worker owns the run; nothing of this write was written.
        """
        waiting = _Waiting(write, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if len(self._sending) < MAX_MESSAGES:
            task = asyncio.create_task(self._send())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        await waiting.done

    async def alone(self, write: Write, check: LiteralString = fence.CHECK_LEASE) -> None:
        """Write, in a transaction of its own that ends with this check of the lease.

        Raises:
            DivisionByZero: another worker owns the run; nothing was written.
        """
        await self._execute([*write.said, (check, (write.lease.run_id, write.lease.epoch))])

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MAX_WRITES], self._waiting[MAX_WRITES:]
            try:
                await self._together([waiting.write for waiting in batch])
            except Exception as error:
                if is_outage(error):  # each of them tries again by itself
                    for waiting in batch:
                        waiting.tell(error)
                else:
                    await self._apart(batch)
            else:
                for waiting in batch:
                    waiting.tell()

    async def _together(self, writes: Sequence[Write]) -> None:
        if len(writes) == 1:
            await self.alone(writes[0])
            return
        leases = {(write.lease.run_id, write.lease.epoch) for write in writes}
        ids, epochs = [run_id for run_id, _ in leases], [epoch for _, epoch in leases]
        check = (fence.CHECK_LEASES, (len(leases), ids, epochs))
        await self._execute([*(said for write in writes for said in write.said), check])

    async def _apart(self, batch: Sequence[_Waiting]) -> None:
        """One of them is refused, or a row is locked: don't let the others suffer for it."""
        for waiting in batch:
            try:
                await self.alone(waiting.write)
            except Exception as error:
                waiting.tell(error)
            else:
                waiting.tell()

    async def _execute(self, said: Sequence[Statement]) -> None:
        async with self._pool.connection() as connection:
            # many statements in one message: only a client-side cursor sends that
            cursor = AsyncClientCursor(connection)
            message = ";".join(cursor.mogrify(*statement) for statement in said)
            await cursor.execute(message.encode())


def is_outage(error: BaseException) -> bool:
    """Whether the database is away, and the same write may succeed later."""
    return isinstance(error, OperationalError) and not isinstance(
        error, PoolClosed | LockNotAvailable
    )
