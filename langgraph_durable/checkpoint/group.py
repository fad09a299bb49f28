"""Group commit of checkpoints on PostgreSQL: what many runs write, in few messages.

A message is one transaction: the writes, and behind them one look at the leases of all
their runs. The lock on a run's row is thus never held while this process is waited for,
whose loop may be blocked by a node, or by a call that wants that very lock; the journal's
thread, which renews the leases of all runs, doesn't wait for it either.

The journal locks rows of many runs as well, in another order. So a message doesn't wait for
a lock while it holds others: it gives up, and its writes go by themselves, each in the task
of its own pass: one that waits for a lock keeps no other from going on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, TypeGuard

from psycopg import AsyncClientCursor, AsyncConnection, OperationalError
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, PoolClosed

from ..runs import Lease
from ..store import fence

MAX_MESSAGES = 2  # under way at once
MAX_WRITES = 25  # in one message
MAX_LENGTH = 1_000_000  # of a write that goes with others: many large ones would fill the memory
MESSAGE_SECONDS = 10  # a message for many must not wait for ever on a connection that is dead

Pool = AsyncConnectionPool[AsyncConnection[DictRow]]
Statement = tuple[LiteralString, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Write:
    """What LangGraph's saver has to write at once, and the lease that may write it."""

    lease: Lease
    said: Sequence[Statement]

    @property
    def length(self) -> int:
        """How much text and bytes it has, roughly."""
        return sum(_length(params) for _, params in self.said)


def _length(value: Any) -> int:
    if isinstance(value, Jsonb):
        value = value.obj
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_length, value.values()))
    return sum(map(_length, value)) if isinstance(value, list | tuple) else 0


@dataclass(frozen=True, slots=True)
class _Waiting:
    write: Write
    done: asyncio.Future[bool]  # false: it has to go by itself

    def tell(self, *, is_written: bool, error: BaseException | None = None) -> None:
        if self.done.done():  # who waited was cancelled
            return
        if error is None:
            self.done.set_result(is_written)
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
        if write.length > MAX_LENGTH or not await self._gathered(write):
            await self.alone(write)

    async def alone(self, write: Write, check: LiteralString = fence.CHECK_LEASE) -> None:
        """Write, in a transaction of its own that ends with this check of the lease.

        Raises:
            DivisionByZero: another worker owns the run; nothing was written.
        """
        await self._execute([*write.said, (check, (write.lease.run_id, write.lease.epoch))])

    async def _gathered(self, write: Write) -> bool:
        waiting = _Waiting(write, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        # one that has ended is in the set for a moment more, and takes nothing from the queue
        if sum(not task.done() for task in self._sending) < MAX_MESSAGES:
            task = asyncio.create_task(self._send())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        return await waiting.done

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MAX_WRITES], self._waiting[MAX_WRITES:]
            batch = [waiting for waiting in batch if not waiting.done.done()]  # not cancelled
            is_written, error = False, None
            try:
                if batch:
                    await self._together([waiting.write for waiting in batch])
                is_written = True
            except Exception as raised:
                # The server's no to one of them, a locked row, or a message that takes too long:
                # don't let the others suffer for it. A server that is away is so for all.
                if is_outage(raised) and raised.sqlstate is None:
                    error = raised
            finally:  # also when this task is cancelled
                for waiting in batch:
                    waiting.tell(is_written=is_written, error=error)

    async def _together(self, writes: Sequence[Write]) -> None:
        leases = {(write.lease.run_id, write.lease.epoch) for write in writes}
        ids = [run_id for run_id, _ in leases]
        check = (fence.CHECK_LEASES, (len(leases), ids, [fence.named(*lease) for lease in leases]))
        async with asyncio.timeout(MESSAGE_SECONDS):
            await self._execute([*(said for write in writes for said in write.said), check])

    async def _execute(self, said: Sequence[Statement]) -> None:
        async with self._pool.connection() as connection:
            # many statements in one message: only a client-side cursor sends that
            cursor = AsyncClientCursor(connection)
            message = ";".join(cursor.mogrify(*statement) for statement in said)
            await cursor.execute(message.encode(connection.info.encoding))


def is_outage(error: BaseException) -> TypeGuard[OperationalError]:
    """Whether the database is away, and the same write may succeed later."""
    return isinstance(error, OperationalError) and not isinstance(error, PoolClosed)
