"""The engine of a worker: what it has open, and one pass over one run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph_durable.agents import Agent
from langgraph_durable.app import Durable
from langgraph_durable.checkpoint import Savers
from langgraph_durable.context import PassState, RunContext, Services
from langgraph_durable.context.threads import Threads
from langgraph_durable.errors import (
    DurableError,
    NoSuchAgent,
    PassEnded,
    StoreError,
    UnknownAgent,
)
from langgraph_durable.journal import JournalWriter, RunJournal
from langgraph_durable.modes import Passage, drive, failure
from langgraph_durable.modes.unwind import unwind
from langgraph_durable.runs import Broke, Done, Outcome, Retried, Retry, Status
from langgraph_durable.store import Claim, Journaled, RunStore, Served, Wakeups
from langgraph_durable.worker.services import services_of

log = logging.getLogger(__name__)

MAX_THREADS = 10_000  # only as many are started as are in use at once


@dataclass(frozen=True, slots=True)
class Taken:
    """A claimed run, whose lease is kept from here on."""

    claim: Claim
    journal: RunJournal
    services: Services
    state: PassState = field(default_factory=PassState)

    @property
    def is_suspect(self) -> bool:
        """Whether the run's last chance has come, and nothing speaks for it yet.

        A run that kills its workers takes those beside it down each time. So a worker
        drives one such run at a time: then the death of a worker tells which it was.
        """
        run = self.claim.run
        return 0 < run.attempts == run.max_attempts - 1 and not self.journal.progressed


class Engine:
    """What a worker has open while it works: journal, checkpoints, passes under way."""

    def __init__(self, durable: Durable, lease_seconds: float, drain_seconds: float) -> None:
        self._durable = durable
        self._lease_seconds, self._drain_seconds = lease_seconds, drain_seconds
        self._loop = asyncio.get_running_loop()
        self._writer = JournalWriter(durable.store, lease_seconds)
        self._savers: Savers | None = None
        self._savers_lock = asyncio.Lock()
        self._wakeups: Wakeups | None = None
        self._passes: dict[asyncio.Task[None], Taken] = {}
        self.threads = _threads()

    async def __aenter__(self) -> Engine:
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

    def take(self, worker: str, served: Served, limit: int = 1) -> list[Taken]:
        """Claim up to `limit` runs, load them and begin to keep their leases.

        All in the calling thread: the loop may be blocked by another run's code for longer
        than the lease, and must not be what the lease waits for. A run that can't be loaded is
        left to its lease, and keeps no other from being driven.

        Raises:
            Exception: what kept every one of them from being loaded.
        """
        claims = self._durable.store.claim_some(worker, self._lease_seconds, served, limit)
        taken: list[Taken] = []
        failed: Exception | None = None
        for claim in claims:
            try:
                taken.append(self._taken(claim))
            except Exception as error:
                failed = error
                log.warning("run %s can't be loaded; its lease runs out: %s", claim.run.id, error)
                if isinstance(error, StoreError):
                    break  # each of the others would wait as long for the database
        if failed is not None and not taken:
            raise failed
        return taken

    def _taken(self, claim: Claim) -> Taken:
        store = self._durable.store
        tenant = claim.run.tenant if claim.has_rules else None
        if claim.run.epoch == 1 and tenant is None:
            start = Journaled([], [], [])  # nobody had it before: there is nothing to load
        else:
            start = store.load(claim.lease, asked=claim.asked > 0, rules_of=tenant)
        services = services_of(self._durable, claim.run, start.rules)
        limit = claim.run.deadline_seconds
        # last: a lease is kept until somebody unfollows it, and only a pass does that
        journal = self._writer.follow(claim.lease, start, limit, self._loop)
        return Taken(claim, journal, services)

    def start(self, taken: Taken, ended: Any) -> None:
        """Drive a claimed run in the background."""
        task = asyncio.create_task(self._guarded(taken), name=f"run {taken.claim.run.id}")
        self._passes[task] = taken

        def forget(done: asyncio.Task[None]) -> None:
            self._passes.pop(done, None)
            ended()

        task.add_done_callback(forget)

    async def _guarded(self, taken: Taken) -> None:
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
        until = self._loop.time() + self._drain_seconds
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

    async def pass_over(self, taken: Taken) -> None:
        """Drive, settle. What can't be settled is left to the lease."""
        claim, journal, state = taken.claim, taken.journal, taken.state
        state.unwinding = claim.run.unwinding is not None
        if claim.run.status is Status.CANCELLING and not state.unwinding:
            state.cancel()
        try:
            outcome = await self._drive(taken)
            if outcome is not None:
                await self._settle(taken, outcome)
        except PassEnded as lost:
            log.warning("run %s: hands off, %s", claim.run.id, lost)
        finally:
            self._writer.unfollow(claim.lease)
            state.let_go()
            if not journal.lost.done():
                journal.lost.cancel()

    async def _drive(self, taken: Taken) -> Outcome | None:
        claim, journal, state = taken.claim, taken.journal, taken.state
        if state.cancelling:
            return Broke({})  # the store settles a cancelling run as cancelled
        if state.unwinding:  # it needs the tools, not the agent; and a budget stops no undoing
            services = replace(taken.services, note=_noter(claim, state), allowances=())
            ctx = RunContext(claim.run, claim.lease, journal, services, state)
            return await self._watched(unwind(ctx), claim.run.deadline_seconds, ctx, journal)
        try:
            agent = self._durable.find(claim.run.agent, claim.run.version)
        except UnknownAgent:
            return Broke(failure(NoSuchAgent(claim.run.agent, claim.lease.worker)))
        services = replace(taken.services, note=_noter(claim, state))
        ctx = RunContext(claim.run, claim.lease, journal, services, state)
        passage = Passage(list(journal.questions()), await self._open_savers(agent))
        driving = drive(agent, ctx, passage)
        return await self._watched(driving, agent.deadline_seconds, ctx, journal)

    async def _watched(
        self,
        work: Coroutine[Any, Any, Outcome],
        limit_seconds: float | None,
        ctx: RunContext,
        journal: RunJournal,
    ) -> Outcome | None:
        """Drive, and stop at once when the lease is lost, the run cancelled or its time over."""
        driving = asyncio.ensure_future(work)
        ends: set[asyncio.Future[Any]] = {driving, journal.lost}
        if not ctx.state.unwinding:  # such a run is being cancelled, or beyond it
            ends.add(journal.cancelling)
        await asyncio.wait(
            ends,
            timeout=limit_seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if driving.done():
            return driving.result()
        if journal.lost.done():
            ctx.state.lost = _lost(journal)
            ctx.state.abandon()
            return await _ended(driving, ctx)
        if journal.cancelling in ends and journal.cancelling.done():
            ctx.state.cancel()
            return await _ended(driving, ctx)
        await self._end_overdue(driving, ctx)
        return Retried(_overdue(limit_seconds), journal.progressed)

    async def _end_overdue(self, driving: asyncio.Future[Outcome], ctx: RunContext) -> None:
        """End a pass whose time is over, while the lease, which isn't extended now, still holds.

        What is in flight may be what hangs, so it is not waited for without end.
        """
        ctx.state.drain()
        ending = asyncio.ensure_future(_ended(driving, ctx))
        await asyncio.wait({ending}, timeout=self._lease_seconds / 3)
        if ending.done():
            await ending
            return
        ctx.state.abandon()
        ending.cancel()
        log.warning("run %s: its time is over, and code of it still runs", ctx.run_id)

    async def _settle(self, taken: Taken, outcome: Outcome) -> None:
        claim, state = taken.claim, taken.state
        if await _ended_with_others(taken, outcome):
            return
        agent = self._durable.find(claim.run.agent, claim.run.version) if self._has(claim) else None
        if state.notes:  # before the run is given up: then the audit takes no more from us
            await asyncio.to_thread(_write_notes, self._durable.store, claim, state)
        backoff = agent.retry if agent else Retry()

        def settle(how: Outcome) -> Status:
            chance = self._durable.services.chance.random()
            return self._durable.store.settle(claim.lease, how, state.replayed, backoff, chance)

        try:
            status = await asyncio.to_thread(settle, outcome)
        except (StoreError, PassEnded):
            raise
        except Exception as error:  # the database refuses what was said: no attempt cures it
            log.exception("run %s: how it ended can't be stored", claim.run.id)
            status = await asyncio.to_thread(settle, Broke(failure(error)))
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
        data = state.secrets.hide_plain(data) if state.secrets else data
        log.warning("run %s: %s %s", claim.run.id, type_, dict(data))
        state.notes.append((type_, data))

    return note


def _write_notes(store: RunStore, claim: Claim, state: PassState) -> None:
    try:
        for type_, data in state.notes:
            store.note(claim.lease, claim.run.tenant, type_, data)
    except DurableError:
        log.exception("events of run %s could not be written", claim.run.id)


def _threads() -> Threads:
    """A thread for each call that wants one.

    A sync node holds its thread while it waits for a sync tool, which needs another: with a
    bound that nodes alone can reach, they would wait for ever, their leases kept. Who wants
    fewer branches at once says so to LangGraph (`max_concurrency`).
    """
    return Threads(max_workers=MAX_THREADS, thread_name_prefix="durable-run")


async def _ended_with_others(taken: Taken, outcome: Outcome) -> bool:
    """Settle the common end, with that of other runs in one commit, if it is one."""
    if not isinstance(outcome, Done) or taken.state.notes:
        return False
    return await taken.journal.finish(outcome.output, taken.state.replayed)


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


def _overdue(limit_seconds: float | None) -> Mapping[str, Any]:
    said = f"one pass took longer than the limit of {limit_seconds:g} s"
    return {"type": "DeadlineExceeded", "reason": "deadline", "message": said}
