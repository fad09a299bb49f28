"""Two runs on one thread: never both at work, in the order they came."""

from __future__ import annotations

import time

import pytest
from desk import Desk, at_once, question

from langgraph_durable.errors import Conflict
from langgraph_durable.runs import Asked, Broke, Done, Drained, Retried, Slept, Status

ERROR = {"type": "E", "message": "no"}
pytestmark = pytest.mark.promise("H-10")


def test_the_second_run_of_a_thread_waits_while_the_first_runs_waits_sleeps_or_is_requeued(
    desk: Desk,
):
    asked = question()
    first = desk.started(thread="c1")
    second = desk.submit(thread="c1")
    assert desk.claim("w2") is None
    lease = first.lease
    desk.store.settle(lease, Asked((asked,)))
    assert desk.claim("w2") is None
    desk.decide(asked.id)
    lease = desk.take("w2").lease
    assert lease.run_id == first.run.id
    desk.store.settle(lease, Retried(ERROR, progressed=False))
    assert desk.claim("w2") is None  # the first backs off: the second doesn't overtake it
    desk.clock.advance(60)
    lease = desk.take("w2").lease
    desk.store.settle(lease, Slept(5))
    assert desk.claim("w2") is None
    desk.clock.advance(6)
    desk.store.sweep()
    lease = desk.take("w2").lease
    desk.store.settle(lease, Drained())
    lease = desk.take("w3").lease
    assert lease.run_id == first.run.id
    desk.store.settle(lease, Done("1"))
    assert desk.take("w2").run.id == second.id


def test_runs_of_a_thread_start_in_the_order_they_came_whatever_their_priority(desk: Desk):
    runs = [desk.submit(thread="c1", priority=priority) for priority in (0, 9, 5)]
    order = []
    for _ in runs:
        claim = desk.take()
        assert desk.claim("w2") is None
        order.append(claim.run.id)
        desk.store.settle(claim.lease, Done("1"))
    assert order == [run.id for run in runs]


def test_a_run_that_ends_in_any_way_frees_its_thread(desk: Desk):
    for end in (Done("1"), Broke(ERROR)):
        desk.store.settle(desk.started(thread="c1").lease, end)
    claim = desk.started(thread="c1")
    desk.store.settle(claim.lease, Asked((question(),)))
    desk.store.cancel(claim.run.id, by="mei")
    assert desk.started(thread="c1").run.status is Status.RUNNING


def test_other_threads_and_the_same_name_of_another_tenant_are_independent(desk: Desk):
    runs = [
        desk.submit(thread="c1"),
        desk.submit(thread="c1", tenant="other"),
        desk.submit(thread="c2"),
    ]
    assert {desk.take().run.id for _ in runs} == {run.id for run in runs}


def test_a_failed_run_that_is_retried_does_not_block_the_one_that_holds_the_thread(desk: Desk):
    """Each waited for the other: the retried one is earlier, the parked one holds the thread."""
    asked = question()
    first = desk.started(thread="c1")
    desk.store.settle(first.lease, Broke(ERROR))
    second = desk.started("w2", thread="c1")
    desk.store.settle(second.lease, Asked((asked,)))
    desk.store.retry(first.run.id, by="mei")
    assert desk.claim("w3") is None
    desk.decide(asked.id)
    claim = desk.take("w3")
    assert claim.run.id == second.run.id
    desk.store.settle(claim.lease, Done("1"))
    assert desk.take("w3").run.id == first.run.id


def test_a_thread_named_after_its_first_run_is_one_thread(desk: Desk):
    """A follow-up on the thread of a run that was given none of its own."""
    first = desk.started()
    desk.store.settle(first.lease, Broke(ERROR))
    second = desk.started("w2", thread=first.run.thread)
    desk.store.retry(first.run.id, by="mei")
    started = time.monotonic()
    assert desk.claim("w3") is None  # and it returns: it doesn't try the same run for ever
    assert time.monotonic() - started < 5
    desk.store.settle(second.lease, Done("1"))
    assert desk.take("w3").run.id == first.run.id


def test_workers_at_once_never_hold_two_runs_of_a_thread(live: Desk):
    names = [f"c{i % 3}" for i in range(24)]
    runs = [live.submit(thread=name) for name in names]
    order: dict[str, list[str]] = {name: [] for name in names}
    left = {run.id for run in runs}

    def work(worker: str) -> None:
        while left:
            claim = live.claim(worker)
            if claim is None:
                time.sleep(0.002)
                continue
            order[claim.run.thread].append(claim.run.id)
            others = [live.run(run) for run in runs if run.thread == claim.run.thread]
            assert [run.id for run in others if run.status is Status.RUNNING] == [claim.run.id]
            live.store.settle(claim.lease, Done("1"))
            left.discard(claim.run.id)

    assert at_once(*(lambda w=w: work(w) for w in ("w1", "w2", "w3"))) == [None] * 3
    for name, ids in order.items():
        assert ids == [run.id for run in runs if run.thread == name]


def test_a_retry_and_a_claim_at_the_same_instant_leave_one_run_on_the_thread(live: Desk):
    for round_ in range(15):
        thread = f"c{round_}"
        first = live.started(thread=thread)
        live.store.settle(first.lease, Broke(ERROR))
        live.submit(thread=thread)
        at_once(
            lambda first=first: live.store.retry(first.run.id, by="mei"),
            lambda: live.claim("w1"),
            lambda: live.claim("w2"),
        )
        live.claim("w3")
        with live.engine.connect() as tx:
            held = tx.exec_driver_sql(
                f"SELECT count(*) FROM runs WHERE thread = '{thread}' AND status = 'running'"
            ).scalar_one()
        assert held == 1


def test_a_refusing_agent_says_that_the_thread_is_busy(desk: Desk):
    first = desk.submit(thread="c1", refuse_busy_thread=True)
    with pytest.raises(Conflict, match=f"'c1' is busy: run {first.id} is queued"):
        desk.submit(thread="c1", refuse_busy_thread=True)
    desk.store.settle(desk.take().lease, Done("1"))
    assert desk.submit(thread="c1", refuse_busy_thread=True).status is Status.QUEUED


def test_a_refusing_agent_answers_a_repeated_submit_with_the_same_run(desk: Desk):
    first = desk.submit(thread="c1", refuse_busy_thread=True, idempotency_key="k")
    assert desk.submit(thread="c1", refuse_busy_thread=True, idempotency_key="k").id == first.id


def test_two_submits_at_once_to_a_refusing_agent_make_one_run(live: Desk):
    for round_ in range(15):
        thread = f"c{round_}"
        got = at_once(
            *[lambda: live.submit(thread=thread, refuse_busy_thread=True)] * 3  # noqa: B023
        )
        refused = [one for one in got if isinstance(one, Conflict)]
        assert len(refused) == 2, got
