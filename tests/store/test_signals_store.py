"""Signals in the store: taken by the commit of the step, under its fence, and by nobody else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from desk import Desk, at_once, question, step

from langgraph_durable.errors import Conflict, LeaseLost
from langgraph_durable.runs import Asked, Drained, Slept, Status, Step, StepState
from langgraph_durable.store import NewSignal, Write, schema, signals


def new(run_id: str, number: int = 1, payload: Any = None) -> NewSignal:
    text = json.dumps(payload)
    return NewSignal(run_id, f"s{number}", "paid", text, text, "bank")


def waits(key: str = "payment", **more: Any) -> Step:
    return Step(key=key, kind="wait", name="paid", state=StepState.WAITING, **more)


def takes(number: int, key: str = "payment") -> Step:
    return step(key, takes=number)


def test_a_step_takes_its_signal_in_its_own_commit(desk: Desk):
    lease = desk.started().lease
    sent = [desk.store.send(new(lease.run_id, n)) for n in (1, 2)]
    assert desk.store.put_steps([Write(lease, takes(sent[0].number))], 60) == [None]
    # the answer was lost on the way: the same again changes nothing
    assert desk.store.put_steps([Write(lease, takes(sent[0].number))], 60) == [None]
    assert [s.id for s in desk.store.untaken_signals(lease.run_id, "paid", 9)] == ["s2"]
    before = desk.dump()
    with pytest.raises(Exception, match="taken by another step"):
        desk.store.put_steps([Write(lease, takes(sent[0].number, "other"))], 60)
    assert desk.dump() == before


def test_a_worker_that_lost_its_lease_takes_nothing(desk: Desk):
    old = desk.started().lease
    sent = desk.store.send(new(old.run_id))
    desk.clock.advance(61)
    desk.take("w2")
    (refused,) = desk.store.put_steps([Write(old, takes(sent.number))], 60)
    assert isinstance(refused, LeaseLost)
    assert desk.store.untaken_signals(old.run_id, "paid", 9) == [sent]


@pytest.mark.parametrize(
    "outcome", [Slept(None, ("paid",)), Slept(60, ("paid",)), Asked((question(),), None, ("paid",))]
)
def test_a_signal_before_or_after_the_park_wakes_the_run_once(desk: Desk, outcome: Any):
    lease = desk.started().lease
    desk.store.put_step(lease, waits())
    desk.store.send(new(lease.run_id))
    assert desk.store.settle(lease, outcome) is Status.QUEUED
    again = desk.take().lease
    (sent,) = desk.store.list_signals(lease.run_id)
    desk.store.put_step(again, takes(sent.number))
    desk.store.put_step(again, waits("next"))
    assert desk.store.settle(again, outcome) is not Status.QUEUED
    desk.store.send(new(lease.run_id, 2))
    desk.store.send(new(lease.run_id, 3))
    run = desk.run(lease)
    assert (run.status, run.wake_at) == (Status.QUEUED, None)
    assert desk.types(lease).count("run_resumed") == 2


def test_what_nobody_waits_for_any_more_does_not_keep_a_run_awake(desk: Desk):
    """Code changed: the step that waited is left behind, and its event comes."""
    lease = desk.started().lease
    desk.store.put_step(lease, waits())
    desk.store.settle(lease, Slept(None, ("paid",)))
    desk.store.send(new(lease.run_id))
    again = desk.take().lease
    assert desk.store.settle(again, Slept(None, ("shipped",))) is Status.SLEEPING


def test_sends_and_the_park_at_one_instant_lose_nothing(desk: Desk):
    for _ in range(5):
        lease = desk.started().lease
        desk.store.put_step(lease, waits())
        at_once(
            lambda lease=lease: desk.store.settle(lease, Slept(None, ("paid",))),
            lambda lease=lease: desk.store.send(new(lease.run_id, 1)),
            lambda lease=lease: desk.store.send(new(lease.run_id, 1)),
        )
        assert desk.status(lease) is Status.QUEUED
        assert len(desk.store.list_signals(lease.run_id)) == 1
        desk.store.settle(desk.take().lease, Drained())
        desk.store.cancel(lease.run_id, by="test")


def test_a_run_takes_so_many_signals_and_no_more(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(signals, "MAX_UNTAKEN", 2)
    run = desk.submit()
    for number in (1, 2):
        desk.store.send(new(run.id, number))
    with pytest.raises(Conflict, match="2 signals wait"):
        desk.store.send(new(run.id, 3))
    assert desk.store.send(new(run.id, 2)).id == "s2"  # a repeat is none


def test_workers_are_told_when_a_signal_wakes_a_run(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    told: list[Any] = []
    monkeypatch.setattr("langgraph_durable.store.notify", told.append)
    lease = desk.started().lease
    desk.store.put_step(lease, waits())
    desk.store.settle(lease, Slept(None, ("paid",)))
    told.clear()
    desk.store.send(replace(new(lease.run_id), event="shipped"))
    assert told == []
    desk.store.send(new(lease.run_id, 2))
    assert len(told) == 1


def test_a_run_that_is_unwound_takes_none(desk: Desk):
    run = desk.submit()
    with desk.engine.begin() as tx:
        tx.execute(sa.update(schema.runs).values(unwinding="failed"))
    with pytest.raises(Conflict, match="being unwound"):
        desk.store.send(new(run.id))


def test_signals_go_with_their_run(desk: Desk):
    lease = desk.started().lease
    desk.store.send(new(lease.run_id))
    desk.store.cancel(lease.run_id, by="test")
    desk.store.settle(lease, Drained())
    desk.clock.advance(10)
    assert desk.store.purge(5) == 1
    assert desk.dump()["signals"] == []
