"""S-61: ten tenants at once. Who waits, and who works long, keeps nobody from starting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from shop import AGENT, Shop, succeeded

from langgraph_durable import Decision, Durable, RunContext, Status, Worker
from langgraph_durable.errors import StoreError
from langgraph_durable.journal import JournalWriter, RunJournal
from langgraph_durable.runs import Budget, Lease
from langgraph_durable.store import Served
from langgraph_durable.testing import FakeClock
from langgraph_durable.worker.engine import Engine

MINUTES = 60.0
HOURS = 3600.0


class Alarms(FakeClock):
    """A clock that wakes the code which waits for a time of it."""

    def __init__(self) -> None:
        super().__init__()
        self._set: list[tuple[Any, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def reach(self, time: Any) -> None:
        """Return when it is that late."""
        rung = asyncio.Event()
        self._set.append((time, asyncio.get_running_loop(), rung))
        if time > self.now():
            await rung.wait()

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        for time, loop, rung in self._set:
            if time <= self.now():
                loop.call_soon_threadsafe(rung.set)
        self._set = [alarm for alarm in self._set if alarm[0] > self.now()]


@contextmanager
def serving(durable: Durable, **options: Any) -> Iterator[Worker]:
    worker = Worker(durable, lease_seconds=10 * HOURS, **options)
    thread = threading.Thread(target=worker.serve)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(30)
    assert not thread.is_alive()


def register(durable: Durable, clock: Alarms) -> None:
    @durable.agent("long")
    async def long(ctx: RunContext, _given: Any) -> str:
        began = await ctx.now("began")
        await clock.reach(began + timedelta(minutes=20))
        return "long"

    @durable.agent("asks")
    async def asks(ctx: RunContext, _given: Any) -> Any:
        return await ctx.ask("ok", "Is it right?")

    @durable.agent("waits")
    async def waits(ctx: RunContext, _given: Any) -> Any:
        return await ctx.wait_for("payment", "paid", 6 * HOURS)

    @durable.agent("short")
    async def short(ctx: RunContext, given: Any) -> Any:
        return await ctx.once("echo", lambda: given)


@pytest.mark.promise("S-61")
def test_short_runs_start_beside_those_that_wait_for_hours_or_work_long(sqlite_url: str):
    clock = Alarms()
    durable = Durable(sqlite_url, clock=clock)
    register(durable, clock)
    tenants = [f"t{i}" for i in range(10)]

    def submit(agent: str, tenant: str, given: Any = None) -> str:
        clock.advance(0.001)  # each a moment after the last one
        return durable.submit(agent, given, tenant=tenant)

    asked = [submit("asks", tenant) for tenant in tenants for _ in range(3)]
    waiting = [submit("waits", tenant) for tenant in tenants for _ in range(3)]
    with serving(durable, concurrency=6, tenant_limit=2):
        for run_id in asked:
            assert durable.wait(run_id).status is Status.WAITING_HUMAN
        until(durable, waiting, Status.SLEEPING)
        # one tenant's crowd of 20-minute jobs, and then everybody's short runs
        crowd = [submit("long", "t0") for _ in range(6)]
        begun(durable, crowd[:2])
        short = [submit("short", tenant, n) for n, tenant in enumerate(tenants[1:])]
        assert [succeeded(durable.wait(run_id)) for run_id in short] == list(range(9))
        assert [durable.get(run_id).status for run_id in crowd[2:]] == [Status.QUEUED] * 4
        for done in range(2, 7, 2):
            clock.advance(20 * MINUTES)
            for run_id in crowd[:done]:
                run = durable.wait(run_id)
                assert (succeeded(run), run.epoch) == ("long", 1)
            begun(durable, crowd[done : done + 2])
        clock.advance(4 * HOURS)
        for question in durable.questions(limit=1_000):
            durable.decide(question.id, Decision.respond("mei", "yes"))
        for number, run_id in enumerate(waiting):
            durable.send(run_id, "paid", number)
        assert {succeeded(durable.wait(run_id)) for run_id in asked} == {"yes"}
        assert [succeeded(ended(durable, r)) for r in waiting] == list(range(30))
    assert {durable.get(run_id).attempts for run_id in [*asked, *waiting, *crowd]} == {0}


def until(durable: Durable, run_ids: list[str], status: Status) -> None:
    for run_id in run_ids:
        while durable.get(run_id).status is not status:
            durable.wait(run_id, timeout_seconds=0.02)


def begun(durable: Durable, run_ids: list[str]) -> None:
    for run_id in run_ids:
        while not durable.journal(run_id):
            durable.wait(run_id, timeout_seconds=0.02)


def ended(durable: Durable, run_id: str) -> Any:
    while not (run := durable.wait(run_id)).status.is_final:
        pass
    return run


def test_a_crowd_without_a_limit_is_served_first(shop: Shop):
    """What the limit is for: by default runs are claimed by priority, and then by age."""

    async def echo(ctx: RunContext, given: Any) -> Any:
        return await ctx.once("echo", lambda: given)

    shop.deploy(echo)
    for n in range(3):
        shop.submit(n, tenant="crowd")
    late = shop.submit("late", tenant="other")
    first = Worker(shop.durable).run_once()
    assert first != late


def test_a_run_that_can_not_be_loaded_keeps_no_other_from_being_driven_and_is_not_kept(
    any_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are claimed many at a time; a lease that is kept and not driven would never end."""

    async def quick(_ctx: RunContext, _: Any) -> None: ...

    budget = Budget(tokens=1, window_seconds=MINUTES)
    durable = any_shop.deploy(quick, budgets={"t1": budget, "t3": budget})
    run_ids = [durable.submit(AGENT, {}, tenant=f"t{n}") for n in range(5)]
    served = Served([(agent.name, agent.version) for agent in durable.agents])
    followed: list[str] = []
    follow = JournalWriter.follow

    def noting(self: JournalWriter, lease: Lease, *rest: Any) -> RunJournal:
        followed.append(lease.run_id)
        return follow(self, lease, *rest)

    def broken(tenant: str, *_: Any) -> list[Any]:
        raise StoreError("away") if tenant == "t3" else ValueError("what is this?")

    monkeypatch.setattr(JournalWriter, "follow", noting)
    monkeypatch.setattr(durable.store, "used_by_tenant", broken)

    async def take() -> list[str]:
        async with Engine(durable, 60.0, 1.0) as engine:
            taken = await asyncio.to_thread(engine.take, "w", served, 8)
            return [one.claim.run.id for one in taken]

    # behind the one for which the database was away nobody waits for it once more
    assert asyncio.run(take()) == followed == [run_ids[0], run_ids[2]]
    assert {durable.get(run_id).status for run_id in run_ids} == {Status.RUNNING}
