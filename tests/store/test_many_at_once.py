"""What is done to many runs in one commit: claims, and the common end."""

from __future__ import annotations

import pytest
from desk import Desk, question, step

from langgraph_durable.errors import LeaseLost
from langgraph_durable.runs import Asked, Broke, Done, Lease, Replayed, Status
from langgraph_durable.store import Claim, Ending, Served

SERVED = Served([("a", "1")])


def some(desk: Desk, limit: int, worker: str = "w1", served: Served = SERVED) -> list[Claim]:
    return desk.store.claim_some(worker, 60, served, limit)


def ending(lease: Lease, output: str = '"out"') -> Ending:
    return Ending(lease, output, Replayed(3, 50))


@pytest.mark.promise("S-04", "S-13")
def test_a_worker_claims_as_many_as_it_has_room_for_the_first_ones_first(desk: Desk):
    runs = [desk.submit() for _ in range(5)]
    urgent = desk.submit(priority=1)
    assert [claim.run.id for claim in some(desk, 4)] == [urgent.id, runs[0].id, runs[1].id]
    assert [claim.run.id for claim in some(desk, 50, "w2")] == [run.id for run in runs[2:]]
    assert some(desk, 50) == []
    for run in runs:
        assert desk.types(run) == ["run_submitted", "run_claimed"]


@pytest.mark.promise("H-10")
def test_of_the_runs_of_a_thread_only_the_first_is_claimed(desk: Desk):
    first, second = desk.submit(thread="one"), desk.submit(thread="one")
    other = desk.submit(thread="two")
    claims = some(desk, 50)
    assert [claim.run.id for claim in claims] == [first.id, other.id]
    desk.store.settle(claims[0].lease, Done("1"))
    assert [claim.run.id for claim in some(desk, 50)] == [second.id]


@pytest.mark.promise("S-11")
def test_of_the_runs_of_dead_workers_one_is_taken_over_at_a_time(desk: Desk):
    for _ in range(3):
        desk.submit()
    dead = {claim.run.id for claim in some(desk, 50)}
    assert len(dead) == 3
    desk.clock.advance(61)
    new = desk.submit()
    first = {claim.run.id for claim in some(desk, 50, "w2")}
    assert first & {new.id}
    assert len(first & dead) == 1
    assert len(first) == 2
    second = {claim.run.id for claim in some(desk, 50, "w2")}
    assert len(second & (dead - first)) == 1
    assert len(second) == 1
    assert desk.types(second.pop())[-1] == "run_taken_over"


@pytest.mark.promise("S-11")
def test_ends_that_come_together_are_settled_together(desk: Desk):
    desk.submit(), desk.submit()
    leases = [claim.lease for claim in some(desk, 3)]
    desk.store.put_step(leases[0], step())
    assert desk.store.finish([ending(leases[0]), ending(leases[1], '"other"')], 60) == [True, True]
    runs = [desk.run(lease) for lease in leases]
    assert [run.output for run in runs] == ["out", "other"]
    for lease, run in zip(leases, runs, strict=True):
        assert (run.status, run.worker, run.lease_until) == (Status.SUCCEEDED, None, None)
        assert run.finished_at is not None
        assert (run.usage.saved_steps, run.usage.saved_tokens) == (3, 50)
        assert desk.types(lease)[-1] == "run_succeeded"
    before = desk.dump()
    assert desk.store.finish([ending(lease, '"late"') for lease in leases], 60) == [False, False]
    assert desk.dump() == before
    assert desk.store.settle(leases[0], Done('"out"')) is Status.SUCCEEDED  # and nothing more


@pytest.mark.promise("S-05", "H-09")
def test_a_run_that_is_not_the_workers_any_more_is_left_alone_and_the_others_end(desk: Desk):
    desk.submit(), desk.submit()
    old, mine = (claim.lease for claim in some(desk, 3))
    desk.store.settle(mine, Broke({}))
    desk.clock.advance(61)
    new = desk.take("w2").lease
    assert new.run_id == old.run_id
    other = desk.started().lease
    before = desk.run(old)
    assert desk.store.finish([ending(old), ending(other), ending(mine)], 60) == [False, True, False]
    assert desk.run(old) == before
    with pytest.raises(LeaseLost):
        desk.store.settle(old, Done("1"))


@pytest.mark.promise("H-11", "S-33")
def test_what_is_cancelled_or_asks_is_left_to_its_own_settling(desk: Desk):
    cancelling, asking = desk.started().lease, desk.started().lease
    desk.store.cancel(cancelling.run_id, by="mei")
    desk.store.settle(asking, Asked((question(),)))
    assert desk.store.finish([ending(cancelling), ending(asking)], 60) == [False, False]
    assert desk.status(asking) is Status.WAITING_HUMAN
    assert desk.store.settle(cancelling, Done("1")) is Status.CANCELLED


@pytest.mark.promise("S-33")
def test_a_run_whose_questions_are_all_decided_ends_like_others(desk: Desk):
    lease = desk.started().lease
    desk.store.settle(lease, Asked((question(),)))
    desk.decide(desk.run(lease).questions[0].id)
    again = desk.take().lease
    assert desk.store.finish([ending(again)], 60) == [True]
    assert desk.status(again) is Status.SUCCEEDED


def test_where_somebody_is_to_be_told_each_end_is_settled_by_itself(desk: Desk):
    lease = desk.started().lease
    desk.store.notifies = True
    try:
        assert desk.store.finish([ending(lease)], 60) == [False]
    finally:
        desk.store.notifies = False
    assert desk.status(lease) is Status.RUNNING
