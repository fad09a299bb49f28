"""`ctx.wait_for` and `durable.send`: kept until it is taken, taken once, in both modes."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from shop import Shop, failed, succeeded, waits

from langgraph_durable import Decision, RunContext, Status, current_run
from langgraph_durable.errors import BadInput, Conflict, NotFound, TooLarge, WaitTimedOut
from langgraph_durable.runs import StepState
from langgraph_durable.testing import FakeClock, crash_everywhere


class Notes(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]


def branches(*nodes: Any) -> StateGraph[Notes]:
    """Return a graph whose nodes run beside each other."""
    graph = StateGraph(Notes)
    for node in nodes:
        graph.add_node(node.__name__, node)
        graph.add_edge(START, node.__name__)
        graph.add_edge(node.__name__, END)
    return graph


async def paid(_state: Notes) -> Notes:
    return {"notes": [("paid", await current_run().wait_for("payment", "paid"))]}


async def shipped(_state: Notes) -> Notes:
    try:
        told = await current_run().wait_for("parcel", "shipped", timeout_seconds=60)
    except TimeoutError:
        told = "late"
    return {"notes": [("shipped", told)]}


async def asked(_state: Notes) -> Notes:
    return {"notes": [("asked", await current_run().ask("ok", "Is it right?"))]}


def notes(run: Any) -> dict[str, Any]:
    return dict(map(tuple, succeeded(run)["notes"]))


def sleeps(run: Any) -> None:
    assert run.status is Status.SLEEPING, (run.status, run.error)


def test_a_run_waits_without_a_worker_and_goes_on_with_the_payload(any_shop: Shop, mode: str):
    any_shop.deploy(branches(paid), mode)
    sleeps(any_shop.begin({}))
    assert any_shop.run.worker is None
    assert any_shop.run.wake_at is None
    assert any_shop.journal["payment"].state is StepState.WAITING
    assert any_shop.work().epoch == 1  # nobody claims it meanwhile
    any_shop.restart()
    any_shop.durable.send(any_shop.run_id, "refunded", 1)
    sleeps(any_shop.work())
    assert any_shop.run.epoch == 1  # another event wakes nobody
    sent = any_shop.durable.send(any_shop.run_id, "paid", {"cents": 42}, id="evt_1")
    assert notes(any_shop.work()) == {"paid": {"cents": 42}}
    assert any_shop.durable.value(any_shop.journal["payment"])["signal"] == sent.id == "evt_1"
    other, taken = any_shop.durable.signals(any_shop.run_id)
    assert (other.taken_by, taken.taken_by) == (None, "payment")
    assert any_shop.events.count("signal_sent") == 2


def test_signals_before_the_wait_are_kept_and_taken_in_order(any_shop: Shop):
    async def both(ctx: RunContext, _given: Any) -> list[Any]:
        return [await ctx.wait_for(f"payment:{i}", "paid") for i in range(3)]

    any_shop.deploy(both)
    any_shop.submit()
    any_shop.durable.send(any_shop.run_id, "paid", 1)
    any_shop.durable.send(any_shop.run_id, "paid", 2)
    sleeps(any_shop.work())
    any_shop.durable.send(any_shop.run_id, "paid", 3)
    assert succeeded(any_shop.work()) == [1, 2, 3]


def test_a_signal_that_comes_while_the_run_is_about_to_park_wakes_it_at_once(
    any_shop: Shop, monkeypatch: pytest.MonkeyPatch
):
    any_shop.deploy(branches(paid))
    store = any_shop.durable.store
    settle = store.settle

    def sent_before(*args: Any) -> Any:
        if any_shop.run.epoch == 1:
            any_shop.durable.send(any_shop.run_id, "paid", "just in time")
        return settle(*args)

    monkeypatch.setattr(store, "settle", sent_before)
    assert notes(any_shop.begin({})) == {"paid": "just in time"}
    assert any_shop.run.epoch == 2


def test_two_branches_wait_for_one_event_and_each_takes_its_own(shop: Shop, mode: str):
    async def other(_state: Notes) -> Notes:
        return {"notes": [("other", await current_run().wait_for("payment 2", "paid"))]}

    shop.deploy(branches(paid, other), mode)
    shop.submit({})
    shop.durable.send(shop.run_id, "paid", 1)
    sleeps(shop.work())
    shop.durable.send(shop.run_id, "paid", 2)
    assert sorted(notes(shop.work()).values()) == [1, 2]
    assert len({signal.taken_by for signal in shop.durable.signals(shop.run_id)}) == 2


def test_the_end_of_the_time_is_told_apart_and_stays(any_shop: Shop, mode: str):
    clock = FakeClock()
    any_shop.deploy(branches(shipped), mode, clock=clock)
    sleeps(any_shop.begin({}))
    clock.advance(59)
    sleeps(any_shop.work())
    clock.advance(2)
    assert notes(any_shop.work()) == {"shipped": "late"}
    with pytest.raises(Conflict, match="succeeded; it takes no signals"):
        any_shop.durable.send(any_shop.run_id, "shipped", 1)


def test_a_signal_that_is_there_when_the_run_looks_wins_against_the_clock(shop: Shop):
    clock = FakeClock()
    shop.deploy(branches(shipped), clock=clock)
    sleeps(shop.begin({}))
    clock.advance(61)
    shop.durable.send(shop.run_id, "shipped", "tracking 1")
    assert notes(shop.work()) == {"shipped": "tracking 1"}


def test_a_run_that_does_not_catch_it_fails_and_a_retry_waits_anew(shop: Shop):
    async def strict(ctx: RunContext, _given: Any) -> Any:
        return await ctx.wait_for("payment", "paid", 60)

    clock = FakeClock()
    shop.deploy(strict, clock=clock)
    shop.begin()
    clock.advance(61)
    error = failed(shop.work())
    assert (error["type"], error["reason"]) == (WaitTimedOut.__name__, "wait_timed_out")
    assert "'paid' did not come in time" in error["message"]
    shop.durable.retry(shop.run_id, by="ops")
    sleeps(shop.work())
    shop.durable.send(shop.run_id, "paid", 1)
    assert succeeded(shop.work()) == 1


def test_events_timers_and_people_wake_a_run_whatever_its_other_branches_wait_for(
    any_shop: Shop, mode: str
):
    clock = FakeClock()
    any_shop.deploy(branches(asked, paid, shipped), mode, clock=clock)
    waits(any_shop.begin({}))
    any_shop.durable.send(any_shop.run_id, "paid", 7)
    waits(any_shop.work())
    assert any_shop.journal["payment"].state is StepState.RECORDED
    clock.advance(61)
    waits(any_shop.work())
    assert any_shop.journal["parcel"].state is StepState.RECORDED
    assert len(any_shop.durable.questions(run_id=any_shop.run_id, state=None)) == 1
    any_shop.decide(Decision.respond("mei", "yes"))
    assert notes(any_shop.work()) == {"asked": "yes", "paid": 7, "shipped": "late"}


def test_a_question_answered_while_the_run_was_awake_is_not_put_twice(shop: Shop):
    async def answering(_state: Notes) -> Notes:
        told = await current_run().wait_for("payment", "paid")
        if shop.asked:
            shop.decide(Decision.respond("mei", "yes"))
        return {"notes": [("paid", told)]}

    shop.deploy(branches(asked, answering))
    waits(shop.begin({}))
    shop.durable.send(shop.run_id, "paid", 7)
    assert notes(shop.work()) == {"asked": "yes", "paid": 7}
    assert len(shop.durable.questions(run_id=shop.run_id, state=None)) == 1


def test_timers_of_parallel_branches_each_end_at_their_own_time(shop: Shop, mode: str):
    def napping(name: str, seconds: float) -> Any:
        async def nap(_state: Notes) -> Notes:
            ctx = current_run()
            await ctx.sleep(f"nap {name}", seconds)
            at = await ctx.now(f"awake {name}")
            return {"notes": [(name, (at - began).total_seconds())]}

        nap.__name__ = name
        return nap

    clock = FakeClock()
    began = clock.now()
    shop.deploy(branches(napping("short", 10), napping("long", 30)), mode, clock=clock)
    shop.begin({})
    for seconds in (10, 20):
        sleeps(shop.work())
        clock.advance(seconds)
    assert notes(shop.work()) == {"short": 10.0, "long": 30.0}


def test_blocking_code_waits_as_well(shop: Shop, mode: str):
    def sync(_state: Notes) -> Notes:
        return {"notes": [("sync", current_run().blocking.wait_for("payment", "paid"))]}

    shop.deploy(branches(sync), mode)
    sleeps(shop.begin({}))
    shop.durable.send(shop.run_id, "paid", 5)
    assert notes(shop.work()) == {"sync": 5}


def test_a_cancelled_run_waits_for_nothing(shop: Shop):
    shop.deploy(branches(paid))
    shop.begin({})
    shop.durable.cancel(shop.run_id)
    assert shop.run.status is Status.CANCELLED
    with pytest.raises(Conflict, match="cancelled"):
        shop.durable.send(shop.run_id, "paid")
    assert shop.work().status is Status.CANCELLED


def test_senders_are_refused_at_the_boundary(shop: Shop):
    shop.deploy(branches(paid))
    run_id = shop.submit({}, tenant="acme")
    send = shop.durable.send
    assert send(run_id, "paid", {"a": 1, "b": 2}, id="evt_1").id == "evt_1"
    assert send(run_id, "paid", {"b": 2, "a": 1}, id="evt_1").number == 1  # the same: a no-op
    with pytest.raises(Conflict, match="evt_1"):
        send(run_id, "paid", {"a": 2}, id="evt_1")
    with pytest.raises(Conflict, match="evt_1"):
        send(run_id, "unpaid", {"a": 1, "b": 2}, id="evt_1")
    with pytest.raises(NotFound):
        send(run_id, "paid", tenant="other")
    with pytest.raises(NotFound):
        send("no such run", "paid")
    with pytest.raises(TooLarge, match="256,000"):
        send(run_id, "paid", "x" * 300_000)
    with pytest.raises(BadInput, match="payload of the event 'paid'"):
        send(run_id, "paid", object())
    with pytest.raises(BadInput, match="an event"):
        send(run_id, "")
    assert len(shop.durable.signals(run_id, "acme")) == 1
    succeeded(shop.work())
    assert send(run_id, "paid", {"a": 1, "b": 2}, id="evt_1").taken_by == "payment"


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1, 1e12, True, "soon"])
def test_times_that_no_timer_can_be_set_to_are_refused_by_name(shop: Shop, seconds: Any):
    async def waiting(ctx: RunContext, given: Any) -> Any:
        if given == "sleep":
            await ctx.sleep("nap", seconds)
        return await ctx.wait_for("nap", "paid", seconds)

    shop.deploy(waiting)
    for given in ("sleep", "wait"):
        error = failed(shop.begin(given))
        assert error["type"] == "BadInput"
        assert "step 'nap'" in error["message"]
        assert repr(seconds) in error["message"]


def test_crash_everywhere_signals_by_a_script():
    async def order(ctx: RunContext, _given: Any) -> list[Any]:
        paid = await ctx.wait_for("payment", "paid")
        try:
            return [paid, await ctx.wait_for("parcel", "shipped", timeout_seconds=60)]
        except TimeoutError:
            return [paid, "late"]

    report = crash_everywhere(order, signals={"paid": [{"cents": 42}]}, stops=True)
    report.assert_ok()
    assert {p.label for p in report.points} >= {
        "signal 'paid-1'",
        "record of step 'payment' as recorded",
        "record of step 'parcel' as waiting",
    }
    assert report.calm.run.output == [{"cents": 42}, "late"]


def test_crash_everywhere_signals_in_graph_mode():
    report = crash_everywhere(branches(paid), {}, mode="graph", signals={"paid": [1]})
    report.assert_ok()
    assert dict(report.calm.run.output["notes"]) == {"paid": 1}
