"""Runs that kill, end or hang their worker, and what it means to the others."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from langgraph_durable import Status
from tests.faults.conftest import eventually


class Supervisor(threading.Thread):
    """Starts a new worker whenever one has died, as a service manager does."""

    def __init__(self, town, **options):
        super().__init__(daemon=True)
        self.town, self.options = town, options
        self.deaths = 0
        self.over = threading.Event()

    def run(self):
        worker = self.town.worker(**self.options)
        while not self.over.is_set():
            if not worker.is_alive:
                self.deaths += 1
                worker = self.town.worker(**self.options)
            time.sleep(0.02)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


@pytest.mark.promise("S-11")
def test_a_run_that_kills_its_worker_ends_as_a_crash_loop(sqlite_town, mode):
    _crash_loop(sqlite_town, mode)


@pytest.mark.promise("S-11")
def test_a_run_that_kills_its_worker_ends_as_a_crash_loop_on_postgres(postgres_town):
    _crash_loop(postgres_town, "steps")


def _crash_loop(town, mode):
    """The others, that die with it and have recorded nothing yet, are not taken down by it."""
    patient = [town.submit(f"patient.{mode}", {"seconds": 1.0}) for _ in range(3)]
    with Supervisor(town, lease=0.6) as supervisor:
        eventually(lambda: len(town.ledger.calls("sits")) == 3, "the others", context=town.logs)
        killer = town.submit(f"killer.{mode}")
        run = town.until(killer, "failed")
        assert run.error["reason"] == "crash_loop"
        assert run.attempts == run.max_attempts == 3
        assert len(town.ledger.calls("kill", killer)) == 3
        assert supervisor.deaths == 3
        for run_id in patient:
            town.succeeded(run_id)
    assert {w.returncode for w in town.workers[:3]} == {-signal.SIGKILL}


def test_a_run_that_always_fails_does_not_hinder_its_neighbours(sqlite_town, mode):
    town = sqlite_town
    worker = town.worker()
    bad = [town.submit(f"killer.{mode}", {"how": "raise"}) for _ in range(3)]
    good = [town.submit(f"pay.{mode}") for _ in range(3)]
    for run_id in good:
        town.succeeded(run_id)
    for run_id in bad:
        run = town.until(run_id, "failed")
        assert run.error["type"] == "MemoryError"
        assert len(town.ledger.calls("kill", run_id)) == 3
    assert worker.is_alive


@pytest.mark.parametrize("where", ["thread", "async"])
def test_a_node_that_calls_sys_exit_fails_its_run_and_not_the_worker(sqlite_town, mode, where):
    town = sqlite_town
    town.gates.arm("patient")
    worker = town.worker()
    patient = town.submit(f"patient.{mode}")
    town.reached("patient")
    bad = town.submit(f"killer.{mode}", {"how": "exit", "category": where})
    run = town.until(bad, "failed")
    assert run.error["type"] == "SystemExit"
    town.gates.open("patient")
    assert town.succeeded(patient).epoch == 1
    assert worker.is_alive


@pytest.mark.parametrize("how", ["loop", "thread"])
def test_a_run_that_hangs_is_ended_by_its_deadline(sqlite_town, how):
    town = sqlite_town
    town.gates.arm("hang")
    worker = town.worker(lease=1.0)
    run_id = town.submit("hang", how)
    run = town.until(run_id, "failed")
    assert run.error["reason"] == "deadline"
    assert len(town.ledger.calls("hang", run_id)) == 2
    town.succeeded(town.submit("pay.steps"))
    worker.send(signal.SIGTERM)
    assert worker.wait(5) == 0  # although a thread still hangs
    assert town.status(run_id) is Status.FAILED


@pytest.mark.promise("S-12")
def test_an_unknown_agent_fails_the_run_and_not_the_worker(town):
    @town.durable.agent("only.here")
    async def only_here(ctx, inp):
        raise AssertionError("never runs")

    run_id = town.submit("only.here")
    worker = town.worker()
    run = town.until(run_id, "failed")
    assert run.error["type"] == "NoSuchAgent"
    assert "only.here" in run.error["message"]
    town.succeeded(town.submit("pay.steps"))
    assert worker.is_alive


def test_an_unknown_version_waits_for_a_worker_that_has_it(sqlite_town):
    """A rolling deploy: old workers leave the new version's runs alone."""
    town = sqlite_town
    pay = town.durable.find("pay.steps")
    town.durable.graph("pay.steps", pay.graph, mode="steps", version="2")
    run_id = town.submit("pay.steps", version="2")
    town.worker()
    town.succeeded(town.submit("pay.steps", version="1"))
    time.sleep(1.2)
    assert town.status(run_id) is Status.QUEUED
    assert not town.claims(run_id)


def test_a_newer_schema_stops_the_worker(sqlite_town):
    town = sqlite_town
    worker = town.worker().ready()
    town.succeeded(town.submit("pay.steps"))
    town.admin("UPDATE langgraph_durable_version SET version_num = '9999_newer'")
    assert worker.wait(40) == 0
    assert "newer than this code" in worker.log()
    again = town.worker()
    assert again.wait() == 5
    assert "newer than this code" in again.log()
    assert "Traceback" not in again.log()
