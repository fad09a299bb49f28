"""The marker of an unwind: set with the decision, kept to the end, and nothing gets past it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from desk import Desk, question, step

from langgraph_durable.errors import Conflict, DurableError
from langgraph_durable.runs import (
    Asked,
    Broke,
    Cancelled,
    Done,
    Drained,
    Lease,
    Outcome,
    Refused,
    Retried,
    Slept,
    Status,
    StepState,
    Unwound,
)

ERROR = {"type": "E", "message": "no", "reason": "error"}
UNDO = json.dumps({"tool": "local.undo", "arguments": {}})


def _did_something(desk: Desk) -> Lease:
    """Start a run that did two things that can be undone, and one of which nobody knows."""
    lease = desk.started().lease
    desk.store.put_step(lease, replace(step("a", seq=1), compensation=UNDO))
    desk.store.put_step(lease, replace(step("b", seq=2), compensation=UNDO))
    desk.store.put_step(lease, step("c", None, state=StepState.INTENT, seq=3))
    return lease


def _unwinding(desk: Desk) -> Lease:
    """Return the lease of one that failed, and has been claimed to be unwound."""
    desk.store.settle(_did_something(desk), Broke(ERROR))
    return desk.take("w2").lease


@pytest.mark.promise("S-45")
def test_a_failure_queues_the_run_with_its_end_decided(desk: Desk):
    lease = _did_something(desk)
    assert desk.store.settle(lease, Broke(ERROR)) is Status.QUEUED
    before = desk.dump()
    assert desk.store.settle(lease, Broke(ERROR)) is Status.QUEUED  # its answer was lost: again
    assert desk.dump() == before
    run = desk.run(lease)
    assert (run.status, run.unwinding, run.error) == (Status.QUEUED, Status.FAILED, ERROR)
    assert (run.worker, run.attempts, run.finished_at) == (None, 0, None)
    told = desk.store.list_events(run.id)[-1]
    assert told.type == "run_compensating"
    assert told.data == {"to": "failed", "steps": ["b", "a"], "unknown": ["c"], "error": ERROR}
    claim = desk.take("w2")
    assert (claim.run.status, claim.run.unwinding) == (Status.RUNNING, Status.FAILED)


@pytest.mark.promise("S-45")
def test_attempts_that_are_used_up_and_a_crash_loop_unwind_too(desk: Desk):
    lease = _did_something(desk)
    desk.store.settle(lease, Retried(ERROR, progressed=False))  # a step was recorded: one of three
    for _ in range(3):
        desk.clock.advance(100)
        lease = desk.take().lease
        desk.store.settle(lease, Retried(ERROR, progressed=False))
    assert desk.run(lease).unwinding is Status.FAILED
    desk.wipe()
    lease = _did_something(desk)
    for _ in range(4):
        desk.clock.advance(100)
        last = desk.take()
    assert last.run.unwinding is Status.FAILED
    assert desk.run(lease).error is not None
    assert "run_compensating" in desk.types(lease)


@pytest.mark.promise("S-45")
@pytest.mark.parametrize("outcome", [Done("1"), Slept(5), Broke(ERROR), Cancelled()], ids=repr)
def test_no_other_outcome_ends_an_unwind_or_drives_the_run_forward(desk: Desk, outcome: Outcome):
    lease = _unwinding(desk)
    assert desk.store.settle(lease, outcome) is Status.QUEUED
    run = desk.run(lease)
    assert (run.unwinding, run.error, run.attempts) == (Status.FAILED, ERROR, 1)


@pytest.mark.promise("S-45")
def test_an_unwind_has_moves_of_its_own(desk: Desk):
    lease = _unwinding(desk)
    for target in (Status.SUCCEEDED, Status.SLEEPING, Status.CANCELLING, Status.CANCELLED):
        with pytest.raises(DurableError):
            desk.store.set_status(lease, target)
    with pytest.raises(Conflict, match="failed"):
        desk.store.cancel(lease.run_id, by="x")
    assert desk.store.settle(lease, Drained()) is Status.QUEUED
    lease = desk.take().lease
    for attempts in (1, 2, 3, 4):  # it is not given up: the worker asks a person
        assert desk.store.settle(lease, Retried(ERROR, progressed=False)) is Status.QUEUED
        assert desk.run(lease).attempts == attempts
        desk.clock.advance(100)
        lease = desk.take().lease
    desk.store.settle(lease, Asked((question("compensate:b?failed1", kind="compensation"),)))
    assert desk.status(lease) is Status.WAITING_HUMAN
    desk.decide(desk.run(lease).questions[0].id)
    lease = desk.take().lease
    review = question("review", kind="review")
    assert desk.store.settle(lease, Unwound(review)) is Status.FAILED
    run = desk.run(lease)
    assert (run.status, run.error, run.unwinding) == (Status.FAILED, ERROR, Status.FAILED)
    assert [q.key for q in run.questions] == ["review"]
    desk.decide(review.id)
    assert desk.status(lease) is Status.FAILED
    with pytest.raises(Conflict, match="anew"):
        desk.store.retry(lease.run_id, by="x")


@pytest.mark.promise("S-45")
@pytest.mark.promise("H-11")
def test_a_cancelled_run_is_cancelling_whenever_somebody_has_it(desk: Desk):
    lease = _did_something(desk)
    assert desk.store.cancel(lease.run_id, by="mei") is Status.CANCELLING
    assert desk.store.settle(lease, Done("1")) is Status.QUEUED  # late, and not the end
    assert desk.run(lease).unwinding is Status.CANCELLED
    assert desk.store.cancel(lease.run_id, by="mei") is Status.CANCELLING
    for attempts in range(5):  # a worker that dies is followed by another, and it is counted
        lease = desk.take(f"w{attempts}").lease
        run = desk.run(lease)
        assert (run.status, run.attempts) == (Status.CANCELLING, attempts)
        desk.clock.advance(100)
    assert desk.store.settle(lease, Unwound()) is Status.CANCELLED
    assert desk.run(lease).error is None


@pytest.mark.promise("S-45")
def test_what_nobody_knows_is_told_also_where_nothing_can_be_undone(desk: Desk):
    lease = desk.started().lease
    desk.store.put_step(lease, step("c", None, state=StepState.INTENT))
    desk.store.cancel(lease.run_id, by="mei")
    desk.clock.advance(100)
    assert desk.store.settle(desk.take("w2").lease, Broke({})) is Status.CANCELLED
    assert desk.store.list_events(lease.run_id)[-1].data["unknown"] == ["c"]


@pytest.mark.promise("S-45")
def test_a_compensation_and_its_event_are_one_commit_and_one_event(desk: Desk):
    lease = _unwinding(desk)
    undone = replace(step("compensate:b", "ok"), epoch=lease.epoch)
    desk.store.codec.types.register(Refused)
    left = desk.store.codec.encode(Refused("sold", "mei"), "the answer")
    for _ in range(2):  # the answer of the first commit was lost
        desk.store.put_step(lease, undone)
        desk.store.put_step(lease, replace(undone, key="compensate:a", value=left))
    told = [e for e in desk.store.list_events(lease.run_id) if e.type.startswith("step_")]
    assert [(e.type, e.data["key"]) for e in told] == [
        ("step_compensated", "b"), ("step_not_compensated", "a"),
    ]  # fmt: skip
    assert told[1].data["decided_by"] == "mei"
