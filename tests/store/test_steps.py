"""The journal in the database: one commit for many, one writer a key, answers that stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa
from desk import Desk, at_once, step

from langgraph_durable.errors import LeaseLost, StepConflict
from langgraph_durable.runs import StepState
from langgraph_durable.store import Write


@pytest.mark.promise("S-02")
def test_a_step_comes_back_as_it_was_written(desk: Desk):
    lease = desk.started().lease
    written = step(
        "pay", {"cents": 42}, name="billing.refund", place="refund@2", request="refund(42)",
        attempts=2, input_tokens=7, output_tokens=8, approval_id="a1", seq=3, seconds=0.5,
    )  # fmt: skip
    desk.store.put_step(lease, written)
    got = desk.store.get_step(lease.run_id, "pay")
    assert got is not None
    assert got.recorded_at == desk.clock.now()
    assert replace(got, recorded_at=None) == replace(written, epoch=1)
    assert desk.store.get_step(lease.run_id, "other") is None
    assert desk.store.list_steps("other") == []


@pytest.mark.promise("S-02")
def test_a_journal_is_loaded_in_the_order_of_recording(desk: Desk):
    lease = desk.started().lease
    keys = [f"k{i}" for i in (9, 10, 2, 1, 0)]
    for seq, key in enumerate(keys, start=1):
        desk.store.put_step(lease, step(key, seq=seq))
    assert [s.key for s in desk.store.load(lease).steps] == keys
    assert [s.key for s in desk.store.list_steps(lease.run_id)] == keys


@pytest.mark.promise("S-02")
def test_a_claim_loads_a_journal_in_one_query(desk: Desk):
    lease = desk.started().lease
    for i in range(30):
        desk.store.put_step(lease, step(f"k{i}", seq=i))
    asked: list[str] = []
    sa.event.listen(desk.engine, "before_cursor_execute", lambda *a: asked.append(a[2]))
    assert len(desk.store.load(lease, asked=False).steps) == 30
    assert len([sql for sql in asked if sql.lstrip().startswith("SELECT")]) == 1


@pytest.mark.promise("S-01")
def test_steps_of_many_runs_are_written_by_one_commit(desk: Desk):
    leases = [desk.started(f"w{i}").lease for i in range(20)]
    commits: list[object] = []
    sa.event.listen(desk.engine, "commit", commits.append)
    told = desk.store.put_steps([Write(lease, step(k)) for lease in leases for k in ("a", "b")], 60)
    assert told == [None] * 40
    assert len(commits) == 1
    assert all(
        [s.key for s in desk.store.list_steps(lease.run_id)] == ["a", "b"] for lease in leases
    )


@pytest.mark.promise("S-05")
def test_a_refused_step_does_not_hinder_the_others(desk: Desk):
    lost = desk.started("w1").lease
    desk.clock.advance(61)
    new = desk.take("w2").lease
    other = desk.started("w3").lease
    desk.store.put_step(other, step("taken"))
    conflicting = Write(other, step("taken", "another answer"))
    told = desk.store.put_steps(
        [Write(lost, step("x")), Write(new, step("y")), conflicting, Write(other, step("z"))], 60
    )
    assert [type(one) for one in told] == [LeaseLost, type(None), StepConflict, type(None)]
    assert [s.key for s in desk.store.list_steps(new.run_id)] == ["y"]
    assert {s.key for s in desk.store.list_steps(other.run_id)} == {"taken", "z"}


@pytest.mark.promise("S-07")
def test_a_second_writer_of_a_key_is_told_so_and_the_first_answer_stays(desk: Desk):
    first = desk.started("w1").lease
    desk.store.put_step(first, step("classify", "refund"))
    desk.clock.advance(61)
    second = desk.take("w2").lease
    for value in ("billing", "refund"):  # even with the same answer: two have been at work
        with pytest.raises(StepConflict, match="recorded by another writer"):
            desk.store.put_step(second, step("classify", value))
    kept = desk.store.get_step(first.run_id, "classify")
    assert kept is not None
    assert (kept.value, kept.epoch) == ('"refund"', 1)


@pytest.mark.promise("S-07")
def test_two_writers_at_once_under_one_lease_and_exactly_one_answer_stands(live: Desk):
    for _ in range(20):
        lease = live.started().lease
        got = at_once(
            *(
                lambda v=v: live.store.put_step(lease, step("k", v))  # noqa: B023
                for v in ("one", "two")
            )
        )
        assert sorted(type(one).__name__ for one in got) == ["NoneType", "StepConflict"], got
        kept = live.store.get_step(lease.run_id, "k")
        assert kept is not None
        assert kept.value == ('"one"' if got[0] is None else '"two"')


@pytest.mark.promise("S-07")
def test_a_second_try_after_the_answer_of_the_commit_was_lost_counts_as_written(desk: Desk):
    lease = desk.started().lease
    desk.store.put_step(lease, step("k", "v"))
    before = desk.dump()["steps"]
    assert desk.store.put_steps([Write(lease, step("k", "v"))], 60) == [None]
    assert desk.dump()["steps"] == before


@pytest.mark.promise("S-02")
def test_an_intent_becomes_a_record_and_a_record_never_changes(desk: Desk):
    lease = desk.started().lease
    intent = replace(step("pay"), state=StepState.INTENT, value=None, seq=1)
    desk.store.put_step(lease, intent)
    desk.store.put_step(lease, replace(intent, state=StepState.FAILED, error="500", attempts=1))
    desk.store.put_step(lease, replace(step("pay", "paid"), seq=9, attempts=2))
    for later in (step("pay", "again"), replace(intent, state=StepState.FAILED, error="late")):
        with pytest.raises(StepConflict):
            desk.store.put_step(lease, later)
    kept = desk.store.get_step(lease.run_id, "pay")
    assert kept is not None
    assert (kept.state, kept.value, kept.attempts, kept.seq) == (StepState.RECORDED, '"paid"', 2, 1)


@pytest.mark.promise("S-05")
def test_a_later_claim_writes_over_an_intent_and_the_older_one_never_over_the_later(desk: Desk):
    old = desk.started("w1").lease
    intent = replace(step("pay"), state=StepState.INTENT, value=None)
    desk.store.put_step(old, intent)
    desk.clock.advance(61)
    new = desk.take("w2").lease
    desk.store.put_step(new, intent)
    with pytest.raises(LeaseLost):
        desk.store.put_step(old, step("pay", "old"))
    kept = desk.store.get_step(new.run_id, "pay")
    assert kept is not None
    assert (kept.state, kept.epoch) == (StepState.INTENT, 2)


@pytest.mark.promise("S-06")
def test_recording_extends_the_lease(desk: Desk):
    lease = desk.started().lease
    for i in range(4):
        desk.clock.advance(40)
        desk.store.put_step(lease, step(f"k{i}"), 60)
    assert desk.claim("w2") is None


@pytest.mark.promise("H-11")
def test_a_call_in_flight_is_recorded_while_the_run_is_cancelling(desk: Desk):
    lease = desk.started().lease
    desk.store.cancel(lease.run_id, by="mei")
    desk.store.put_step(lease, step("late"))
    assert [s.key for s in desk.store.list_steps(lease.run_id)] == ["late"]


@pytest.mark.promise("S-72")
def test_usage_counts_what_was_recorded(desk: Desk):
    lease = desk.started().lease
    llm = replace(step("a"), kind="llm", input_tokens=10, output_tokens=5)
    tool = replace(step("b"), kind="tool")
    failed = replace(step("c"), kind="tool", state=StepState.FAILED, value=None)
    desk.store.put_steps([Write(lease, one) for one in (llm, tool, failed)], 60)
    usage = desk.run(lease).usage
    assert (usage.model_calls, usage.tool_calls) == (1, 1)
    assert (usage.input_tokens, usage.output_tokens) == (10, 5)
