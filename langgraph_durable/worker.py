"""Worker: claim, drive, settle; and drain when it is told to stop.

One event loop drives several runs at once. What blocks is elsewhere: the journal's thread
writes and keeps leases, the store is called in threads. A worker holds nothing that the
database lacks, so it may be killed at any time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import uuid
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from langgraph_durable.agents import Agent
from langgraph_durable.app import Durable
from langgraph_durable.checkpoint import Savers
from langgraph_durable.context import PassState, RunContext
from langgraph_durable.context.threads import Threads
from langgraph_durable.errors import (
    DurableError,
    PassEnded,
    SchemaMismatch,
    StoreError,
    UnknownAgent,
)
from langgraph_durable.journal import JournalWriter, RunJournal
from langgraph_durable.modes import Passage, drive, failure
from langgraph_durable.runs import Broke, Outcome, Retried, Retry, Status
from langgraph_durable.store import Claim, RunStore, Served, Wakeups

log = logging.getLogger(__name__)
T = TypeVar("T")

POLL_SECONDS = 1.0
SWEEP_SECONDS = 2.0
ANNOUNCE_SECONDS = 5.0


def default_name() -> str:
    """Return a worker's name: the host, the process, and a part that no other life shares."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class Worker:
    """Runs what was submitted.

    Args:
        durable: the registry and the store.
        name: how it is called in leases and events; unique by default.
        lease_seconds: for how long a claim holds without a sign of life. A dead worker's
            runs are taken over after this time; heartbeats come every third of it.
        concurrency: how many runs at once.
        adopt_unknown: fail runs of an agent that no live worker has, with a message
            (False: leave them in the queue).
        drain_seconds: how long steps in flight may take to end after a stop.
    """

    def __init__(
        self,
        durable: Durable,
        name: str | None = None,
        *,
        lease_seconds: float = 60.0,
        concurrency: int = 8,
        adopt_unknown: bool = True,
        drain_seconds: float = 30.0,
    ) -> None:
        if lease_seconds <= 0 or concurrency < 1 or drain_seconds < 0:
            raise ValueError("Worker needs lease_seconds > 0, concurrency >= 1, drain_seconds >= 0")
        self.durable = durable
        self.name = name or default_name()
        self.lease_seconds = lease_seconds
        self.concurrency = concurrency
        self.drain_seconds = drain_seconds
        self._adopts = adopt_unknown
        self._stopping = False  # claim nothing more
        self._told = False  # by stop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event | None = None
        self._hurried: asyncio.Event | None = None

    # --- from outside ------------------------------------------------------------------

    def run_once(self) -> str | None:
        """Claim one run, drive it until it ends or waits, settle it; returns its id.

        Returns None when there was nothing to do.
        """
        _refuse_loop("run_once")
        return _run(self._once())

    def run_until_idle(self, limit: int = 10_000) -> int:
        """Run one after another until nothing can be claimed; returns how many passes ran."""
        _refuse_loop("run_until_idle")
        return _run(self._until_idle(limit))

    def serve(self) -> bool:
        """Claim and run until SIGTERM or SIGINT; then hand over and return.

        At a stop the worker claims nothing more, lets steps in flight end, and hands its
        runs back at their next step boundary, so that another worker has them at once.
        A second signal doesn't wait for them.

        Returns whether all code of runs has ended. If not, a thread that nothing can stop
        still works, and the process should leave by `os._exit`.

        Raises:
            StoreError: the database can't be opened.
            SchemaMismatch: its schema isn't this code's.
        """
        _refuse_loop("serve")
        return _run(self._serve())

    def stop(self) -> None:
        """Tell `serve` to hand over and return; any thread or signal handler may call.

        Told a second time, it doesn't wait for steps in flight: their leases run out.
        """
        if self._told:
            self._set(self._hurried)
        self._told = self._stopping = True
        self._set(self._woken)

    # --- the loop ----------------------------------------------------------------------

    async def _once(self) -> str | None:
        async with _Engine(self) as engine:
            return await self._next(engine)

    async def _until_idle(self, limit: int) -> int:
        async with _Engine(self) as engine:
            for count in range(limit):
                if await self._next(engine) is None:
                    return count
        return limit

    async def _next(self, engine: _Engine) -> str | None:
        await self._sweep()
        taken = await self._take(engine)
        if taken is None:
            return None
        await engine.pass_over(taken)
        return taken.claim.run.id

    async def _serve(self) -> bool:
        await asyncio.to_thread(self.durable.store.check_schema)
        self._loop = asyncio.get_running_loop()
        self._woken, self._hurried = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            _on_signal(self._loop, number, self.stop)
        async with _Engine(self) as engine:
            engine.listen(self._ring)
            chores = asyncio.create_task(self._chores())
            try:
                await self._work(engine, self._woken)
            finally:
                chores.cancel()
                await engine.drain(self._hurried)
                await asyncio.to_thread(self._depart)
        log.info("worker %s has handed over", self.name)
        return not engine.threads.busy

    async def _work(self, engine: _Engine, woken: asyncio.Event) -> None:
        while not self._stopping:
            woken.clear()
            if engine.running >= self.concurrency:
                await woken.wait()
                continue
            taken = await self._try_to_take(engine)
            if taken is not None:
                engine.start(taken, self._ring)
                continue
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await woken.wait()
            except TimeoutError:
                pass  # nobody rang: look again

    def _ring(self) -> None:
        self._set(self._woken)

    def _set(self, event: asyncio.Event | None) -> None:
        if self._loop is not None and event is not None:
            try:
                self._loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                log.debug("worker %s: its loop has ended", self.name)

    async def _try_to_take(self, engine: _Engine) -> _Taken | None:
        try:
            return await self._take(engine)
        except StoreError as error:
            log.warning("worker %s can't claim, trying on: %s", self.name, error)
        except Exception:
            log.exception("worker %s can't claim, trying on", self.name)
        return None

    async def _take(self, engine: _Engine) -> _Taken | None:
        served = Served(
            [(a.name, a.version) for a in self.durable.agents],
            self._adopts,
            last_chances=not engine.has_suspect,
        )
        return await asyncio.to_thread(engine.take, self.name, served)

    async def _chores(self) -> None:
        """Sweep, say that we live, and look whether the schema is still ours."""
        announced = 0.0
        loop = asyncio.get_running_loop()
        while True:
            try:
                if loop.time() >= announced:
                    await asyncio.to_thread(self._announce)
                    announced = loop.time() + ANNOUNCE_SECONDS
                await self._sweep()
            except SchemaMismatch as error:
                log.error("worker %s claims nothing more: %s", self.name, error)  # noqa: TRY400
                self._stopping = True
                self._ring()
                return
            except StoreError as error:
                log.warning("worker %s can't sweep, trying on: %s", self.name, error)
            except Exception:
                log.exception("worker %s can't sweep, trying on", self.name)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _sweep(self) -> None:
        await asyncio.to_thread(self.durable.store.sweep)

    def _announce(self) -> None:
        self.durable.store.check_schema()
        names = {agent.name for agent in self.durable.agents}
        self.durable.store.announce(self.name, names)

    def _depart(self) -> None:
        try:
            self.durable.store.depart(self.name)
        except StoreError as error:
            log.warning("worker %s could not sign off: %s", self.name, error)


