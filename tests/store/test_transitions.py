"""Every status against every way to change it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from desk import Desk, question

from langgraph_durable.errors import DurableError
from langgraph_durable.runs import (
    NEXT,
    Asked,
    Broke,
    Done,
    Drained,
    Lease,
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
