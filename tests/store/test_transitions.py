"""Every status against every way to change it; and histories that nobody would think of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from desk import Desk, question, step
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from langgraph_durable.errors import DurableError
from langgraph_durable.runs import (
    FINAL,
    NEXT,
    Asked,
    Broke,
    Done,
    Drained,
    Lease,
    Outcome,
    Retried,
    Slept,
    Status,
)

ERROR = {"type": "E", "message": "no"}
LEASED = {Status.RUNNING, Status.CANCELLING}


def _reach(desk: Desk, status: Status) -> Lease:
    """Bring a run to a status by the store's own moves; return the lease it was last under."""
    lease = desk.started().lease
    ways: dict[Status, Callable[[], object]] = {
        Status.QUEUED: lambda: desk.store.settle(lease, Drained()),
        Status.RUNNING: lambda: None,
        Status.WAITING_HUMAN: lambda: desk.store.settle(lease, Asked((question(),))),
        Status.SLEEPING: lambda: desk.store.settle(lease, Slept(1e6)),
        Status.CANCELLING: lambda: desk.store.cancel(lease.run_id, by="x"),
        Status.SUCCEEDED: lambda: desk.store.settle(lease, Done("1")),
        Status.FAILED: lambda: desk.store.settle(lease, Broke(ERROR)),
        Status.CANCELLED: lambda: (
            desk.store.cancel(lease.run_id, by="x"),
            desk.store.settle(lease, Done("1")),
        ),
    }
    ways[status]()
    assert desk.status(lease) is status
    return lease


@pytest.mark.promise("S-02")
@pytest.mark.parametrize("source", list(Status))
def test_a_worker_makes_exactly_the_moves_of_the_table_and_only_from_what_it_owns(
    desk: Desk, source: Status
):
    for target in Status:
        desk.wipe()
        lease = _reach(desk, source)
        allowed = source in LEASED and target in NEXT[source]
        try:
            desk.store.set_status(lease, target)
        except DurableError:
            assert not allowed, target
            assert desk.status(lease) is source
        else:
            assert allowed, target
            assert desk.status(lease) is target


@pytest.mark.promise("S-63")
@pytest.mark.parametrize("source", list(Status))
def test_what_a_claim_a_cancel_and_a_retry_do_to_each_status(desk: Desk, source: Status):
    lease = _reach(desk, source)
    claimable = source in (Status.QUEUED, *LEASED)
    desk.clock.advance(61)
    got = desk.claim("w2")
    assert (got is not None) is claimable

    lease = _reach(desk, source)
    try:
        told: Status | None = desk.store.cancel(lease.run_id, by="x")
    except DurableError:
        told = None
    if source in (Status.SUCCEEDED, Status.FAILED):
        assert told is None
        assert desk.status(lease) is source
    else:
        kept = Status.CANCELLING if source in LEASED else Status.CANCELLED
        assert told is desk.status(lease) is kept

    lease = _reach(desk, source)
    if source is Status.FAILED:
        assert desk.store.retry(lease.run_id, by="x").status is Status.QUEUED
    else:
        with pytest.raises(DurableError):
            desk.store.retry(lease.run_id, by="x")
        assert desk.status(lease) is source


OUTCOMES: list[Outcome] = [
    Done("1"),
    Asked((question(),)),
    Slept(5),
    Broke(ERROR),
    Drained(),
    Retried(ERROR, progressed=False),
    Retried(ERROR, progressed=True),
]
MOVES = st.one_of(
    st.tuples(st.just("claim"), st.sampled_from(["w1", "w2"])),
    st.tuples(st.just("settle"), st.integers(0, 3), st.integers(0, len(OUTCOMES) - 1)),
    st.tuples(st.just("set"), st.integers(0, 3), st.sampled_from(list(Status))),
    st.tuples(st.just("put"), st.integers(0, 3), st.sampled_from(["a", "b"])),
    st.tuples(st.just("beat"), st.integers(0, 3)),
    st.tuples(st.just("pass"), st.sampled_from([1, 61])),
    st.sampled_from([("decide",), ("cancel",), ("retry",), ("sweep",)]),
)


class History:
    """One run, the leases it was ever under, and what must hold after every move."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.run_id = desk.submit().id
        self.leases: list[Lease] = [Lease(self.run_id, 0, "nobody")]
        self.retried = False

    def move(self, name: str, *args: object) -> None:
        before = self.desk.run(self.run_id)
        steps = {s.key: s for s in self.desk.store.list_steps(self.run_id) if s.value}
        self.retried = False
        with contextlib.suppress(DurableError):
            getattr(self, name)(*args)
        after = self.desk.run(self.run_id)
        changed = after.status is not before.status
        if changed and before.status in FINAL:
            assert (before.status, after.status) == (Status.FAILED, Status.QUEUED)
            assert self.retried
        if changed:
            assert _leads(before.status, after.status), (name, before.status, after.status)
        assert after.epoch >= before.epoch
        assert (after.worker is None) is (after.status not in LEASED)
        assert (after.lease_until is None) is (after.status not in LEASED)
        assert (after.finished_at is None) is (after.status not in FINAL)
        for key, kept in steps.items():  # a recorded answer never changes
            assert self.desk.store.get_step(self.run_id, key) == kept

    def old(self, index: int) -> Lease:
        return self.leases[max(0, len(self.leases) - 1 - index)]

    def claim(self, worker: str) -> None:
        claim = self.desk.claim(worker)
        if claim is not None:
            assert claim.lease.epoch == self.leases[-1].epoch + 1 or claim.lease.epoch > 1
            self.leases.append(claim.lease)

    def settle(self, index: int, outcome: int) -> None:
        chosen = OUTCOMES[outcome]
        self.desk.store.settle(
            self.old(index), Asked((question(),)) if isinstance(chosen, Asked) else chosen
        )

    def set(self, index: int, status: Status) -> None:
        self.desk.store.set_status(self.old(index), status)

    def put(self, index: int, key: str) -> None:
        lease = self.old(index)
        self.desk.store.put_step(lease, step(key, lease.epoch))
        assert self.desk.run(self.run_id).epoch == lease.epoch, "an older epoch was let in"

    def beat(self, index: int) -> None:
        lease = self.old(index)
        if self.desk.store.heartbeat([lease], 60):
            assert self.desk.run(self.run_id).epoch == lease.epoch

    def decide(self) -> None:
        for open_ in self.desk.run(self.run_id).questions:
            self.desk.decide(open_.id)

    def cancel(self) -> None:
        self.desk.store.cancel(self.run_id, by="x")

    def retry(self) -> None:
        self.desk.store.retry(self.run_id, by="x")
        self.retried = True

    def sweep(self) -> None:
        self.desk.store.sweep()


def _leads(source: Status, target: Status) -> bool:
    """One call may make two moves: a claim that ends a crash loop, a park that wakes at once."""
    return target in NEXT[source] or any(target in NEXT[middle] for middle in NEXT[source])


setattr(History, "pass", lambda self, seconds: self.desk.clock.advance(seconds))


@pytest.mark.promise("S-05")
@given(moves=st.lists(MOVES, min_size=3, max_size=25))
@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_finished_run_never_moves_again_and_no_older_epoch_is_ever_visible(
    desk: Desk, moves: list[tuple[str, ...]]
):
    desk.wipe()
    history = History(desk)
    for move in moves:
        history.move(*move)
