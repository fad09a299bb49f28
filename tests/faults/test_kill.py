"""H-02 and its kin: SIGKILL before the effect, after it, after its record; nothing is done twice.

What is promised is at-least-once for the call, under one idempotency key; what the two sides
make together is one effect.
"""

from __future__ import annotations

import os
import signal

import pytest

from langgraph_durable import Decision, Status
from langgraph_durable.runs import StepState
from tests.faults.conftest import eventually

ROUNDS = int(os.environ.get("LANGGRAPH_DURABLE_KILL_ROUNDS", "1"))
POINTS = ("before_effect", "after_effect", "after_record")


@pytest.mark.promise("H-02")
@pytest.mark.promise("S-41")
@pytest.mark.parametrize("point", POINTS)
def test_one_effect_wherever_the_worker_dies(town, mode, point):
    for _ in range(ROUNDS):
        town.gates.arm(point)
        arrived = len(town.gates.arrivals(point))
        run_id = town.submit(f"pay.{mode}")
        worker = town.worker()
        assert town.reached(point, arrived + 1) == worker.pid
        if point != "after_record":
            assert town.step(run_id, "refund").state is StepState.INTENT
        worker.kill()
        town.gates.open(point)
        second = town.worker()
        run = town.succeeded(run_id)

        paid = town.ledger.calls("pay", run_id)
        assert [call.verdict for call in paid].count("done") == 1
        assert {call.key for call in paid} == {f"{run_id}:refund"}
        assert [c.token for c in paid] == {
            "before_effect": [2], "after_effect": [1, 2], "after_record": [1],
        }[point]  # fmt: skip
        # the attempt is visible: in the step, and in the audit
        tries = 1 if point == "after_record" else 2
        assert town.step(run_id, "refund").attempts == tries
        assert town.events(run_id).count("run_taken_over") == 1
        assert (run.epoch, run.attempts) == (2, 1)
        assert run.output["results"] == [["inv-1"], {"paid": 4_200}, "refund"]
        # resume is never a re-run of the whole job
        assert len(town.ledger.calls("invoices", run_id)) == 1
        assert len(town.ledger.calls("model:fast", run_id)) == 1
        second.kill()


@pytest.mark.promise("S-40")
def test_a_read_whose_record_was_lost_is_made_again(sqlite_town, mode):
    """Kept on purpose: it shows that a call is made at least once, not exactly once."""
    town = sqlite_town
    town.gates.arm("after_list")
    run_id = town.submit(f"pay.{mode}")
    worker = town.worker()
    assert town.reached("after_list") == worker.pid
    worker.kill()
    town.gates.open("after_list")
    town.worker()
    town.succeeded(run_id)
    assert len(town.ledger.calls("invoices", run_id)) == 2
    assert len(town.ledger.calls("model:fast", run_id)) == 1
    assert len(town.ledger.effects(run_id)) == 1


@pytest.mark.promise("H-02")
@pytest.mark.parametrize("point", ["before_post", "after_post"])
def test_a_call_that_cannot_be_repeated_asks_whether_it_happened(sqlite_town, point):
    town = sqlite_town
    town.gates.arm(point)
    run_id = town.submit("once")
    worker = town.worker()
    town.reached(point)
    worker.kill()
    town.gates.open(point)
    town.worker()
    run = town.until(run_id, "waiting_human")
    (question,) = run.questions
    assert question.kind == "outcome"
    if point == "after_post":
        town.durable.decide(question.id, Decision.respond("mei", "it was posted"))
    else:
        town.durable.decide(question.id, Decision.reject("mei"))
    run = town.succeeded(run_id)
    assert len(town.ledger.calls("post", run_id)) == 1
    assert run.output == ("it was posted" if point == "after_post" else "posted")


@pytest.mark.promise("S-47")
@pytest.mark.promise("S-48")
def test_killed_at_step_seven_of_eight(sqlite_town, mode):
    town = sqlite_town
    town.gates.arm("pay6")
    run_id = town.submit(f"many.{mode}")
    worker = town.worker()
    town.reached("pay6")
    worker.kill()
    assert len(town.ledger.calls("pay", run_id)) == 6
    town.gates.open("pay6")
    town.worker()
    town.succeeded(run_id)
    paid = town.ledger.calls("pay", run_id)
    assert [call.key for call in paid] == [f"{run_id}:pay:{i}" for i in range(8)]
    assert town.durable.get(run_id).usage.saved_steps == 6


@pytest.mark.promise("S-36")
@pytest.mark.promise("S-81")
def test_the_question_outlives_the_worker(town, mode):
    _outlives(town, mode, "ask")


@pytest.mark.promise("S-36")
def test_an_interrupt_outlives_the_worker(sqlite_town, mode):
    _outlives(sqlite_town, mode, "confirm")


def _outlives(town, mode, agent):
    run_id = town.submit(f"{agent}.{mode}")
    worker = town.worker()
    town.until(run_id, "waiting_human")
    worker.kill()
    # a second process on the same storage reads the same question, and decides it
    (question,) = town.durable.questions(run_id=run_id)
    assert town.durable.get(run_id).worker is None
    assert not town.ledger.effects(run_id)
    town.worker()
    assert town.status(run_id) is Status.WAITING_HUMAN
    yes = Decision.respond("mei", "yes") if agent == "confirm" else Decision.approve("mei")
    town.durable.decide(question.id, yes)
    run = town.succeeded(run_id)
    assert [call.key for call in town.ledger.effects(run_id)] == [f"{run_id}:refund"]
    assert len(town.ledger.calls("model:fast", run_id)) == 1
    assert run.attempts == 0  # neither waiting nor the dead worker cost an attempt


@pytest.mark.promise("S-43")
@pytest.mark.promise("S-77")
def test_an_approval_is_reused_after_a_crash_between_effect_and_record(sqlite_town, mode):
    town = sqlite_town
    run_id = town.submit(f"ask.{mode}")
    worker = town.worker()
    (question,) = town.until(run_id, "waiting_human").questions
    town.gates.arm("after_effect")
    approval = town.durable.decide(question.id, Decision.approve("mei")).approval_id
    town.reached("after_effect")
    worker.kill()
    town.gates.open("after_effect")
    town.worker()
    town.succeeded(run_id)
    assert [c.verdict for c in town.ledger.calls("pay", run_id)] == ["done", "repeat"]
    assert town.step(run_id, "refund").approval_id == approval
    assert town.events(run_id).count("question_asked") == 1


@pytest.mark.promise("S-60")
def test_a_deploy_that_kills_every_worker_loses_no_run(town):
    runs = [town.submit(f"swarm.{('steps', 'graph')[i % 2]}") for i in range(50)]
    first = [town.worker(name=f"old{i}") for i in range(3)]

    eventually(lambda: len(town.ledger.effects()) >= 50, "the middle", context=town.logs)
    for worker in first:
        worker.send(signal.SIGKILL)
    assert [worker.wait() for worker in first] == [-signal.SIGKILL] * 3
    assert len(town.ledger.effects()) < 150
    for i in range(3):
        town.worker(name=f"new{i}")
    for run_id in runs:
        town.succeeded(run_id, seconds=60)
    done = [call.key for call in town.ledger.effects()]
    assert sorted(done) == sorted(f"{r}:{k}" for r in runs for k in ("one", "two", "three"))