@dataclass(frozen=True, slots=True)
class _Taken:
    """A claimed run, whose lease is kept from here on."""

    claim: Claim
    journal: RunJournal
    state: PassState = field(default_factory=PassState)

    @property
    def is_suspect(self) -> bool:
        """Whether the run's last chance has come, and nothing speaks for it yet.

        A run that kills its workers takes those beside it down each time. So a worker
        drives one such run at a time: then the death of a worker tells which it was.
        """
        run = self.claim.run
        return 0 < run.attempts == run.max_attempts - 1 and not self.journal.progressed


class _Engine:
    """What a worker has open while it works: journal, checkpoints, passes under way."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._durable = worker.durable
        self._loop = asyncio.get_running_loop()
        self._writer = JournalWriter(worker.durable.store, worker.lease_seconds)
        self._savers: Savers | None = None
        self._savers_lock = asyncio.Lock()
        self._wakeups: Wakeups | None = None
        self._passes: dict[asyncio.Task[None], _Taken] = {}
        self.threads = _threads(worker.concurrency)

    async def __aenter__(self) -> _Engine:
        self._loop.set_default_executor(self.threads)
        self._writer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._wakeups is not None:
            self._wakeups.stop()
        await asyncio.to_thread(self._writer.stop)
        if self._savers is not None:
            await self._savers.aclose()
        await self._durable.services.tools.aclose()
        # the loop waits for its executor as it closes, and sync code that hangs never ends
        self._loop.set_default_executor(ThreadPoolExecutor(max_workers=1))
        self.threads.shutdown(wait=False, cancel_futures=True)

    @property
    def running(self) -> int:
        return len(self._passes)

    @property
    def has_suspect(self) -> bool:
        """Whether a run under way is on its last chance."""
        return any(taken.is_suspect for taken in self._passes.values())

    def listen(self, ring: Any) -> None:
        """Hear of queued runs and of cancels at once."""

        def rung() -> None:
            ring()
            self._writer.ring()

        self._wakeups = Wakeups(self._durable.store.engine, rung)
        self._wakeups.start()

    def take(self, worker: str, served: Served) -> _Taken | None:
        """Claim a run, load it and begin to keep its lease.

        All in the calling thread: the loop may be blocked by another run's code for longer
        than the lease, and must not be what the lease waits for.
        """
        store = self._durable.store
        claim = store.claim(worker, self._worker.lease_seconds, served)
        if claim is None:
            return None
        start = store.load(claim.lease, asked=claim.asked > 0)
        limit = claim.run.deadline_seconds
        return _Taken(claim, self._writer.follow(claim.lease, start, limit, self._loop))

    def start(self, taken: _Taken, ended: Any) -> None:
        """Drive a claimed run in the background."""
        task = asyncio.create_task(self._guarded(taken), name=f"run {taken.claim.run.id}")
        self._passes[task] = taken

        def forget(done: asyncio.Task[None]) -> None:
            self._passes.pop(done, None)
            ended()

        task.add_done_callback(forget)

    async def _guarded(self, taken: _Taken) -> None:
        run_id = taken.claim.run.id
        try:
            await self.pass_over(taken)
        except StoreError as error:  # the lease runs out, and another worker takes the run over
            log.error("run %s could not be settled: %s", run_id, error)  # noqa: TRY400
        except Exception:
            log.exception("run %s could not be driven or settled", run_id)

    async def drain(self, hurried: asyncio.Event) -> None:
        """Hand every run back at its next boundary; wait for steps in flight, bounded."""
        for taken in self._passes.values():
            taken.state.drain()
        hurry = asyncio.create_task(hurried.wait())
        until = self._loop.time() + self._worker.drain_seconds
        while self._passes and not hurry.done() and self._loop.time() < until:
            await asyncio.wait(
                {*self._passes, hurry},
                timeout=until - self._loop.time(),
                return_when=asyncio.FIRST_COMPLETED,
            )
        hurry.cancel()
        for task in self._passes:
            log.warning(
                "%s did not come to a boundary in time; its lease runs out", task.get_name()
            )
            task.cancel()

    # --- one pass ----------------------------------------------------------------------

    async def pass_over(self, taken: _Taken) -> None:
        """Drive, settle. What can't be settled is left to the lease."""
        claim, journal, state = taken.claim, taken.journal, taken.state
        if claim.run.status is Status.CANCELLING:
            state.cancel()
        try:
            outcome = await self._drive(claim, journal, state)
            if outcome is not None:
                await self._settle(claim, outcome, state)
        except PassEnded as lost:
            log.warning("run %s: hands off, %s", claim.run.id, lost)
        finally:
            self._writer.unfollow(claim.lease)
            if not journal.lost.done():
                journal.lost.cancel()

    async def _drive(self, claim: Claim, journal: RunJournal, state: PassState) -> Outcome | None:
        if state.cancelling:
            return Broke({})  # the store settles a cancelling run as cancelled
        try:
            agent = self._durable.find(claim.run.agent, claim.run.version)
        except UnknownAgent as error:
            return Broke(failure(error))
        services = replace(self._durable.services, note=_noter(claim, state))
        ctx = RunContext(claim.run, claim.lease, journal, services, state)
        passage = Passage(list(journal.questions()), await self._open_savers(agent))
        return await self._watched(agent, ctx, passage, journal)

    async def _watched(
        self, agent: Agent, ctx: RunContext, passage: Passage, journal: RunJournal
    ) -> Outcome | None:
        """Drive, and stop at once when the lease is lost, the run cancelled or its time over."""
        driving = asyncio.ensure_future(drive(agent, ctx, passage))
        cancelled = asyncio.ensure_future(journal.cancelling.wait())
        try:
            ends: set[asyncio.Future[Any]] = {driving, journal.lost, cancelled}
            await asyncio.wait(
                ends,
                timeout=agent.deadline_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if driving.done():
                return driving.result()
            if journal.lost.done():
                ctx.state.lost = _lost(journal)
                ctx.state.abandon()
                return await _ended(driving, ctx)
            if cancelled.done():
                ctx.state.cancel()
                return await _ended(driving, ctx)
            await self._end_overdue(driving, ctx)
            return Retried(_overdue(agent), journal.progressed)
        finally:
            cancelled.cancel()

    async def _end_overdue(self, driving: asyncio.Future[Outcome], ctx: RunContext) -> None:
        """End a pass whose time is over, while the lease, which isn't extended now, still holds.

        What is in flight may be what hangs, so it is not waited for without end.
        """
        ctx.state.drain()
        ending = asyncio.ensure_future(_ended(driving, ctx))
        await asyncio.wait({ending}, timeout=self._worker.lease_seconds / 3)
        if ending.done():
            await ending
            return
        ctx.state.abandon()
        ending.cancel()
        log.warning("run %s: its time is over, and code of it still runs", ctx.run_id)

    async def _settle(self, claim: Claim, outcome: Outcome, state: PassState) -> None:
        agent = self._durable.find(claim.run.agent, claim.run.version) if self._has(claim) else None
        if state.notes:  # before the run is given up: then the audit takes no more from us
            await asyncio.to_thread(_write_notes, self._durable.store, claim, state)
        settle = self._durable.store.settle
        status = await asyncio.to_thread(
            settle,
            claim.lease,
            outcome,
            state.replayed,
            agent.retry if agent else Retry(),
            self._durable.services.chance.random(),
        )
        log.info("run %s is %s", claim.run.id, status.value)

    def _has(self, claim: Claim) -> bool:
        pairs = {(a.name, a.version) for a in self._durable.agents}
        return (claim.run.agent, claim.run.version) in pairs

    async def _open_savers(self, agent: Agent) -> Savers | None:
        if agent.mode != "graph":
            return None
        async with self._savers_lock:
            if self._savers is None:
                savers = self._durable.savers()
                await savers.open()
                self._savers = savers
        return self._savers


def _noter(claim: Claim, state: PassState) -> Any:
    """Gather the warnings of a pass for the audit, without holding the pass up."""

    def note(type_: str, data: Mapping[str, Any]) -> None:
        log.warning("run %s: %s %s", claim.run.id, type_, dict(data))
        state.notes.append((type_, data))

    return note


def _write_notes(store: RunStore, claim: Claim, state: PassState) -> None:
    try:
        for type_, data in state.notes:
            store.note(claim.lease, claim.run.tenant, type_, data)
    except DurableError:
        log.exception("events of run %s could not be written", claim.run.id)


def _threads(concurrency: int) -> Threads:
    """Enough that sync code of runs never keeps the worker from claiming and settling."""
    return Threads(max_workers=64 + 16 * concurrency, thread_name_prefix="durable-run")


def _lost(journal: RunJournal) -> PassEnded:
    error = journal.lost.exception()
    if isinstance(error, PassEnded):
        return error
    raise DurableError(f"run {journal.lease.run_id}: the lease is lost") from error


async def _ended(driving: asyncio.Future[Outcome], ctx: RunContext) -> Outcome | None:
    """Cancel the graph, and wait until it has unwound and its steps have landed.

    A node that swallows the cancellation is cancelled again: LangGraph would carry on with
    the next one.
    """
    while not driving.done():
        driving.cancel()
        await asyncio.wait({driving}, timeout=1.0)
    await ctx.state.land()
    if ctx.state.lost is not None:
        raise ctx.state.lost
    if driving.cancelled() or driving.exception() is not None:
        return Broke({}) if ctx.state.cancelling else None
    return driving.result()


def _overdue(agent: Agent) -> Mapping[str, Any]:
    said = f"one pass took longer than the limit of {agent.deadline_seconds:g} s"
    return {"type": "DeadlineExceeded", "reason": "deadline", "message": said}


def _on_signal(loop: asyncio.AbstractEventLoop, number: int, act: Any) -> None:
    try:
        loop.add_signal_handler(number, act)
    except (NotImplementedError, RuntimeError, ValueError):
        log.debug("signal %s can't be handled outside of the main thread", number)


def _refuse_loop(method: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise DurableError(
        f"Worker.{method}() runs an event loop of its own; in async code use "
        f"await asyncio.to_thread(worker.{method})"
    )


def _run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, but let no run's `sys.exit()` end the worker.

    asyncio stops the loop for a SystemExit in any task, when that task already has it as its
    result. So the loop goes on, and the run fails by it.
    """
    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(main)
        while True:
            try:
                return runner.get_loop().run_until_complete(task)
            except SystemExit:
                if task.done():
                    raise
                log.warning("code of a run called sys.exit(): the worker goes on")
