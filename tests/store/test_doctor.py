"""What `doctor` tells: runs that nobody can take, stuck leases, overdue questions and timers, threads."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from desk import Desk, question, step

from langgraph_durable.runs import Asked, Done, Slept
from langgraph_durable.store import schema


def told(desk: Desk) -> list[tuple[str, str]]:
    return [(complaint.kind, complaint.run_id) for complaint in desk.store.complaints()]


def test_a_desk_in_order_has_nothing_to_tell(desk: Desk):
    desk.store.announce("w1", {("a", "1")})
    desk.store.settle(desk.started("w1").lease, Slept(None, ("paid",)))
    desk.store.settle(desk.started("w1").lease, Asked((question(expires_in_seconds=3600),)))
    lease = desk.started("w1").lease
    desk.store.settle(lease, Done("1"))
    desk.started("w1")
    desk.submit()
    assert told(desk) == []


def test_a_run_that_no_live_worker_can_take(desk: Desk):
    run = desk.submit(version="2")
    desk.store.announce("w1", {("a", "1")})
    (found,) = desk.store.complaints()
    assert (found.kind, found.run_id) == ("no worker", run.id)
    assert "agent 'a' version '2'" in found.what
    desk.store.announce("w2", {("a", "2")})
    assert told(desk) == []
    desk.clock.advance(61)  # and it died
    desk.store.announce("w1", {("a", "1")})
    assert told(desk) == [("no worker", run.id)]


def test_a_lease_that_nobody_took_over(desk: Desk):
    lease = desk.started("w1", id="r").lease
    desk.store.put_step(lease, step(), 10)
    desk.clock.advance(10 + 59)
    assert told(desk) == []
    desk.clock.advance(2)
    (found,) = desk.store.complaints()
    assert (found.kind, found.run_id) == ("stuck lease", "r")
    assert "worker w1" in found.what


def test_a_question_that_nobody_expired(desk: Desk):
    lease = desk.started().lease
    asked = question(expires_in_seconds=10)
    desk.store.settle(lease, Asked((asked,)))
    desk.clock.advance(71)
    (found,) = desk.store.complaints()
    assert (found.kind, found.run_id) == ("overdue question", lease.run_id)
    assert asked.id in found.what
    desk.store.sweep()
    assert "overdue question" not in dict(told(desk))


def test_a_timer_that_nobody_woke(desk: Desk):
    leases = [desk.started().lease for _ in range(2)]
    outcomes: list[Any] = [Slept(10), Asked((question(),), seconds=10)]
    for lease, outcome in zip(leases, outcomes, strict=True):
        desk.store.settle(lease, outcome)
    desk.clock.advance(71)
    assert sorted(told(desk)) == sorted(("overdue timer", lease.run_id) for lease in leases)
    assert desk.store.sweep() == 2
    assert "overdue timer" not in dict(told(desk))


def test_an_ended_run_that_still_holds_its_thread(desk: Desk):
    lease = desk.started(thread="c_42").lease
    desk.store.settle(lease, Done("1"))
    with desk.engine.begin() as tx:  # no code does this: it is what a bug or a hand would do
        tx.execute(sa.update(schema.runs).values(holds_thread=True))
    (found,) = desk.store.complaints()
    assert (found.kind, found.run_id) == ("orphaned thread", lease.run_id)
    assert "'c_42'" in found.what
