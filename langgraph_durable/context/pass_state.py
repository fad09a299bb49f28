"""What one pass over a run knows, and lets happen: the marks that no `except` can hide.

A pass ends early in one of four ways (parked, sleeping, handed back, lease lost). The
exception that unwinds the graph may be swallowed by user code; these marks may not. Every
step asks `gate` first, no task is committed in which a pause was swallowed, and the worker
decides by the marks, not by what came out.

A pause ends the task that waits, and what calls it. Its siblings go on to their own ends,
so that their steps are recorded and their questions put together with its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from langgraph.errors import GraphBubbleUp

from langgraph_durable.context.places import Here, Places, is_within
from langgraph_durable.errors import (
    DuplicateKey,
    HandedBack,
    Parked,
    PassEnded,
    QuestionSwallowed,
)
from langgraph_durable.runs import Question, Replayed
from langgraph_durable.secrets import Revealed

T = TypeVar("T")

#: The pass in which the flow that is running has called `interrupt()` without an answer.
_interrupted: ContextVar[PassState | None] = ContextVar(
    "langgraph_durable_interrupted", default=None
)


#: The pass and the round that the flow that is running belongs to.
_round: ContextVar[tuple[PassState, int] | None] = ContextVar(
    "langgraph_durable_round", default=None
)


@dataclass(slots=True)
class PassState:
    """One pass: from a claim to its outcome."""

    places: Places = field(init=False)
    asked: dict[str, Question] = field(default_factory=dict)  # by key, in the order put
    sleep_seconds: float | None = None  # until the first timer of any branch is over
    interrupts: set[str] = field(default_factory=set)  # places whose `interrupt()` was reached
    awaited: set[str] = field(default_factory=set)  # events that branches wait for
    taken: set[int] = field(default_factory=set)  # numbers of signals that this pass took
    draining: bool = False
    lost: PassEnded | None = None
    broken: Exception | None = None  # a step was answered for another call, or would have been
    cancelling: bool = False
    unwinding: bool = False  # only compensations are made in this pass
    round: int = 0  # native interrupts are answered in rounds; each runs asking nodes again
    saved_steps: int = 0
    saved_tokens: int = 0
    secrets: Revealed = field(default_factory=Revealed)
    closed: bool = False  # the agent has come out: what it left running begins no step
    notes: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)  # for the audit
    note: Callable[[str, Mapping[str, Any]], None] | None = None
    _unwinding: dict[str, PassEnded] = field(default_factory=dict)  # by namespace
    _unanswered: dict[str, str] = field(default_factory=dict)  # namespace -> path of interrupt()
    _tell: list[Callable[[], None]] = field(default_factory=list)
    _used: dict[str, tuple[Here, int]] = field(default_factory=dict)
    _flying: set[asyncio.Task[Any]] = field(default_factory=set)
    _latest: dict[str, asyncio.Task[Any]] = field(default_factory=dict)  # by key, in flight
    _threads: set[concurrent.futures.Future[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Watch where tasks begin and end."""
        self.places = Places(self._may_begin, self._may_end)

    @property
    def replayed(self) -> Replayed:
        """What the journal answered so far."""
        return Replayed(self.saved_steps, self.saved_tokens)

    @property
    def is_parked(self) -> bool:
        """Whether the run is to leave its worker to wait."""
        return bool(self.asked or self.awaited) or self.sleep_seconds is not None

    def wake_in(self, seconds: float) -> None:
        """Take note that a branch goes on after some seconds; the first of them wakes the run."""
        before = self.sleep_seconds
        self.sleep_seconds = seconds if before is None else min(before, seconds)

    def gate(self, at: Here) -> None:
        """Let a step begin, or end what wants it.

        Raises:
            PassEnded: the lease is lost, this task waits, or the worker drains.
        """
        if self.lost is not None:
            raise self.lost
        if self.is_left_behind():
            raise Parked("an earlier round left this call behind; its node has run again since")
        if _interrupted.get() is self:
            raise Parked("interrupt() was called, and has no answer yet")
        for namespace, why in self._unwinding.items():
            if is_within(at.namespace, namespace) or is_within(namespace, at.namespace):
                raise why
        if self.closed:
            raise HandedBack("the pass has ended")
        if self.cancelling:
            raise self.end(at, HandedBack("the run is being cancelled"))
        if self.draining:
            raise self.end(at, HandedBack("the worker stops"))

    def end(self, at: Here, why: PassEnded) -> PassEnded:
        """Take note that the code at a place has to unwind; returns what to raise there."""
        self._unwinding.setdefault(at.namespace, why)
        return why

    def interrupted(self, namespace: str, path: str) -> None:
        """Take note that `interrupt()` is about to end a task."""
        self._unanswered[namespace] = path
        _interrupted.set(self)

    def begin_round(self) -> None:
        """Mark what runs from here on as belonging to this round."""
        _round.set((self, self.round))

    def is_left_behind(self) -> bool:
        """Whether the calling flow began in an earlier round.

        A plain ToolNode doesn't wait for its other calls when one of them asks: they may come
        to a step when their node runs again, in the next round, and makes the step itself.
        """
        begun = _round.get()
        return begun is not None and begun[0] is self and begun[1] < self.round

    def next_round(self) -> None:
        """Begin another round: tasks that LangGraph interrupted run again, with an answer."""
        self.round += 1
        self.begin_round()
        self._unanswered.clear()
        self.places.forget_tries()

    def _may_begin(self, _namespace: str) -> None:
        """Start no task in a run that is over: a node may have swallowed its cancellation."""
        if self.lost is not None:
            raise self.lost
        if self.cancelling:
            raise HandedBack("the run is being cancelled")

    def _may_end(self, namespace: str) -> None:
        """Keep a task from being committed if it, or what it called, swallowed a pause."""
        if self.lost is not None:
            raise self.lost
        for ended, why in self._unwinding.items():
            if is_within(ended, namespace):
                if self.note is not None:
                    self.note("pause_swallowed", {"place": self.places.of(ended)})
                raise why
        for asking, path in self._unanswered.items():
            if is_within(asking, namespace):
                raise QuestionSwallowed(path)

    def drain(self) -> None:
        """End the pass at the next boundary of a step or a superstep."""
        self.draining = True
        self._tell_all()

    def cancel(self) -> None:
        """End the run: nothing new begins in it."""
        self.cancelling = True
        self._tell_all()

    def _tell_all(self) -> None:
        for tell in self._tell:
            tell()

    def on_drain(self, tell: Callable[[], None]) -> None:
        """Have somebody else told when the pass is to end (LangGraph's run control)."""
        self._tell.append(tell)
        if self.draining or self.cancelling:
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

    def see(self, key: str, at: Here) -> None:
        """Take note of a key that any code may name, any number of times."""
        self._used.setdefault(key, (at, self.round))

    @property
    def has_used_any(self) -> bool:
        """Whether this pass asked for any step."""
        return bool(self._used)

    def has_used(self, key: str) -> bool:
        """Whether a key was asked for in this pass."""
        return key in self._used

    def release(self, key: str) -> None:
        """Let a key be used again here: its call failed, so it names nothing yet."""
        self._used.pop(key, None)

    def free_key(self, stem: str, at: Here) -> str:
        """Return a key for the next call of its kind here: `stem`, then `stem#2`, …

        The n-th call of one execution of a node gets the n-th key, in every pass. Ask for it
        before the first `await`, so that the order is the code's.
        """
        taken = (at.execution, self.round)
        for n in itertools.count(1):
            key = stem if n == 1 else f"{stem}#{n}"
            before = self._used.get(key)
            if before is None or (before[0].execution, before[1]) != taken:
                return key
        raise AssertionError("unreachable: the count never ends")

    def answered(self, tokens: int) -> None:
        """Count a step that the journal answered."""
        self.saved_steps += 1
        self.saved_tokens += tokens

    def is_in_flight(self, key: str) -> bool:
        """Whether an earlier call under this key has not ended."""
        return key in self._latest

    async def landed(self, key: str) -> None:
        """Wait for an earlier call under this key: its node gave it up (a timeout, a retry)."""
        while (earlier := self._latest.get(key)) is not None:
            await asyncio.wait({earlier})

    async def fly(self, work: Coroutine[Any, Any, T], key: str = "") -> T:
        """Run a call and its record to their end, even if the node that awaits them is cancelled.

        A sibling that fails cancels the other nodes of its superstep, and a plain ToolNode
        leaves its other calls running when one asks. An effect that has begun must still
        be recorded. One that failed leaves its key free for another try in place.
        """
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        self._flying.add(task)
        self._latest[key] = task
        # not `shield`: this is what it does, and the book-keeping, in one callback
        landed: asyncio.Future[None] = loop.create_future()
        task.add_done_callback(partial(self._landed, key, landed))
        try:
            await landed
            return task.result()
        except asyncio.CancelledError:  # given up (`asyncio.wait_for`); it still lands by itself
            self.release(key)
            raise
        except Exception as error:
            if not isinstance(error, GraphBubbleUp):
                self.release(key)
            raise

    def _landed(self, key: str, landed: asyncio.Future[None], task: asyncio.Task[Any]) -> None:
        self._flying.discard(task)
        if self._latest.get(key) is task:
            del self._latest[key]
        _seen(task)  # the node that awaited it may be gone
        if not landed.done():
            landed.set_result(None)

    def carry(self, thread: concurrent.futures.Future[Any]) -> None:
        """Take note of sync code that runs for this pass in a thread; nothing can stop it."""
        self._threads.add(thread)
        thread.add_done_callback(self._threads.discard)

    async def land(self) -> None:
        """Wait until no step is in flight, and no thread at work (the lease is held meanwhile).

        Once the lease is lost, threads are left to themselves.
        """
        while waiting := self._flying | self._working():
            await asyncio.wait(waiting)

    def _working(self) -> set[asyncio.Future[Any]]:
        if self.lost is not None:
            return set()
        threads = {asyncio.wrap_future(thread) for thread in list(self._threads)}
        for thread in threads:
            thread.add_done_callback(_seen)
        return threads

    def let_go(self) -> None:
        """Forget who watches: what is left is then freed at once, not by a search for cycles.

        Code that the agent left running may still come to a task's beginning: it is refused.
        """
        self.note = None
        self._tell.clear()
        self.places.watched_by(_refuse_late, _refuse_late)

    def abandon(self) -> None:
        """Cancel what is in flight: the lease is lost, and the fence refuses its record."""
        for task in self._flying:
            task.cancel()


def _refuse_late(_namespace: str) -> None:
    raise HandedBack("the pass has ended")


def _seen(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()  # who ran the thread has it, or is gone
