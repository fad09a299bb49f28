"""RunContext for code in other threads: sync nodes, sync tools."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from langgraph_durable.errors import DurableError

if TYPE_CHECKING:
    from langgraph_durable.context import RunContext

T = TypeVar("T")


class BlockingContext:
    """The same methods, for sync code. One line a method; no logic may live here."""

    def __init__(self, ctx: RunContext, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        self._ctx, self._loop, self._thread = ctx, loop, thread

    def llm(self, key: str, messages: Any, **options: Any) -> Any:
        """Ask a model: see `RunContext.llm`."""
        return self.wait(self._ctx.llm(key, messages, **options))

    def tool(self, key: str, tool: str, arguments: Any = None, **options: Any) -> Any:
        """Call a tool: see `RunContext.tool`."""
        return self.wait(self._ctx.tool(key, tool, arguments, **options))

    def once(self, key: str, call: Any, **options: Any) -> Any:
        """Record a call of your own: see `RunContext.once`."""
        return self.wait(self._ctx.once(key, call, **options))

    def ask(self, key: str, question: Any, **options: Any) -> Any:
        """Ask a person: see `RunContext.ask`."""
        return self.wait(self._ctx.ask(key, question, **options))

    def emit(self, key: str, topic: str, payload: Any) -> Any:
        """Send a message: see `RunContext.emit`."""
        return self.wait(self._ctx.emit(key, topic, payload))

    def now(self, key: str) -> Any:
        """Return the recorded time: see `RunContext.now`."""
        return self.wait(self._ctx.now(key))

    def uuid(self, key: str) -> Any:
        """Return a recorded id: see `RunContext.uuid`."""
        return self.wait(self._ctx.uuid(key))

    def random(self, key: str) -> Any:
        """Return a recorded number: see `RunContext.random`."""
        return self.wait(self._ctx.random(key))

    def sleep(self, key: str, seconds: float) -> Any:
        """Sleep without a worker: see `RunContext.sleep`."""
        return self.wait(self._ctx.sleep(key, seconds))

    def secret(self, name: str) -> Any:
        """Read a secret: see `RunContext.secret`."""
        return self.wait(self._ctx.secret(name))

    def patched(self, id: str) -> bool:
        """Tell which side of a change this run takes: see `RunContext.patched`."""
        return self.wait(self._ctx.patched(id))

    def wait_for(self, key: str, event: str, timeout_seconds: float | None = None) -> Any:
        """Wait for an event without a worker: see `RunContext.wait_for`."""
        return self.wait(self._ctx.wait_for(key, event, timeout_seconds))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the run's loop do a piece of work, and wait for it here."""
        if threading.get_ident() == self._thread:
            work.close()  # waiting here would stop the loop that has to do the work
            raise DurableError(
                "ctx.blocking is for sync nodes and tools, which run in a thread; "
                "in async code await ctx itself"
            )
        # the work must see the caller's context variables: they tell which node this is
        here = contextvars.copy_context()
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def start() -> None:
            task = self._loop.create_task(work, context=here)
            task.add_done_callback(lambda done: _copy(done, answer))

        self._loop.call_soon_threadsafe(start)
        return answer.result()


def _copy(done: asyncio.Task[T], answer: concurrent.futures.Future[T]) -> None:
    if done.cancelled():
        answer.cancel()
        return
    error = done.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())
