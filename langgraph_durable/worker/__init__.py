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
from collections.abc import Coroutine
from typing import Any, TypeVar

from langgraph_durable.app import Durable
from langgraph_durable.errors import BadInput, DurableError, SchemaMismatch, StoreError
from langgraph_durable.store import Served
from langgraph_durable.worker.engine import Engine, Taken
from langgraph_durable.worker.heap import searched_seldom

__all__ = ["Worker", "default_name"]

log = logging.getLogger(__name__)
T = TypeVar("T")

POLL_SECONDS = 1.5
CLAIM_SIZES = (50, 20, 8, 3, 1)
SWEEP_SECONDS = 2.0
ANNOUNCE_SECONDS = 8.0
MAX_SECONDS = 86_400


def default_name() -> str:
    """Return a worker's name: the host, the process, and a part that no other life shares."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _check_limits(
    lease_seconds: float, concurrency: int, drain_seconds: float, tenant_limit: int | None
) -> None:
    # written so that nan, which is neither above nor below, is refused too
    if not 0 < lease_seconds <= MAX_SECONDS:
        raise BadInput(
            f"lease_seconds is above 0, at most {MAX_SECONDS:,} (a day), not {lease_seconds!r}"
        )
    counts = {"concurrency": concurrency}
    if tenant_limit is not None:
        counts["tenant_limit"] = tenant_limit
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise BadInput(f"{name} is a whole number, 1 or more, not {count!r}")
    if not 0 <= drain_seconds <= MAX_SECONDS:
        raise BadInput(
            f"drain_seconds is 0 or more, at most {MAX_SECONDS:,} (a day), not {drain_seconds!r}"
        )


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
        tenant_limit: how many runs of one tenant may run at once, on all workers together, as
            far as this one claims; by default any number. Runs are claimed by priority and
            age, so without it one tenant's crowd makes the others wait.

    Raises:
        BadInput: a time or number is outside its limits.
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
        tenant_limit: int | None = None,
    ) -> None:
        _check_limits(lease_seconds, concurrency, drain_seconds, tenant_limit)
        self.durable = durable
        self.name = name or default_name()
        self.lease_seconds = lease_seconds
        self.concurrency = concurrency
        self.drain_seconds = drain_seconds
        self.tenant_limit = tenant_limit
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

        While a worker runs, Python searches the process for cyclic garbage more seldom (`heap`).

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
        async with self._engine() as engine:
            return await self._next(engine)

    async def _until_idle(self, limit: int) -> int:
        async with self._engine() as engine:
            for count in range(limit):
                if await self._next(engine) is None:
                    return count
        return limit

    def _engine(self) -> Engine:
        return Engine(self.durable, self.lease_seconds, self.drain_seconds)

    async def _next(self, engine: Engine) -> str | None:
        await self._sweep()
        if self.durable.relay:
            await asyncio.to_thread(self.durable.relay.deliver)
        for taken in await self._take(engine, 1):
            await engine.pass_over(taken)
            return taken.claim.run.id
        return None

    async def _serve(self) -> bool:
        await asyncio.to_thread(self.durable.store.check_schema)
        self._loop = asyncio.get_running_loop()
        self._woken, self._hurried = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            _on_signal(self._loop, number, self.stop)
        async with self._engine() as engine:
            engine.listen(self._ring)
            chores = [asyncio.create_task(self._chores())]
            if self.durable.relay:
                chores.append(asyncio.create_task(self._tell()))
            try:
                await self._work(engine, self._woken)
            finally:
                for chore in chores:
                    chore.cancel()
                await engine.drain(self._hurried)
                await asyncio.to_thread(self._depart)
        log.info("worker %s has handed over", self.name)
        return not engine.threads.busy

    async def _work(self, engine: Engine, woken: asyncio.Event) -> None:
        while not self._stopping:
            woken.clear()
            if engine.running >= self.concurrency:
                await woken.wait()
                continue
            some = await self._try_to_take(engine)
            for taken in some:
                engine.start(taken, self._ring)
            if some:
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

    async def _try_to_take(self, engine: Engine) -> list[Taken]:
        try:
            return await self._take(engine, self.concurrency - engine.running)
        except StoreError as error:
            log.warning("worker %s can't claim, trying on: %s", self.name, error)
        except Exception:
            log.exception("worker %s can't claim, trying on", self.name)
        return []

    async def _take(self, engine: Engine, limit: int) -> list[Taken]:
        served = Served(
            [(a.name, a.version) for a in self.durable.agents],
            self._adopts,
            last_chances=not engine.has_suspect,
            tenant_limit=self.tenant_limit,
        )
        # few sizes: each has a statement that is built once
        limit = next(size for size in CLAIM_SIZES if size <= limit)
        return await asyncio.to_thread(engine.take, self.name, served, limit)

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

    async def _tell(self) -> None:
        """Deliver messages, beside the other chores: a receiver may be slow."""
        while True:
            try:
                await asyncio.to_thread(self.durable.relay.deliver)
            except StoreError as error:
                log.warning("worker %s can't deliver, trying on: %s", self.name, error)
            except Exception:
                log.exception("worker %s can't deliver, trying on", self.name)
            await asyncio.sleep(SWEEP_SECONDS)

    def _announce(self) -> None:
        self.durable.store.check_schema()
        known = {(agent.name, agent.version) for agent in self.durable.agents}
        self.durable.store.announce(self.name, known)

    def _depart(self) -> None:
        try:
            self.durable.store.depart(self.name)
        except StoreError as error:
            log.warning("worker %s could not sign off: %s", self.name, error)


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
    with searched_seldom(), asyncio.Runner() as runner:
        task = runner.get_loop().create_task(main)
        while True:
            try:
                return runner.get_loop().run_until_complete(task)
            except SystemExit:
                if task.done():
                    raise
                log.warning("code of a run called sys.exit(): the worker goes on")
