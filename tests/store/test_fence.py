"""A worker that wakes after its lease was taken over changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from desk import Desk, at_once, question, step

from langgraph_durable.errors import IllegalMove, LeaseLost
from langgraph_durable.runs import (
    Asked,
    Broke,
    Cancelled,
    Done,
    Drained,
    Lease,
    Outcome,
    Retried,
    Slept,
    Status,
)
from langgraph_durable.store import Write

ERROR = {"type": "E", "message": "no"}
OUTCOMES: list[Outcome] = [
    Done("1"),
    Asked((question(),)),
    Slept(5),
    Retried(ERROR, progressed=True),
    Broke(ERROR),
    Drained(),
    Cancelled(),
]


def _refused(call: Callable[[], object]) -> None:
    with pytest.raises(LeaseLost):
        call()


@pytest.mark.promise("H-09")
@pytest.mark.promise("S-05")
@pytest.mark.parametrize("second", ["w2", "w1"], ids=["another worker", "the same name"])
@pytest.mark.parametrize("ended", [False, True], ids=["still running", "finished"])
def test_a_worker_that_wakes_late_changes_no_row(desk: Desk, second: str, ended: bool):
    old = desk.started("w1").lease
    desk.store.put_step(old, step("before"))
    desk.clock.advance(61)
    new = desk.take(second).lease
    if ended:
        desk.store.settle(new, Done('"by the second"'))
    before = desk.dump()

    assert desk.store.heartbeat([old], 60) == {}
    _refused(lambda: desk.store.put_step(old, step("late")))
    _refused(lambda: desk.store.put_step(old, step("before", "other")))
    for status in Status:
        _refused(lambda: desk.store.set_status(old, status))  # noqa: B023
    for outcome in OUTCOMES:
        _refused(lambda: desk.store.settle(old, outcome))  # noqa: B023
    desk.store.note(old, "t", "noted_late")

    assert desk.dump() == before


@pytest.mark.promise("H-09")
def test_a_worker_that_took_its_own_run_over_writes_only_under_the_new_lease(desk: Desk):
    """Both passes live in one worker, so their steps may land in one statement."""
    old = desk.started("w1").lease
    desk.clock.advance(61)
    new = desk.take("w1").lease
    told = desk.store.put_steps([Write(old, step("late")), Write(new, step("mine"))], 60)
    assert isinstance(told[0], LeaseLost)
    assert told[1] is None
    assert [s.key for s in desk.store.list_steps(new.run_id)] == ["mine"]
    before = desk.dump()
    assert desk.store.statuses([old, new], 60) == {new: Status.RUNNING}
    assert desk.dump() == before
    assert desk.store.heartbeat([old, new], 60) == {new: Status.RUNNING}


@pytest.mark.promise("H-09")
@pytest.mark.parametrize("given_up", [Drained(), Asked((question(),)), Slept(5), Broke(ERROR)])
def test_a_lease_that_was_given_up_moves_nothing_although_its_epoch_is_the_newest(
    desk: Desk, given_up: Outcome
):
    lease = desk.started().lease
    settled = desk.store.settle(lease, given_up)
    before = desk.dump()
    for status in Status:
        with pytest.raises(IllegalMove):
            desk.store.set_status(lease, status)
    assert desk.store.heartbeat([lease], 60) == {}
    _refused(lambda: desk.store.put_step(lease, step("late")))
    for outcome in OUTCOMES:
        assert desk.store.settle(lease, outcome) is settled
    assert desk.dump() == before


@pytest.mark.promise("H-09")
def test_a_forbidden_move_is_not_called_a_lost_lease(desk: Desk):
    lease = desk.started().lease
    desk.store.cancel(lease.run_id, by="mei")
    with pytest.raises(IllegalMove, match="cancelling, which does not lead to succeeded"):
        desk.store.set_status(lease, Status.SUCCEEDED)


@pytest.mark.promise("S-02")
def test_a_status_set_under_the_lease_ends_the_run_and_is_an_event(desk: Desk):
    lease = desk.started().lease
    desk.store.set_status(lease, Status.CANCELLING)
    run = desk.run(lease)
    assert (run.worker, run.lease_until is None) == ("w1", False)  # still with its worker
    desk.store.set_status(lease, Status.CANCELLED)
    run = desk.run(lease)
    assert (run.worker, run.lease_until, run.finished_at is None) == (None, None, False)
    assert desk.types(lease)[-2:] == ["run_cancelling", "run_cancelled"]


@pytest.mark.promise("S-05")
def test_an_unknown_run_is_a_lost_lease(desk: Desk):
    nobody = Lease("nobody", 1, "w")
    assert desk.store.heartbeat([nobody], 60) == {}
    _refused(lambda: desk.store.put_step(nobody, step()))
    _refused(lambda: desk.store.set_status(nobody, Status.SUCCEEDED))


@pytest.mark.promise("H-09")
def test_a_takeover_races_a_record_and_one_of_the_two_loses(live: Desk):
    """Whoever comes second sees the other: a step under a lost lease is never kept."""
    for round_ in range(20):
        live.submit(max_attempts=99)
        old = live.take("w1", lease_seconds=-1).lease
        wrote, claim = at_once(
            lambda old=old: live.store.put_step(old, step("s"), 60),
            lambda: live.claim("w2"),
        )
        if claim is None:
            assert wrote is None  # recording extended the lease, the takeover came too late
            live.store.settle(old, Done("1"))
            continue
        kept = [s.epoch for s in live.store.list_steps(old.run_id)]
        assert kept == ([1] if wrote is None else []), (round_, wrote)
        _refused(lambda old=old: live.store.put_step(old, step("t")))
        live.store.settle(claim.lease, Done("1"))


@pytest.mark.promise("H-09")
def test_an_event_of_a_pass_is_kept_only_under_its_lease(desk: Desk):
    lease = desk.started().lease
    desk.store.note(lease, "t", "request_changed", {"key": "k\0"})
    assert desk.store.list_events(lease.run_id)[-1].data == {"key": "k\0"}
    desk.store.settle(lease, Drained())
    desk.store.note(lease, "t", "too_late")
    assert "too_late" not in desk.types(lease)
