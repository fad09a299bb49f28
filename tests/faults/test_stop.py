"""SIGTERM: steps in flight end, the run is handed over at once, the worker exits with 0."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from langgraph_durable import Status
from langgraph_durable.runs import StepState
from tests.faults.processes import ROOT, eventually

LONG = 60.0  # a lease that no test waits for: only a hand-over explains a take-over


@pytest.mark.promise("S-11")
def test_sigterm_hands_the_run_over(town, mode):
    town.gates.arm("hold")
    run_id = town.submit(f"hold.{mode}")
    first = town.worker(lease=LONG)
    assert town.reached("hold") == first.pid
    second = town.worker(lease=LONG).ready()
    first.send(signal.SIGTERM)
    time.sleep(0.3)
    assert first.is_alive  # the call in flight may end
    assert town.status(run_id) is Status.RUNNING
    town.gates.open("hold")
    assert first.wait(10) == 0
    run = town.succeeded(run_id, seconds=10)
    assert town.claims(run_id) == ["w0", "w1"]
    assert run.attempts == 0
    assert "run_handed_back" in town.events(run_id)
    assert "run_taken_over" not in town.events(run_id)
    # under a second after the end of the last step another worker has it
    claimed = [e.at for e in town.durable.events(run_id) if e.type == "run_claimed"]
    recorded = town.step(run_id, "hold").recorded_at
    assert (claimed[1] - recorded).total_seconds() < 1.0
    # what was in flight was recorded by the first, and not called again
    assert [c.pid for c in town.ledger.calls("hold", run_id)] == [first.pid]
    assert town.step(run_id, "hold").epoch == 1
    assert [c.pid for c in town.ledger.calls("pay", run_id)] == [second.pid]
    assert "Traceback" not in first.log()


def test_sigterm_between_the_nodes_of_a_graph(town):
    """Plain LangGraph nodes: the hand-over is at the next superstep, and the first isn't redone."""
    town.gates.arm("raw")
    run_id = town.submit("raw.graph")
    first = town.worker(lease=LONG)
    town.reached("raw")
    first.send(signal.SIGTERM)
    time.sleep(0.3)
    town.gates.open("raw")
    assert first.wait(10) == 0
    assert town.status(run_id) is Status.QUEUED
    town.worker(lease=LONG)
    town.succeeded(run_id, seconds=10)
    assert len(town.ledger.calls("raw", run_id)) == 1
    assert len(town.ledger.calls("later", run_id)) == 1


def test_sigterm_while_idle_exits_at_once(town):
    worker = town.worker().ready()
    time.sleep(0.5)
    started = time.monotonic()
    worker.send(signal.SIGTERM)
    assert worker.wait(5) == 0
    assert time.monotonic() - started < 2.0
    assert "Traceback" not in worker.log()
    assert town.admin("SELECT count(*) FROM workers")[0][0] == 0  # it signed off


@pytest.mark.parametrize("agent", ["hold", "raw"])
def test_a_second_sigterm_does_not_wait_for_what_is_in_flight(sqlite_town, agent):
    """The call can't be stopped, so its outcome is left to the lease, like a crash's."""
    town = sqlite_town
    town.gates.arm("hold", "raw")
    run_id = town.submit(f"{agent}.steps")
    worker = town.worker(lease=1.0)
    town.reached(agent)
    worker.send(signal.SIGTERM)
    time.sleep(0.3)
    assert worker.is_alive
    worker.send(signal.SIGTERM)
    assert worker.wait(5) == 0
    if agent == "hold":
        assert town.step(run_id, "hold").state is StepState.INTENT
    town.gates.open("hold", "raw")
    town.worker()
    town.succeeded(run_id)


def test_the_wait_for_what_is_in_flight_is_bounded(sqlite_town):
    town = sqlite_town
    town.gates.arm("hold")
    run_id = town.submit("hold.steps")
    worker = town.worker(lease=1.0, drain_seconds=0.5)
    town.reached("hold")
    worker.send(signal.SIGTERM)
    assert worker.wait(5) == 0
    assert "did not come to a boundary" in worker.log()
    town.gates.open("hold")
    town.worker()
    town.succeeded(run_id)


def test_sigterm_does_not_claim_more(sqlite_town):
    town = sqlite_town
    town.gates.arm("hold")
    held = town.submit("hold.steps")
    worker = town.worker(lease=LONG)
    town.reached("hold")
    worker.send(signal.SIGTERM)
    time.sleep(0.2)
    other = town.submit("pay.steps")
    time.sleep(1.2)
    assert town.status(other) is Status.QUEUED
    town.gates.open("hold")
    assert worker.wait(10) == 0
    assert town.status(held) is Status.QUEUED
    assert town.status(other) is Status.QUEUED


def test_a_worker_as_people_start_it(sqlite_town):
    """`python -m langgraph_durable.cli worker`, without the tests' zygote; Ctrl-C ends it too."""
    town = sqlite_town
    run_id = town.submit("pay.graph")
    argv = [sys.executable, "-m", "langgraph_durable.cli", "worker"]
    argv += ["--app", "tests.faults.app:durable", "--lease-seconds", "5"]
    process = subprocess.Popen(
        argv, cwd=ROOT, env={**os.environ, **town.env},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        town.succeeded(run_id)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "serves tests.faults.app:durable" in out
    assert "Traceback" not in out


@pytest.mark.promise("S-15")
def test_drained_while_parked_runs_wait(sqlite_town):
    town = sqlite_town
    parked = [town.submit("ask.steps") for _ in range(5)]
    worker = town.worker(concurrency=1)
    for run_id in parked:
        town.until(run_id, "waiting_human")
    quick = town.submit("pay.steps")
    town.succeeded(quick)
    worker.send(signal.SIGTERM)
    assert worker.wait(5) == 0
    eventually(lambda: len(town.durable.questions()) == 5, "the questions")
