"""H-08 and H-09: a healthy worker keeps its lease; one that wakes too late changes nothing."""

from __future__ import annotations

import signal
import time

import pytest

from langgraph_durable import Status
from tests.faults.conftest import eventually


@pytest.mark.promise("H-08")
@pytest.mark.promise("S-14")
@pytest.mark.parametrize("how", ["sleep", "cpu", "tool"])
def test_blocking_code_does_not_lose_the_lease(sqlite_town, mode, how):
    town = sqlite_town
    run_id = town.submit(f"blocked.{mode}", {"how": how, "seconds": 2.2})
    town.worker(lease=0.9)
    town.until(run_id, "running")
    town.worker(lease=0.9).ready()
    run = town.succeeded(run_id)
    assert town.claims(run_id) == ["w0"]
    assert (run.epoch, run.attempts) == (1, 0)
    assert [c.tool for c in town.ledger.calls(run_id=run_id)].count("pay") == 1


@pytest.mark.promise("H-08")
def test_blocking_code_does_not_lose_the_lease_on_postgres(postgres_town, mode):
    town = postgres_town
    run_id = town.submit(f"blocked.{mode}", {"how": "sleep", "seconds": 2.2})
    town.worker(lease=0.9)
    town.until(run_id, "running")
    town.worker(lease=0.9).ready()
    assert town.succeeded(run_id).epoch == 1
    assert town.claims(run_id) == ["w0"]


@pytest.mark.promise("H-08")
def test_a_run_claimed_while_the_loop_is_blocked_is_kept_too(sqlite_town):
    """The claim is made in a thread; the loop learns of it only when it is free again."""
    town = sqlite_town
    first = town.worker(lease=1.0)
    first.ready()
    blocked = [town.submit("blocked.steps", {"how": "sleep", "seconds": 1.5}) for _ in range(3)]
    for run_id in blocked:
        town.succeeded(run_id)
    assert [town.durable.get(r).epoch for r in blocked] == [1, 1, 1]


@pytest.mark.promise("H-08")
def test_more_slow_sync_tools_than_cpus_do_not_starve_the_worker(sqlite_town):
    """Claims, loads and settles must not queue up behind users' threads."""
    town = sqlite_town
    town.gates.arm("raw")
    held = [town.submit("raw.steps") for _ in range(24)]
    town.worker(lease=1.0, concurrency=25)
    town.reached("raw", 24)
    quick = town.submit("pay.steps")
    town.succeeded(quick, seconds=10)
    town.gates.open("raw")
    for run_id in held:
        assert town.succeeded(run_id).epoch == 1


@pytest.mark.promise("S-14")
def test_sync_branches_that_wait_for_sync_tools_do_not_wait_for_each_other(sqlite_town, mode):
    """Each holds a thread while its tool needs another: a full pool would never get on."""
    town = sqlite_town
    run_id = town.submit(f"wide.{mode}")
    town.worker(lease=5.0, concurrency=1)
    run = town.succeeded(run_id, seconds=40)
    assert sorted(run.output["results"]) == list(range(150))
    assert len(town.ledger.effects(run_id)) == 150


@pytest.mark.promise("H-09")
@pytest.mark.promise("S-05")
@pytest.mark.promise("S-16")
@pytest.mark.parametrize(
    ("names", "finished"), [(("a", "b"), True), (("same", "same"), True), (("a", "a"), False)]
)
def test_a_worker_that_wakes_too_late_changes_nothing(sqlite_town, mode, names, finished):
    _wakes_too_late(sqlite_town, mode, names, finished)


@pytest.mark.promise("H-09")
@pytest.mark.parametrize("finished", [True, False])
def test_a_worker_that_wakes_too_late_changes_nothing_on_postgres(postgres_town, mode, finished):
    _wakes_too_late(postgres_town, mode, ("same", "same"), finished)


def _wakes_too_late(town, mode, names, finished):
    town.gates.arm("hold")
    run_id = town.submit(f"hold.{mode}")
    stale = town.worker(lease=1.0, name=names[0])
    assert town.reached("hold") == stale.pid
    town.freeze(stale)

    later = town.worker(lease=30.0, name=names[1])
    assert town.reached("hold", 2) == later.pid
    before = town.durable.get(run_id)
    if finished:  # B finishes; A finds a run that has ended
        town.gates.open("hold")
    else:  # B is still at it when A wakes
        stale.send(signal.SIGCONT)
        eventually(lambda: "hands off" in stale.log(), "A gives up", context=stale.log)
        run = town.durable.get(run_id)
        assert (run.status, run.epoch) == (Status.RUNNING, 2)
        assert run.lease_until >= before.lease_until  # B extends it, A doesn't shorten it
        town.gates.open("hold")
    run = town.succeeded(run_id)
    if finished:
        ended = town.durable.get(run_id)
        events = town.events(run_id)
        stale.send(signal.SIGCONT)
        eventually(lambda: "hands off" in stale.log(), "A gives up", context=stale.log)
        assert town.durable.get(run_id) == ended
        assert town.events(run_id) == events
    # A's own call, made by a thread that nothing can stop, is refused by its stale token
    eventually(lambda: len(town.ledger.calls("hold", run_id)) == 2, "both calls", 5, town.logs)
    verdicts = {c.pid: c.verdict for c in town.ledger.calls("hold", run_id)}
    assert verdicts[later.pid] in ("done", "repeat")
    assert len([c for c in town.ledger.effects(run_id) if c.tool == "hold"]) == 1
    if finished:
        assert verdicts[stale.pid] == "stale"
    assert [c.pid for c in town.ledger.calls("later", run_id)] == [later.pid]
    assert [c.pid for c in town.ledger.calls("pay", run_id)] == [later.pid]
    assert run.epoch == 2
    assert run.output["results"] == ["held", {"paid": 4_200}]
    assert {s.epoch for s in town.durable.journal(run_id)} == {2}
    assert stale.is_alive  # and serves on
    other = town.submit("pay.steps")
    town.succeeded(other)


@pytest.mark.promise("S-62")
def test_a_run_much_longer_than_its_lease_stays_with_one_worker(sqlite_town, mode):
    town = sqlite_town
    town.gates.arm("outage")
    run_id = town.submit(f"outage.{mode}")
    town.worker(lease=0.6)
    town.reached("outage")
    town.worker(lease=0.6).ready()
    started = time.monotonic()
    while time.monotonic() - started < 2.0:
        assert town.durable.get(run_id).epoch == 1
        time.sleep(0.1)
    town.gates.open("outage")
    assert town.succeeded(run_id).attempts == 0
