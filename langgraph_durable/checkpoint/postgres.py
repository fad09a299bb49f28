"""Fenced savers on PostgreSQL: a write's transaction checks its run's row as it commits.

What LangGraph's saver would execute is gathered, and goes to the server with the check in
one message, which is one transaction (see `group`). Nothing is kept in a session, so that a
pooler in transaction mode may stand between; statements are prepared only where there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, LiteralString, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg import AsyncClientCursor, AsyncConnection, Error
from psycopg.errors import DivisionByZero
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from tenacity import stop_after_delay, wait_random_exponential

from ..encryption import Keyring
from ..errors import StoreError
from ..store import fence
from ..store.engine import PREPARE_AFTER, WHOSE_SERVER, is_stale
from ..values import Types
from .again import again
from .fenced import Act, FencedSaver, Pass, T
from .group import GroupWriter, Pool, Statement, Write, is_outage
from .savers import Savers
from .state import Boxed, StateSerializer, fits_json

MAX_CONNECTIONS = 10
CONNECTION_SECONDS = 5  # how long a write waits for a connection before it counts as failed
OUTAGE_SECONDS = 20  # how long a write is tried again while the database is away
SETUP_POLL_SECONDS = 0.05


class PostgresSavers(Savers):
    """The savers of a PostgreSQL database, on one pool."""

    def __init__(self, target: str, types: Types, keyring: Keyring | None = None) -> None:
        super().__init__(target, types, keyring)
        self._pool: Pool = AsyncConnectionPool(
            target,
            kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": None},
            min_size=1,
            max_size=MAX_CONNECTIONS,
            timeout=CONNECTION_SECONDS,
            configure=_prepare_statements,
            open=False,
            name="langgraph_durable.checkpoint",
        )
        self._writer = GroupWriter(self._pool)

    async def open(self) -> None:
        """Connect, and create LangGraph's tables where they are missing."""
        self._warn_of_unreachable()
        try:
            await self._pool.open(wait=True, timeout=OUTAGE_SECONDS)
        except PoolTimeout as error:
            await self._pool.close()
            raise StoreError(f"PostgreSQL can't be reached for checkpoints: {error}") from error
        await _through_outage(self._setup)

    async def aclose(self) -> None:
        """Close the pool."""
        await self._pool.close()

    async def delete_thread(self, thread_id: str) -> None:
        """Delete a thread's checkpoints: not fenced, so only for a thread of no live run."""
        saver = AsyncPostgresSaver(self._pool)
        await _through_outage(lambda: saver.adelete_thread(thread_id))

    async def _setup(self) -> None:
        """Create the tables, one process at a time.

        The lock is held on a connection beside: LangGraph's setup must run outside a
        transaction, as it creates indexes concurrently.
        """
        async with self._pool.connection() as gate:
            while True:
                async with gate.transaction():
                    answer = await gate.execute(fence.TRY_SETUP_LOCK)
                    row = await answer.fetchone()
                    if row is not None and True in row.values():
                        await AsyncPostgresSaver(self._pool).setup()
                        return
                await asyncio.sleep(SETUP_POLL_SECONDS)

    @asynccontextmanager
    async def _saver(self, now: Pass) -> AsyncIterator[FencedSaver]:
        yield FencedPostgresSaver(now, self._pool, self._writer, self._serializer(now))


