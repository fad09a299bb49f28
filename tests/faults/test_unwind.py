"""S-45 with real processes: whoever dies on the way back is followed by one who goes on."""

from __future__ import annotations

import signal

import pytest

from langgraph_durable import Status
from langgraph_durable.runs import StepState

BACK = ["pay:3", "pay:2", "pay:1"]


def _undone(town, run_id):
    """Return the keys of what was undone, in order, each once."""
    calls = [call for call in town.ledger.calls("unpay", run_id) if call.verdict == "done"]
    return [call.key.removeprefix(f"{run_id}:compensate:") for call in calls]


@pytest.mark.promise("S-45")
def test_a_worker_killed_in_the_middle_of_an_unwind_is_followed_by_another(town):
    town.gates.arm("after_undo2")
    run_id = town.submit("saga.steps")
    worker = town.worker()
    assert town.reached("after_undo2") == worker.pid
    assert town.step(run_id, "compensate:pay:3").state is StepState.RECORDED
    assert town.step(run_id, "compensate:pay:2").state is StepState.INTENT
    worker.kill()
    town.gates.open("after_undo2")
    town.worker()
    run = town.until(run_id, "failed", "succeeded")
    assert (run.status, run.unwinding) == (Status.FAILED, Status.FAILED)
    assert _undone(town, run_id) == BACK
    # the call whose record was lost came again, under its key and with the newer token
    again = [c for c in town.ledger.calls("unpay", run_id) if c.key.endswith(":pay:2")]
    assert [(c.verdict, c.token) for c in again] == [("done", 2), ("repeat", 3)]
    assert len(town.ledger.calls("pay", run_id)) == 3  # nothing was driven forward again
    assert [question.kind for question in run.questions] == ["review"]


@pytest.mark.promise("S-45")
def test_a_worker_told_to_stop_hands_an_unwind_over(sqlite_town):
    """A cancelled run in graph mode: its compensation in flight ends, another worker goes on."""
    town = sqlite_town
    town.gates.arm("before_undo3", "before_undo2")
    run_id = town.submit("saga.graph")
    worker = town.worker(lease=30.0)
    assert town.reached("before_undo3") == worker.pid
    worker.send(signal.SIGTERM)
    town.gates.open("before_undo3")
    assert worker.wait() == 0
    assert town.step(run_id, "compensate:pay:3").state is StepState.RECORDED
    assert town.status(run_id) is Status.QUEUED  # at once, without waiting for a lease
    town.gates.open("before_undo2")
    town.worker()
    assert town.until(run_id, "failed", "succeeded").status is Status.FAILED
    assert _undone(town, run_id) == BACK
    assert town.events(run_id).count("run_handed_back") == 1
    assert "run_taken_over" not in town.events(run_id)
