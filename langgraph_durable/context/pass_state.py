"""What one pass over a run knows, and lets happen: the marks that no `except` can hide.

A pass ends early in one of four ways (parked, sleeping, handed back, lease lost). The
exception that unwinds the graph may be swallowed by user code; these marks may not. Every
step asks `gate` first, and the worker decides by the marks, not by what came out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from langgraph_durable.context.places import Here, Places
from langgraph_durable.errors import DuplicateKey, HandedBack, Parked, PassEnded
from langgraph_durable.runs import Question, Replayed

T = TypeVar("T")


@dataclass(slots=True)
class PassState:
    """One pass: from a claim to its outcome."""

    places: Places = field(default_factory=Places)
    asked: dict[str, Question] = field(default_factory=dict)  # by key, in the order put
    sleep_seconds: float | None = None
    draining: bool = False
    lost: PassEnded | None = None
    cancelling: bool = False
    round: int = 0  # native interrupts are answered in rounds; each runs asking nodes again
    saved_steps: int = 0
    saved_tokens: int = 0
    _tell: list[Callable[[], None]] = field(default_factory=list)
    _used: dict[str, tuple[Here, int]] = field(default_factory=dict)
    _flying: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def replayed(self) -> Replayed:
        """What the journal answered so far."""
        return Replayed(self.saved_steps, self.saved_tokens)

    @property
    def is_parked(self) -> bool:
        """Whether the run is to leave its worker to wait."""
        return bool(self.asked) or self.sleep_seconds is not None

    def gate(self) -> None:
        """Let a step begin, or end the pass.

        Raises:
            PassEnded: the lease is lost, the run waits, or the worker drains.
        """
        if self.lost is not None:
            raise self.lost
        if self.is_parked:
            raise Parked("the run waits: " + (", ".join(self.asked) or "a timer"))
        if self.cancelling:
            raise HandedBack("the run is being cancelled")
        if self.draining:
            raise HandedBack("the worker stops")

    def drain(self) -> None:
        """End the pass at the next boundary of a step or a superstep."""
        self.draining = True
        for tell in self._tell:
            tell()

    def on_drain(self, tell: Callable[[], None]) -> None:
        """Have somebody else told when the pass is to end (LangGraph's run control)."""
        self._tell.append(tell)
        if self.draining:
            tell()

    def use(self, key: str, at: Here) -> None:
        """Take note that a key is used here.

        Running a node again (its retry policy, or the next round) may use its keys again.

        Raises:
            DuplicateKey: the key was used by another place in this pass, or twice by one
                execution of a node.
        """
        before = self._used.get(key)
        if before is not None:
            first, round_ = before
            if first.path != at.path:
                raise DuplicateKey(key, first.path, at.path)
            if first.execution == at.execution and round_ == self.round:
                raise DuplicateKey(key, first.path, f"{at.path} again")
        self._used[key] = (at, self.round)

    def answered(self, tokens: int) -> None:
        """Count a step that the journal answered."""
        self.saved_steps += 1
        self.saved_tokens += tokens

    async def fly(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call and its record to their end, even if the node that awaits them is cancelled.

        A sibling that fails cancels the other nodes of its superstep, and a plain ToolNode
        leaves its other calls running when one asks. An effect that has begun must still
        be recorded.
        """
        task = asyncio.ensure_future(work)
        self._flying.add(task)
        task.add_done_callback(self._landed)
        return await asyncio.shield(task)

    def _landed(self, task: asyncio.Task[Any]) -> None:
        self._flying.discard(task)
        if not task.cancelled():
            task.exception()  # seen here: the node that awaited it may be gone

    async def land(self) -> None:
        """Wait until no step is in flight (the lease is held meanwhile)."""
        while self._flying:
            await asyncio.wait(self._flying)

    def abandon(self) -> None:
        """Cancel what is in flight: the lease is lost, and the fence refuses its record."""
        for task in self._flying:
            task.cancel()
