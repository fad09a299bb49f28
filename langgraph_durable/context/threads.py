"""The threads that sync code of runs works in."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from langgraph_durable.context import running

T = TypeVar("T")


class Threads(ThreadPoolExecutor):
    """Threads of which each pass knows those that work for it.

    A cancelled task doesn't stop the sync node or tool that it waited for: LangGraph goes
    on at once, and the thread has its effect later. The pass waits for it, so that a run
    isn't called cancelled while it still does something.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._busy: set[Future[Any]] = set()

    @property
    def busy(self) -> int:
        """How many calls have not ended."""
        return len(self._busy)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have a thread call `fn`."""
        thread = super().submit(fn, *args, **kwargs)
        self._busy.add(thread)
        thread.add_done_callback(self._busy.discard)
        run = running()
        if run is not None:  # else it works for the worker
            run.state.carry(thread)
        return thread
