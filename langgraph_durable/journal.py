"""The writer thread of a worker: group commit, fence, heartbeat.

One thread, with a connection of its own, writes what all runs of the worker have to
record: while one commit is under way the next steps gather, and go together in the next.
The same thread keeps the leases, so a blocked event loop doesn't lose them (a C call that
holds the GIL for longer than the lease does; then the fence holds).

The thread is where a lost lease is noticed. It sets `LeaseLost` on the futures of that
run's steps and on `RunJournal.lost`, which the worker watches.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langgraph_durable.errors import DurableError, LeaseLost, StepConflict, StoreError
from langgraph_durable.runs import (
    Lease,
    Question,
    QuestionState,
    Replayed,
    Signal,
    Status,
    Step,
    StepState,
)
from langgraph_durable.store import Ending, Journaled, RunStore, Write

log = logging.getLogger(__name__)

#: More runs than this don't wait for one commit. Measured with 50 runs at once: parts of 25, 50
#: and 100 make no difference to graphs, and without a graph 50 are a tenth faster than 25.
MAX_BATCH = 50
LOOK_SECONDS = 0.5  # at most this often is a lease looked at because something rang


class RunJournal:
    """The journal of one claimed run, as its context sees it (see `context.Journal`)."""

    def __init__(
        self,
        writer: JournalWriter,
        lease: Lease,
        start: Journaled,
        deadline: float | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.lease = lease
        self.deadline = deadline  # monotonic; past it the lease is no longer kept
        self.loop = loop
        self.lost: asyncio.Future[None] = self.loop.create_future()
        self.cancelling: asyncio.Future[None] = self.loop.create_future()
        self.kept_until = time.monotonic() + writer.lease_seconds
        self._writer = writer
        self._steps = {step.key: step for step in start.steps}
        self._answers = {
            (question.key, question.digest): question
            for question in start.questions
            if question.state in (QuestionState.DECIDED, QuestionState.EXPIRED)
        }
        self._questions = start.questions
        self._next = max((step.seq for step in start.steps), default=0) + 1
        self.progressed = False

    def recorded(self, key: str) -> Step | None:
        """Return what the journal has under a key, in any state."""
        return self._steps.get(key)

    def steps(self) -> Sequence[Step]:
        """Return all steps that this worker knows."""
        return list(self._steps.values())

    def answer(self, key: str, digest: str) -> Question | None:
        """Return the decided or expired question of a key, if it was put for this very payload."""
        return self._answers.get((key, digest))

    def questions(self) -> Sequence[Question]:
        """Return all questions that the run had put when it was claimed."""
        return self._questions

    async def signals(self, event: str, limit: int) -> Sequence[Signal]:
        """Return the signals of an event that no step has taken, the oldest first."""
        return await asyncio.to_thread(
            self._writer.untaken_signals, self.lease.run_id, event, limit
        )

    async def record(self, step: Step) -> Step:
        """Write a step; returns when it is committed.

        Raises:
            LeaseLost: another worker owns the run now.
            StepConflict: another writer recorded this key first.
        """
        known = self._steps.get(step.key)
        step = step.numbered(known.seq if known else self._next, self.lease.epoch)
        if known is None:
            self._next += 1
        future: asyncio.Future[None] = self.loop.create_future()
        self._writer.write(_Pending(self, step, future))
        await future
        return step

    async def finish(self, output: str, replayed: Replayed) -> bool:
        """Settle the run as succeeded, together with others; False: it wants `store.settle`.

        `output` is encoded.
        """
        future: asyncio.Future[bool] = self.loop.create_future()
        self._writer.finish(_End(self, Ending(self.lease, output, replayed), future))
        return await future

    def settled(self, step: Step) -> None:
        """Take note of a step that is committed (in the loop, before its future answers)."""
        self._steps[step.key] = step
        if step.state is StepState.RECORDED:
            self.progressed = True

    def lose(self) -> None:
        """Tell the run's loop that the lease is gone; any thread may call."""
        self.call(_fail_once, self.lost, LeaseLost(self.lease.run_id, self.lease.epoch))

    def call(self, function: Callable[..., None], *args: object) -> None:
        """Call a function in the run's loop; nothing if that loop has ended."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            log.debug("run %s: its loop has ended", self.lease.run_id)


@dataclass(slots=True)
class _Pending:
    """A step that waits for its commit, and the future that its context awaits."""

    journal: RunJournal
    step: Step
    future: asyncio.Future[None]
    error: BaseException | None = None


@dataclass(slots=True)
class _End:
    """A run that waits to be settled as succeeded, and the future that its pass awaits."""

    journal: RunJournal
    ending: Ending
    future: asyncio.Future[bool]


@dataclass(frozen=True, slots=True)
class _Ring:
    """Somebody changed something: look at the leases."""


@dataclass(frozen=True, slots=True)
class _Stop:
    """End the thread."""


_Item: TypeAlias = _Pending | _End | _Ring | _Stop


@dataclass(slots=True)
class _Beat:
    """When leases are to be extended or looked at, by the monotonic clock."""

    every: float
    due: float = field(default=0.0)  # the next of both
    extends: float = field(default=0.0)
    last: float = field(default=0.0)

    def again(self) -> None:
        """Plan the next extension."""
        self.last = time.monotonic()
        self.due = self.extends = self.last + self.every

    def looked(self) -> None:
        """Take note of a look in between."""
        self.last = time.monotonic()
        self.due = self.extends

    def ring(self) -> None:
        """Bring the next look forward, but no nearer than LOOK_SECONDS."""
        self.due = min(self.due, self.last + LOOK_SECONDS)


class JournalWriter(threading.Thread):
    """The thread. Start it once a worker; `follow` a run while the worker owns it."""

    def __init__(self, store: RunStore, lease_seconds: float) -> None:
        super().__init__(name="durable-journal", daemon=True)
        self._store = store
        self.lease_seconds = lease_seconds
        self._inbox: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._followed: dict[str, dict[int, RunJournal]] = {}  # by run and epoch
        self._guard = threading.Lock()
        self._beat = _Beat(lease_seconds / 3)
        self._ended = False

    # --- called from event loops -------------------------------------------------------

    def follow(
        self,
        lease: Lease,
        start: Journaled,
        limit_seconds: float | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> RunJournal:
        """Keep a run's lease from now on, for at most `limit_seconds`.

        Any thread may call, if it says in which loop the run is going to be driven.
        """
        deadline = None if limit_seconds is None else time.monotonic() + limit_seconds
        loop = loop or asyncio.get_running_loop()
        journal = RunJournal(self, lease, start, deadline, loop)
        with self._guard:
            of_run = self._followed.setdefault(lease.run_id, {})
            older = [j for epoch, j in of_run.items() if epoch < lease.epoch]
            of_run[lease.epoch] = journal
        for left in older:  # this very worker took its own lost run over
            left.lose()
        return journal

    def unfollow(self, lease: Lease) -> None:
        """Stop keeping a run's lease."""
        with self._guard:
            of_run = self._followed.get(lease.run_id, {})
            of_run.pop(lease.epoch, None)
            if not of_run:
                self._followed.pop(lease.run_id, None)

    def write(self, pending: _Pending) -> None:
        """Queue a step for the next commit."""
        if not self._queued(pending):
            self._refuse([pending])

    def finish(self, end: _End) -> None:
        """Queue the end of a run for the next commit."""
        if not self._queued(end):
            self._tell(end, is_done=False)

    def _queued(self, item: _Item) -> bool:
        with self._guard:  # the thread ends under the same lock: nothing is queued behind it
            if not self._ended:
                self._inbox.put(item)
            return not self._ended

    def untaken_signals(self, run_id: str, event: str, limit: int) -> Sequence[Signal]:
        """Ask the store, in the calling thread."""
        return self._store.untaken_signals(run_id, event, limit)

    def ring(self) -> None:
        """Look at the leases soon: a run may have been cancelled or taken."""
        if self._followed:
            self._inbox.put(_Ring())

    def stop(self) -> None:
        """Write what is queued, then end the thread."""
        self._inbox.put(_Stop())
        if self.is_alive():
            self.join()

    # --- the thread --------------------------------------------------------------------

    def run(self) -> None:
        """Write and keep until stopped."""
        self._beat.again()
        stopping = False
        with self._store.keeping_connection():
            while not stopping:
                stopping = self._turn()
        with self._guard:
            self._ended = True
        while not self._inbox.empty():  # what the database didn't take, and what came too late
            late, ends, _ = self._gather()
            self._refuse(late)
            for end in ends:
                self._tell(end, is_done=False)

    def _turn(self) -> bool:
        batch, ends, stopping = self._gather()
        for part in _without_repeats(batch):
            self._commit(part)
        if ends:
            self._finish(ends)
        if time.monotonic() >= self._beat.due:
            self._keep()
        return stopping

    def _refuse(self, batch: list[_Pending]) -> None:
        for pending in batch:
            pending.error = StoreError(
                f"step {pending.step.key!r} was not recorded: the worker has stopped"
            )
        self._answer(batch)

    def _gather(self) -> tuple[list[_Pending], list[_End], bool]:
        batch: list[_Pending] = []
        ends: list[_End] = []
        stopping = False
        try:
            item = self._inbox.get(timeout=max(0.0, self._beat.due - time.monotonic()))
            while True:
                if isinstance(item, _Pending):
                    batch.append(item)
                elif isinstance(item, _End):
                    ends.append(item)
                elif isinstance(item, _Stop):
                    stopping = True
                else:
                    self._beat.ring()
                if len(batch) + len(ends) >= MAX_BATCH:
                    break
                item = self._inbox.get_nowait()
        except queue.Empty:
            pass
        return batch, ends, stopping

    def _commit(self, batch: list[_Pending]) -> None:
        if not batch:
            return
        started = time.monotonic()
        writes = [Write(pending.journal.lease, pending.step) for pending in batch]
        try:
            refused = self._store.put_steps(writes, self.lease_seconds)
        except StoreError as error:
            self._later(batch, error)
            return
        except Exception as error:
            self._apart(batch, error)
            return
        for pending, why in zip(batch, refused, strict=True):
            pending.error = why
            if why is None:
                pending.journal.kept_until = started + self.lease_seconds
        self._answer(batch)

    def _finish(self, ends: list[_End]) -> None:
        try:
            done = self._store.finish([end.ending for end in ends], self.lease_seconds)
        except Exception as error:  # each is then settled by itself, with time of its own
            log.warning("runs can't be settled together: %s", error)
            done = [False] * len(ends)
        for end, is_done in zip(ends, done, strict=True):
            self._tell(end, is_done=is_done)

    @staticmethod
    def _tell(end: _End, *, is_done: bool) -> None:
        end.journal.call(_resolve_once, end.future, is_done)

    def _later(self, batch: list[_Pending], error: StoreError) -> None:
        """The database is away: keep trying for as long as a lease may still be ours."""
        log.warning("the journal can't be written, trying on: %s", error)
        now = time.monotonic()
        for pending in batch:
            if now < pending.journal.kept_until:
                self._inbox.put(pending)
            else:
                lease = pending.journal.lease
                pending.error = LeaseLost(lease.run_id, lease.epoch)
        self._answer([pending for pending in batch if pending.error is not None])
        time.sleep(min(0.1, self.lease_seconds / 30))  # it may refuse at once, again and again

    def _apart(self, batch: list[_Pending], error: Exception) -> None:
        """One row can't be written: don't let the others suffer for it."""
        if len(batch) == 1:
            log.error("step %r can't be recorded: %s", batch[0].step.key, error)
            batch[0].error = DurableError(f"step {batch[0].step.key!r} can't be recorded: {error}")
            self._answer(batch)
            return
        for pending in batch:
            self._commit([pending])

    def _answer(self, batch: Iterable[_Pending]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Pending]] = {}
        for pending in batch:
            by_loop.setdefault(pending.journal.loop, []).append(pending)
        for part in by_loop.values():
            part[0].journal.call(_resolve, part)

    def _keep(self) -> None:
        now = time.monotonic()
        with self._guard:
            journals = [j for of_run in self._followed.values() for j in of_run.values()]
        kept = [j for j in journals if j.deadline is None or now < j.deadline]
        self._lose_overdue(j for j in journals if j.deadline is not None and now >= j.deadline)
        leases = [journal.lease for journal in kept]
        # Somebody rang: to look is enough. To write would ring others, and ourselves on SQLite.
        extends = now >= self._beat.extends
        try:
            if extends:
                found = self._store.heartbeat(leases, self.lease_seconds)
            else:
                found = self._store.statuses(leases, self.lease_seconds / 3)
        except Exception as error:  # without this thread no run of the worker goes on
            log.warning("leases can't be kept, trying on: %s", error)
            self._lose_overdue(kept)
            self._beat.again()
            self._beat.due = self._beat.extends = self._beat.last + min(1.0, self._beat.every)
            return
        if extends:
            self._beat.again()
        else:
            self._beat.looked()
        for journal in kept:
            status = found.get(journal.lease)
            if status is None:
                journal.lose()
                continue
            if extends:
                journal.kept_until = now + self.lease_seconds
            if status is Status.CANCELLING:
                journal.call(_resolve_once, journal.cancelling)

    def _lose_overdue(self, journals: Iterable[RunJournal]) -> None:
        now = time.monotonic()
        for journal in journals:
            if now >= journal.kept_until:
                journal.lose()


def _without_repeats(batch: list[_Pending]) -> list[list[_Pending]]:
    """Split a batch so that no part names one step twice: one statement can't write a row twice."""
    parts: list[list[_Pending]] = [[]]
    seen: set[tuple[str, str]] = set()
    for pending in batch:
        name = (pending.journal.lease.run_id, pending.step.key)
        if name in seen:
            parts.append([])
            seen = set()
        seen.add(name)
        parts[-1].append(pending)
    return parts


def _resolve(batch: list[_Pending]) -> None:
    """In the run's loop: note what is committed, wake who waits, give up what is lost."""
    for pending in batch:
        if pending.error is None:
            pending.journal.settled(pending.step)
            if not pending.future.done():
                pending.future.set_result(None)
            continue
        if isinstance(pending.error, LeaseLost | StepConflict):
            _fail_once(pending.journal.lost, pending.error)
        _fail_once(pending.future, pending.error)


def _resolve_once(future: asyncio.Future[Any], value: Any = None) -> None:
    if not future.done():
        future.set_result(value)


def _fail_once(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # marked as seen: nobody may be waiting for it
