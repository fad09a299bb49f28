"""How a pass ends: one value, one transaction, and no way back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from desk import Desk, question, step

from langgraph_durable.errors import Conflict, IllegalMove
from langgraph_durable.runs import (
    Asked,
    Broke,
    Cancelled,
    Decision,
    Done,
    Drained,
    Outcome,
    QuestionState,
    Replayed,
    Retried,
    Retry,
    Slept,
    Status,
)

ERROR = {"type": "E", "message": "no", "reason": "error"}
ENDS: list[tuple[Outcome, Status, str]] = [
    (Done('"out"'), Status.SUCCEEDED, "run_succeeded"),
    (Broke(ERROR), Status.FAILED, "run_failed"),
    (Cancelled(), Status.CANCELLED, "run_cancelled"),
    (Asked((question(),)), Status.WAITING_HUMAN, "run_parked"),
    (Slept(5), Status.SLEEPING, "run_slept"),
    (Drained(), Status.QUEUED, "run_handed_back"),
    (Retried(ERROR, progressed=False), Status.QUEUED, "run_requeued"),
]


@pytest.mark.promise("S-11")
@pytest.mark.parametrize(("outcome", "status", "event"), ENDS, ids=lambda v: type(v).__name__)
def test_each_outcome_has_its_status_gives_the_run_up_and_is_an_event(
    desk: Desk, outcome: Outcome, status: Status, event: str
):
    lease = desk.started().lease
    desk.store.put_step(lease, step())
    if isinstance(outcome, Cancelled):
        desk.store.cancel(lease.run_id, by="mei")
    told = desk.store.settle(lease, outcome, Replayed(3, 50))
    run = desk.run(lease)
    assert (told, run.status) == (status, status)
    assert (run.worker, run.lease_until) == (None, None)
    assert (run.finished_at is not None) is status.is_final
    assert desk.types(lease)[-1] == event
    assert (run.usage.saved_steps, run.usage.saved_tokens) == (3, 50)
    assert [s.key for s in desk.store.list_steps(lease.run_id) if s.key == "classify"]


@pytest.mark.promise("S-11")
@pytest.mark.parametrize(("outcome", "status", "event"), ENDS, ids=lambda v: type(v).__name__)
def test_the_same_outcome_twice_changes_nothing(
    desk: Desk, outcome: Outcome, status: Status, event: str
):
    lease = desk.started().lease
    if isinstance(outcome, Cancelled):
        desk.store.cancel(lease.run_id, by="mei")
    first = desk.store.settle(lease, outcome, Replayed(1, 1))
    before = desk.dump()
    assert desk.store.settle(lease, outcome, Replayed(1, 1)) is first
    assert desk.dump() == before


@pytest.mark.promise("H-11")
@pytest.mark.parametrize("outcome", [end[0] for end in ENDS], ids=lambda v: type(v).__name__)
def test_a_cancel_is_not_overwritten_by_what_the_pass_came_to_late(desk: Desk, outcome: Outcome):
    lease = desk.started().lease
    assert desk.store.cancel(lease.run_id, by="mei") is Status.CANCELLING
    assert desk.store.heartbeat([lease], 60) == {lease: Status.CANCELLING}
    assert desk.store.settle(lease, outcome) is Status.CANCELLED
    run = desk.run(lease)
    assert (run.status, run.output, list(run.questions)) == (Status.CANCELLED, None, [])
    assert desk.types(lease)[-2:] == ["run_cancelling", "run_cancelled"]


@pytest.mark.promise("H-11")
def test_a_run_that_nobody_cancelled_is_not_cancelled_by_its_worker(desk: Desk):
    lease = desk.started().lease
    with pytest.raises(IllegalMove, match="running, which does not lead to cancelled"):
        desk.store.settle(lease, Cancelled())
    assert desk.status(lease) is Status.RUNNING


@pytest.mark.promise("S-11")
def test_an_error_backs_off_and_past_the_limit_the_run_fails_with_it(desk: Desk):
    backoff = Retry(first_seconds=2, factor=3, limit_seconds=5)
    lease = desk.started(max_attempts=3).lease
    for attempt, wait in ((1, 2), (2, 5)):
        told = desk.store.settle(lease, Retried(ERROR, False), backoff=backoff, jitter=1.0)
        run = desk.run(lease)
        assert (told, run.attempts, run.error) == (Status.QUEUED, attempt, ERROR)
        assert run.run_after == desk.clock.now() + timedelta(seconds=wait)
        assert desk.claim() is None
        desk.clock.advance(wait)
        lease = desk.take().lease
    assert desk.store.settle(lease, Retried(ERROR, False), backoff=backoff) is Status.FAILED
    assert desk.run(lease).error == {**ERROR, "attempts": 3}


@pytest.mark.promise("S-11")
def test_progress_starts_the_budget_of_attempts_afresh(desk: Desk):
    lease = desk.started(max_attempts=2).lease
    for _ in range(5):
        assert desk.store.settle(lease, Retried(ERROR, progressed=True)) is Status.QUEUED
        assert desk.run(lease).attempts == 1
        desk.clock.advance(60)
        lease = desk.take().lease
    assert desk.store.settle(lease, Retried(ERROR, progressed=False)) is Status.FAILED


@pytest.mark.promise("S-11")
def test_a_wait_that_no_float_holds_is_the_longest_wait(desk: Desk):
    backoff = Retry(first_seconds=1, factor=1e10, limit_seconds=30)
    lease = desk.started(max_attempts=1000).lease
    with desk.engine.begin() as tx:
        tx.exec_driver_sql("UPDATE runs SET attempts = 500")
    assert desk.store.settle(lease, Retried(ERROR, False), backoff=backoff) is Status.QUEUED
    assert desk.run(lease).run_after == desk.clock.now() + timedelta(seconds=30)


@pytest.mark.promise("S-11")
def test_an_operators_retry_keeps_the_journal_and_gives_a_fresh_budget(desk: Desk):
    lease = desk.started(max_attempts=1).lease
    desk.store.put_step(lease, step("classify"))
    desk.store.settle(lease, Retried(ERROR, False))
    run = desk.store.retry(lease.run_id, by="mei")
    assert (run.id, run.status, run.attempts, run.error) == (lease.run_id, Status.QUEUED, 0, None)
    assert run.finished_at is None
    last = desk.store.list_events(run.id)[-1]
    assert (last.type, last.actor) == ("run_retried", "mei")
    again = desk.take()
    assert [s.key for s in desk.store.load(again.lease).steps] == ["classify"]
    with pytest.raises(IllegalMove):
        desk.store.retry(lease.run_id, by="mei")


@pytest.mark.promise("S-11")
def test_a_sleeper_wakes_at_its_time_and_not_before(desk: Desk):
    lease = desk.started().lease
    desk.store.settle(lease, Slept(5))
    desk.clock.advance(4)
    assert desk.store.sweep() == 0
    desk.clock.advance(1)
    assert desk.store.sweep() == 1
    assert desk.store.sweep() == 0
    assert desk.types(lease)[-1] == "run_resumed"
    assert desk.take().run.id == lease.run_id


@pytest.mark.promise("H-11")
def test_cancelling_a_run_that_no_worker_has_ends_it_at_once_with_its_questions(desk: Desk):
    asked = question()
    parked, asleep = desk.started().lease, desk.started().lease
    desk.store.settle(parked, Asked((asked,)))
    desk.store.settle(asleep, Slept(9))
    for run_id in (desk.submit().id, parked.run_id, asleep.run_id):
        assert desk.store.cancel(run_id, by="mei") is Status.CANCELLED
        assert desk.store.cancel(run_id, by="mei") is Status.CANCELLED  # again: no-op
        assert desk.types(run_id).count("run_cancelled") == 1
    assert desk.store.question(asked.id).state is QuestionState.CLOSED
    ended = desk.started().lease
    desk.store.settle(ended, Done("1"))
    with pytest.raises(Conflict, match="succeeded; there is nothing to cancel"):
        desk.store.cancel(ended.run_id, by="mei")


@pytest.mark.promise("S-30")
def test_parking_keeps_the_question_and_the_status_together_and_what_was_shown(desk: Desk):
    lease = desk.started().lease
    asked = question(
        payload={"amount": 42}, role="supervisor", schema={"type": "object"},
        allowed=("approve", "edit"), expires_in_seconds=60.0, on_expiry="fail", default=[1],
    )  # fmt: skip
    desk.store.settle(lease, Asked((asked,)))
    run = desk.run(lease)
    (kept,) = run.questions
    for name in ("id", "key", "payload", "digest", "role", "schema", "allowed", "default", "tool"):
        assert getattr(kept, name) == getattr(asked, name), name
    assert (kept.state, kept.on_expiry, kept.run_id) == (QuestionState.OPEN, "fail", run.id)
    assert kept.expires_at == desk.clock.now() + timedelta(seconds=60)
    assert desk.types(run)[-2:] == ["question_asked", "run_parked"]


@pytest.mark.promise("H-18")
def test_the_same_question_stays_and_one_with_another_payload_is_asked_anew(desk: Desk):
    two, other = question("a"), question("b")
    lease = desk.started().lease
    desk.store.settle(lease, Asked((two, other)))
    with desk.engine.begin() as tx:  # another pass, while both are open
        tx.exec_driver_sql("UPDATE runs SET status = 'queued'")
    again = desk.take().lease
    desk.store.settle(again, Asked((question("a"), question("b", payload=9999, digest="d2"))))
    assert desk.store.question(two.id).state is QuestionState.OPEN
    assert desk.store.question(other.id).state is QuestionState.CLOSED
    assert {q.key: q.payload for q in desk.run(again).questions} == {"a": {"amount": 42}, "b": 9999}


@pytest.mark.promise("S-38")
def test_a_question_put_twice_in_one_pass_is_one_question(desk: Desk):
    lease = desk.started().lease
    asked = question("a")
    desk.store.settle(lease, Asked((asked, asked)))
    assert len(desk.run(lease).questions) == 1


@pytest.mark.promise("H-12")
def test_a_question_that_was_settled_before_the_run_parked_again_does_not_strand_it(desk: Desk):
    """It was asked, decided or expired meanwhile: the run must not wait for nobody."""
    for settle in ("decide", "expire"):
        asked = question("a", expires_in_seconds=5.0)
        lease = desk.started().lease
        desk.store.settle(lease, Asked((asked,)))
        with desk.engine.begin() as tx:  # claimed again with the question still open
            tx.exec_driver_sql("UPDATE runs SET status = 'queued' WHERE status = 'waiting_human'")
        lease = desk.take().lease
        if settle == "decide":
            desk.decide(asked.id)
        else:
            desk.clock.advance(6)
            desk.store.sweep()
        assert desk.status(lease) is Status.RUNNING
        assert desk.store.settle(lease, Asked(())) is Status.QUEUED
        desk.store.settle(desk.take().lease, Done("1"))


@pytest.mark.promise("S-31")
def test_events_tell_the_whole_story_in_order(desk: Desk):
    asked = question()
    lease = desk.started(actor="web").lease
    desk.store.settle(lease, Asked((asked,)))
    desk.decide(asked.id, Decision.approve("mei", "looks right"))
    lease = desk.take("w2").lease
    desk.store.settle(lease, Done("1"), Replayed(2, 9))
    events = desk.store.list_events(lease.run_id)
    assert [(event.type, event.actor) for event in events] == [
        ("run_submitted", "web"),
        ("run_claimed", "w1"),
        ("question_asked", "w1"),
        ("run_parked", "w1"),
        ("question_decided", "mei"),
        ("run_resumed", "store"),
        ("run_claimed", "w2"),
        ("run_succeeded", "w2"),
    ]
    assert [event.id for event in events] == sorted(event.id for event in events)
    assert events[4].data["reason"] == "looks right"
    assert events[-1].data["replayed"] == 2
    assert [e.id for e in desk.store.list_events(lease.run_id, after=events[5].id)] == [
        event.id for event in events[6:]
    ]
