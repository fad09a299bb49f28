"""One look at the database for all who wait in this process, however many they are.

A stream or a waiter that asked by itself four times a second would be a load; together
they ask for the id of the newest event, and each reads its own run only when it changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from weakref import WeakKeyDictionary

from langgraph_durable.errors import DurableError

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
# An id may become readable after a higher one of another run: ring a second time.
ECHO_SECONDS = 1.0


class Watch:
    """Tells waiters of this process that something happened in the database."""

    def __init__(self, newest: Callable[[], int]) -> None:
        self._newest = newest
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Looking] = WeakKeyDictionary()

    def ticket(self) -> int:
        """Return the place to wait from: take it before you read."""
        return self._here().version

    async def change(self, ticket: int, timeout_seconds: float) -> None:
        """Return when something happened since the ticket was taken, or at the timeout."""
        await self._here().change(ticket, timeout_seconds)

    def _here(self) -> _Looking:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = _Looking(self._newest)
        return self._loops[loop]


class _Looking:
    """The looking of one event loop; it stops when nobody waits."""

    def __init__(self, newest: Callable[[], int]) -> None:
        self.version = 0
        self._newest = newest
        self._seen: int | None = None
        self._bell = asyncio.Event()
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None

    async def change(self, ticket: int, timeout_seconds: float) -> None:
        if self.version != ticket:
            return
        self._waiting += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look(), name="langgraph-durable watch")
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._bell.wait()
        except TimeoutError:
            return
        finally:
            self._waiting -= 1

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        echo_at: float | None = None
        while self._waiting:
            newest = await self._ask()
            if newest is not None and newest != self._seen:
                self._seen, echo_at = newest, loop.time() + ECHO_SECONDS
                self._ring()
            elif echo_at is not None and loop.time() >= echo_at:
                echo_at = None
                self._ring()
            await asyncio.sleep(LOOK_SECONDS)

    async def _ask(self) -> int | None:
        try:
            return await asyncio.to_thread(self._newest)
        except DurableError as error:
            log.warning("streams wait for the database: %s", error)
            return None

    def _ring(self) -> None:
        self.version += 1
        self._bell.set()
        self._bell = asyncio.Event()
