"""Who gets a run: claims, takeovers, attempts, and runs that nobody here can execute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from desk import Desk, at_once, question, step

from langgraph_durable.clock import SystemClock
from langgraph_durable.runs import Asked, Broke, Done, Drained, Retried, Slept, Status
from langgraph_durable.store import Claim, RunStore, Served, schema
from langgraph_durable.testing.fakes import FakeClock
from langgraph_durable.worker import Worker, default_name

ERROR = {"type": "E", "message": "no"}


@pytest.mark.promise("S-03")
def test_a_submitted_run_is_queued_and_has_no_owner(desk: Desk):
    run = desk.submit()
    assert (run.status, run.worker, run.epoch, run.attempts) == (Status.QUEUED, None, 0, 0)
    assert desk.store.get(run.id) == run


@pytest.mark.promise("S-04")
def test_two_workers_race_for_each_run_and_exactly_one_gets_it(live: Desk):
    for _ in range(25):
        run = live.submit()
        got = at_once(*(lambda w=w: live.claim(w) for w in ("w1", "w2", "w3")))
        winners = [claim for claim in got if claim is not None]
        assert [claim.run.id for claim in winners] == [run.id], got
        live.store.settle(winners[0].lease, Done("1"))


@pytest.mark.promise("S-04")
def test_workers_at_once_share_the_queue_without_taking_a_run_twice(live: Desk):
    runs = {live.submit().id for _ in range(40)}

    def drain(worker: str) -> list[str]:
        got = []
        while (claim := live.claim(worker)) is not None:
            got.append(claim.run.id)
        return got

    parts = at_once(*(lambda w=w: drain(w) for w in ("w1", "w2", "w3", "w4")))
    taken = [run for part in parts for run in part]
    assert sorted(taken) == sorted(runs)


@pytest.mark.promise("S-04")
def test_two_workers_race_for_a_dead_ones_run_and_exactly_one_takes_it_over(live: Desk):
    for _ in range(10):
        live.submit(max_attempts=99)
        live.take("w0", lease_seconds=-1)
        got = at_once(*(lambda w=w: live.claim(w) for w in ("w1", "w2")))
        winners = [claim for claim in got if claim is not None]
        assert [claim.lease.epoch for claim in winners] == [2], got
        live.store.settle(winners[0].lease, Done("1"))


@pytest.mark.promise("S-63")
def test_priority_goes_first_then_age(desk: Desk):
    old, urgent, new = desk.submit(), desk.submit(priority=5), desk.submit()
    assert [desk.take().run.id for _ in range(3)] == [urgent.id, old.id, new.id]


@pytest.mark.promise("S-63")
def test_a_run_that_is_not_due_yet_waits(desk: Desk):
    run = desk.submit(delay_seconds=30)
    assert desk.claim() is None
    desk.clock.advance(31)
    assert desk.take().run.id == run.id


@pytest.mark.promise("S-63")
def test_a_waiting_sleeping_or_finished_run_is_never_claimed(desk: Desk):
    for outcome in (Asked((question(),)), Slept(1e6), Done("1"), Broke(ERROR)):
        desk.store.settle(desk.started().lease, outcome)
    desk.store.cancel(desk.submit().id, by="mei")
    desk.clock.advance(3600)
    assert desk.claim() is None


@pytest.mark.promise("S-05")
def test_within_the_lease_nobody_else_gets_the_run_and_after_it_another_does(desk: Desk):
    first = desk.started()
    desk.clock.advance(59)
    assert desk.claim("w2") is None
    desk.clock.advance(2)
    second = desk.take("w2")
    assert second.run.id == first.run.id
    assert (second.lease.epoch, second.run.attempts, second.run.worker) == (2, 1, "w2")
    assert desk.types(second.run)[-1] == "run_taken_over"
    assert desk.store.list_events(second.run.id)[-1].data["from"] == "w1"


@pytest.mark.promise("S-06")
def test_a_heartbeat_keeps_the_run(desk: Desk):
    claim = desk.started()
    for _ in range(6):
        desk.clock.advance(30)
        assert desk.store.heartbeat([claim.lease], 60) == {claim.lease: Status.RUNNING}
    assert desk.claim("w2") is None
    assert desk.run(claim.lease).attempts == 0


@pytest.mark.promise("S-11")
def test_a_takeover_after_progress_counts_as_the_first_attempt(desk: Desk):
    claim = desk.started(max_attempts=3)
    for round_ in range(5):  # would be a crash loop without progress
        desk.store.put_step(claim.lease, step(f"s{round_}"))
        desk.clock.advance(61)
        claim = desk.take("w2")
        assert claim.run.attempts == 1


@pytest.mark.promise("S-11")
def test_a_checkpoint_is_progress_too(desk: Desk):
    claim = desk.started()
    with desk.engine.begin() as tx:
        tx.execute(sa.update(schema.runs).values(attempts=2, progress_epoch=schema.runs.c.epoch))
    desk.store.settle(claim.lease, Retried(ERROR, progressed=False))
    assert (desk.run(claim.lease).attempts, desk.status(claim.lease)) == (1, Status.QUEUED)


@pytest.mark.promise("S-11")
def test_a_run_that_keeps_killing_its_worker_ends_as_a_crash_loop(desk: Desk):
    claim = desk.started(max_attempts=3)
    for expected in (1, 2):
        desk.clock.advance(61)
        claim = desk.take(f"w{expected}")
        assert claim.run.attempts == expected
    desk.clock.advance(61)
    other = desk.submit()
    assert desk.take("w9").run.id == other.id  # the dead one does not stop the worker
    run = desk.run(claim.lease)
    assert run.status is Status.FAILED
    assert run.error is not None
    assert run.error["reason"] == "crash_loop"
    assert desk.types(run)[-2:] == ["run_taken_over", "run_failed"]
    assert desk.store.heartbeat([claim.lease], 60) == {}


@pytest.mark.promise("S-11")
def test_handing_back_approving_and_sleeping_cost_no_attempt(desk: Desk):
    asked = question(kind="ask")
    lease = desk.started(max_attempts=2).lease
    desk.store.settle(lease, Drained())
    lease = desk.take("w2").lease
    desk.store.settle(lease, Asked((asked,)))
    desk.decide(asked.id)
    lease = desk.take("w3").lease
    desk.store.settle(lease, Slept(5))
    desk.clock.advance(6)
    assert desk.store.sweep() == 1
    claim = desk.take("w4")
    assert (claim.run.attempts, claim.lease.epoch) == (0, 4)


@pytest.mark.promise("S-11")
def test_a_run_handed_back_is_claimed_next_although_others_wait_longer_in_the_queue(desk: Desk):
    claim = desk.started()
    desk.submit()
    desk.store.settle(claim.lease, Drained())
    assert desk.take("w2").run.id == claim.run.id


@pytest.mark.promise("H-11")
def test_a_worker_dies_while_its_run_is_cancelling_and_another_settles_it(desk: Desk):
    claim = desk.started()
    assert desk.store.cancel(claim.run.id, by="mei") is Status.CANCELLING
    assert desk.claim("w2") is None
    desk.clock.advance(61)
    taken = desk.take("w2")
    assert (taken.run.status, taken.run.attempts) == (Status.CANCELLING, 0)
    assert desk.store.settle(taken.lease, Broke({})) is Status.CANCELLED


@pytest.mark.promise("S-12")
def test_an_agent_that_nobody_has_is_claimed_so_that_its_run_can_be_failed(desk: Desk):
    run = desk.submit("gone")
    assert desk.claim("w1", adopts=False) is None
    assert desk.take("w1").run.id == run.id


@pytest.mark.promise("S-12")
def test_an_agent_that_another_live_worker_has_is_left_to_it(desk: Desk):
    for name in ("theirs", 'quo"te', "日本", "with space", "back\\slash"):
        run = desk.submit(name)
        desk.store.announce("w2", [("theirs.too", "1"), (name, "1"), ("zz", "1")])
        assert desk.claim("w1") is None, name
        assert desk.claim("w2", name) is not None
        assert desk.status(run) is Status.RUNNING


@pytest.mark.promise("S-12")
def test_a_name_that_is_part_of_an_announced_one_is_not_announced(desk: Desk):
    desk.store.announce("w2", [("support.v2", "1")])
    run = desk.submit("support")
    assert desk.take("w1").run.id == run.id


@pytest.mark.promise("S-12")
def test_an_agent_of_a_worker_that_left_or_fell_silent_is_adopted(desk: Desk):
    desk.store.announce("w2", [("b", "1")])
    desk.store.announce("w3", [("c", "1")])
    runs = {desk.submit("b").id, desk.submit("c").id}
    assert desk.claim("w1") is None
    desk.store.depart("w2")
    desk.clock.advance(61)
    assert {desk.take("w1").run.id, desk.take("w1").run.id} == runs


@pytest.mark.promise("S-12")
def test_workers_that_died_long_ago_are_forgotten(desk: Desk):
    desk.store.announce("dead", [("b", "1")])
    desk.clock.advance(90_000)
    desk.store.announce("new", [("b", "1")])
    with desk.engine.connect() as tx:
        assert tx.execute(sa.select(schema.workers.c.name)).scalars().all() == ["new"]


@pytest.mark.promise("S-12")
def test_a_version_that_is_not_served_here_is_left_for_a_worker_that_has_it(desk: Desk):
    run = desk.submit("a", version="2")
    assert desk.claim("w1", "a", version="1") is None
    claim = desk.claim("w2", "a", version="2")
    assert claim is not None
    assert claim.run.id == run.id


@pytest.mark.promise("S-12")
def test_a_worker_with_no_agents_claims_only_what_it_may_adopt(desk: Desk):
    from langgraph_durable.store import Served

    desk.submit("a")
    assert desk.store.claim("w", 60, Served([], adopts=False)) is None
    assert desk.store.claim("w", 60, Served([], adopts=True)) is not None


@pytest.mark.promise("S-68")
def test_a_workers_name_has_the_host_and_a_part_of_its_own(tmp_path):
    import socket

    from langgraph_durable import Durable

    assert default_name().startswith(socket.gethostname())
    assert len({default_name() for _ in range(100)}) == 100
    worker = Worker(Durable(f"sqlite:///{tmp_path / 'x.db'}"))
    assert worker.lease_seconds == 60.0
    worker.durable.store.engine.dispose()


@pytest.mark.promise("S-02")
def test_without_a_clock_postgres_goes_by_the_servers_time_and_sqlite_by_the_machines(
    live: Desk, monkeypatch: pytest.MonkeyPatch
):
    """A worker whose clock is an hour ahead neither steals leases nor makes long ones."""
    ahead = datetime.now(UTC) + timedelta(hours=1)
    claim = live.started()
    monkeypatch.setattr(SystemClock, "now", lambda self: ahead)
    if live.is_postgres:
        assert live.claim("w2") is None
        live.store.heartbeat([claim.lease], 60)
        until = live.run(claim.lease).lease_until
        assert until is not None
        assert until < ahead
    else:
        assert live.take("w2").run.id == claim.run.id


@pytest.mark.promise("S-02")
def test_a_clock_that_was_given_is_obeyed_on_both_databases(live: Desk):
    fast = RunStore(live.engine, FakeClock(datetime.now(UTC) + timedelta(hours=1)))
    claim = live.started()
    from langgraph_durable.store import Served

    taken = fast.claim("w2", 60, Served([("a", "1")]))
    assert taken is not None
    assert taken.run.id == claim.run.id
    assert live.claim("w3") is None


@pytest.mark.promise("S-02")
def test_a_time_beyond_any_calendar_is_a_long_time_not_an_error(desk: Desk):
    for seconds in (1e18, float("inf"), float("nan")):
        claim = desk.started()
        assert desk.store.settle(claim.lease, Slept(seconds)) is Status.SLEEPING
    assert desk.store.sweep() == 0


@pytest.mark.promise("S-61")
def test_a_tenant_over_its_limit_lets_others_go_first(live: Desk):
    crowd = [live.submit(tenant="crowd") for _ in range(5)]
    other = live.submit(tenant="other")
    served = Served([("a", "1")], tenant_limit=2)

    def claim() -> Claim | None:
        return live.store.claim("w", 60.0, served)

    claims = [claim() for _ in range(4)]
    assert [c.run.id if c else None for c in claims] == [crowd[0].id, crowd[1].id, other.id, None]
    assert claims[0] is not None
    live.store.settle(claims[0].lease, Done("1"))
    again = claim()
    assert again is not None
    assert again.run.id == crowd[2].id
    assert live.take().run.id == crowd[3].id  # a worker without a limit takes what is next
