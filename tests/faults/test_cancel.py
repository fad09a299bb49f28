"""H-11: a cancel during a call that can't be interrupted."""

from __future__ import annotations

import time

import pytest

from langgraph_durable import Status
from langgraph_durable.runs import StepState

LONG = 30.0


@pytest.mark.promise("H-11")
def test_a_cancel_waits_for_the_call_in_flight(town, mode):
    town.gates.arm("hold")
    run_id = town.submit(f"hold.{mode}")
    worker = town.worker(lease=LONG)
    town.reached("hold")
    assert town.durable.cancel(run_id) is Status.CANCELLING
    # it is told at once, not at the next heartbeat of a long lease; the call still runs
    time.sleep(1.2)
    assert town.status(run_id) is Status.CANCELLING
    town.gates.open("hold")
    run = town.until(run_id, "cancelled", "succeeded", "failed", seconds=5)
    assert run.status is Status.CANCELLED
    # the outcome is recorded, and nothing came after it
    assert town.step(run_id, "hold").state is StepState.RECORDED
    assert [c.verdict for c in town.ledger.calls("hold", run_id)] == ["done"]
    assert not town.ledger.calls("pay", run_id)
    assert not town.ledger.calls("later", run_id)
    assert run.output is None
    assert worker.is_alive


@pytest.mark.promise("H-11")
def test_a_cancel_waits_for_a_sync_node_too(sqlite_town, mode):
    """Plain LangGraph code in a thread is not a step, but it is just as much in flight."""
    town = sqlite_town
    town.gates.arm("raw")
    run_id = town.submit(f"raw.{mode}")
    town.worker(lease=LONG)
    town.reached("raw")
    town.durable.cancel(run_id)
    time.sleep(1.2)
    assert town.status(run_id) is Status.CANCELLING
    assert not town.ledger.calls("raw", run_id)
    town.gates.open("raw")
    run = town.until(run_id, "cancelled", "succeeded", "failed", seconds=5)
    assert run.status is Status.CANCELLED
    assert len(town.ledger.calls("raw", run_id)) == 1  # its effect came before the status
    assert not town.ledger.calls("later", run_id)


@pytest.mark.promise("H-11")
def test_the_next_run_on_the_thread_works(town):
    """Its model rejects tool calls without an answer, and the cancel left one."""
    town.gates.arm("hold")
    pays = {"messages": [("user", "pay")]}
    run_id = town.submit("chat.graph", pays, thread="t1")
    town.worker(lease=LONG)
    town.reached("hold")
    town.durable.cancel(run_id)
    time.sleep(0.7)
    town.gates.open("hold")
    assert town.until(run_id, "cancelled", seconds=5)
    next_id = town.submit("chat.graph", {"messages": [("user", "hello")]}, thread="t1")
    run = town.succeeded(next_id)
    assert run.output["messages"][-1].content == "done"
    assert [m.type for m in run.output["messages"]] == ["human", "ai", "tool", "human", "ai"]


@pytest.mark.promise("H-11")
def test_a_run_whose_worker_died_while_it_was_cancelled_is_settled_by_another(sqlite_town, mode):
    town = sqlite_town
    town.gates.arm("hold")
    run_id = town.submit(f"hold.{mode}")
    worker = town.worker()
    town.reached("hold")
    town.durable.cancel(run_id)
    worker.kill()
    town.gates.open("hold")
    town.worker()
    run = town.until(run_id, "cancelled")
    assert (
        town.step(run_id, "hold").state is StepState.INTENT
    )  # the outcome is unknown, and says so
    assert not town.ledger.calls("hold", run_id)
    assert not town.ledger.calls("later", run_id)
    assert run.finished_at is not None


def test_a_parked_and_a_queued_run_are_cancelled_at_once(sqlite_town):
    town = sqlite_town
    queued = town.submit("pay.steps")
    assert town.durable.cancel(queued) is Status.CANCELLED
    parked = town.submit("ask.steps")
    town.worker()
    (question,) = town.until(parked, "waiting_human").questions
    assert town.durable.cancel(parked) is Status.CANCELLED
    assert not town.durable.questions()
    assert town.durable.questions(state="closed")[0].id == question.id
    assert not town.ledger.effects()