class FencedPostgresSaver(FencedSaver):
    """LangGraph's PostgreSQL saver for one pass."""

    def __init__(self, now: Pass, pool: Pool, writer: GroupWriter, serde: StateSerializer) -> None:
        super().__init__(now, AsyncPostgresSaver(pool, serde=serde))
        self._pool, self._writer, self._guarding = pool, writer, serde
        self._gathering = _Gathering(serde)

    @property
    def _guards(self) -> bool:
        return self._guarding.guards

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint.

        LangGraph puts primitives into a JSON column; those that it would refuse or change
        go to the other values, as bytes, and all do where values are encrypted.

        Raises:
            LeaseLost: another worker owns the run; nothing was written.
        """
        versions = checkpoint["channel_versions"]
        boxed = {
            channel: Boxed(value)
            for channel, value in checkpoint["channel_values"].items()
            if isinstance(value, (str, int, float))
            and channel in versions
            and (self._guards or not fits_json(value))
        }
        if boxed:
            checkpoint = {**checkpoint, "channel_values": checkpoint["channel_values"] | boxed}
            # Always, not only when it changed: the thread may come from LangGraph's own
            # saver, which kept the value in the JSON of an older checkpoint.
            new_versions = {**new_versions, **{channel: versions[channel] for channel in boxed}}
        return await super().aput(config, checkpoint, metadata, new_versions)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prune threads.

        Raises:
            LeaseLost: another worker owns the run; nothing was deleted.
        """
        lease = self._pass.lease

        async def once() -> None:
            # an error rolls back: the pool's connection does so as it is left
            async with self._pool.connection() as connection:
                await connection.execute(fence.BEGIN_SNAPSHOT)
                saver = AsyncPostgresSaver(connection, serde=self.serde)
                await saver.aprune(thread_ids, strategy=strategy)  # it reads what to write
                # two statements in one message: only a client-side cursor sends that
                await AsyncClientCursor(connection).execute(
                    f"{fence.CHECK_LEASE}; COMMIT", (lease.run_id, lease.epoch)
                )

        await self._behind_fence(once)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prune threads, from a node's thread."""
        return self._wait(self.aprune(thread_ids, strategy=strategy))

    async def _read(self, act: Act[T]) -> T:
        try:
            return await _through_outage(lambda: act(self._plain))
        except Error as error:
            if not is_stale(error):
                raise
        await self._pool.drain()  # all may be as stale; new ones have prepared nothing
        return await _through_outage(lambda: act(self._plain))

    async def _write(self, act: Act[T], *, progress: bool = False) -> T:
        mark = progress and not self._pass.progressed
        gathering = copy(self._gathering)  # cheaper than to make one
        gathering.serde, gathering.said = self.serde, []
        result = await act(gathering)
        write = Write(self._pass.lease, gathering.said)
        if mark:
            await self._behind_fence(lambda: self._writer.alone(write, fence.MARK_PROGRESS))
        else:
            await self._behind_fence(lambda: self._writer.with_others(write))
        self._pass.progressed |= mark
        return result

    async def _behind_fence(self, once: Callable[[], Awaitable[None]]) -> None:
        try:
            await _through_outage(once)
        except DivisionByZero:
            raise self._pass.lose() from None


class _Gathering(AsyncPostgresSaver):
    """LangGraph's saver, without a connection: it is its own cursor, and keeps what it says.

    Should LangGraph come to write in another way, it finds nothing to write to.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        super().__init__(cast(Any, None), serde=serde)
        self.said: list[Statement] = []

    @asynccontextmanager
    async def _cursor(self, *, pipeline: bool = False) -> AsyncIterator[Any]:
        yield self

    async def execute(self, query: LiteralString, params: Sequence[Any]) -> None:
        self.said.append((query, params))

    async def executemany(self, query: LiteralString, rows: Iterable[Sequence[Any]]) -> None:
        self.said.extend((query, row) for row in rows)


async def _prepare_statements(connection: AsyncConnection[DictRow]) -> None:
    """Let the server keep the plans of statements that come again: see `store.engine`."""
    answer = await connection.execute(WHOSE_SERVER)
    row = await answer.fetchone()
    if row is not None and connection.info.backend_pid in row.values():
        connection.prepare_threshold = PREPARE_AFTER


async def _through_outage(act: Callable[[], Awaitable[T]]) -> T:
    """Try again while the database is away."""
    wait = wait_random_exponential(multiplier=0.05, max=1)
    return await again(act, is_outage, wait, stop_after_delay(OUTAGE_SECONDS))
