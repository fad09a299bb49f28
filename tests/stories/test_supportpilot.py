"""SupportPilot's stories, in both modes, with its billing system in a process of its own."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from langgraph_durable import Decision, Run, Status, Worker
from supportpilot.build import GRAPH_MODE, STEPS_MODE, make
from supportpilot.demo.processes import Billing, billing
from supportpilot.settings import Settings

TICKET = "上个月年付扣了两次,退一笔"
ENGLISH = "I was charged twice for the yearly plan last month, please refund one."


@pytest.fixture(scope="module")
def billing_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Billing]:
    """One billing process for the module; each test has a customer's run of its own."""
    with billing(tmp_path_factory.mktemp("billing")) as system:
        yield system


@pytest.fixture(params=[GRAPH_MODE, STEPS_MODE])
def agent(request: pytest.FixtureRequest) -> str:
    """The agent before and after its migration."""
    return str(request.param)


class Desk:
    """A support desk: submits tickets, runs a worker, looks at what happened."""

    def __init__(self, url: str, system: Billing, folder: Path) -> None:
        self.calls = folder / "calls.jsonl"
        self.settings = Settings(database_url=url, billing_url=system.url, calls=self.calls)
        self.system = system
        self.durable = make(self.settings)

    def restart(self) -> None:
        """Forget everything that isn't in the database."""
        self.durable.close()
        self.durable = make(self.settings)

    def submit(self, agent: str, ticket: str, customer: str = "c_42") -> str:
        given = {"ticket": ticket, "customer_id": customer}
        return self.durable.submit(agent, given, tenant="t_acme")

    def work(self) -> None:
        Worker(self.durable, lease_seconds=30).run_until_idle()

    def decide(self, run_id: str, decision: Decision) -> None:
        (question,) = self.durable.questions(run_id=run_id)
        self.durable.decide(question.id, decision)

    def get(self, run_id: str) -> Run:
        return self.durable.get(run_id)

    def model_calls(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    def tool_calls(self, run_id: str) -> Counter[str]:
        """Count the calls that billing got of this run, or without a key (reads)."""
        mine = [
            call
            for call in self.system.store.calls()
            if (call.idempotency_key or "").startswith(run_id)
        ]
        return Counter(call.tool for call in mine)

    def refunds(self, run_id: str) -> list[int]:
        """Return the amounts in the ledger that this run's key paid."""
        mine = [r for r in self.system.store.refunds() if r.idempotency_key.startswith(run_id)]
        return [refund.amount_cents for refund in mine]


@pytest.fixture
def desk(database_url: str, billing_system: Billing, tmp_path: Path) -> Iterator[Desk]:
    """A desk on a fresh database, SQLite and PostgreSQL; the ledger is emptied after the test."""
    desk = Desk(database_url, billing_system, tmp_path)
    yield desk
    desk.durable.close()
    with closing(sqlite3.connect(billing_system.hold_dir.parent / "billing.db")) as ledger, ledger:
        ledger.execute("DELETE FROM refunds")


@pytest.mark.promise("S-20")
@pytest.mark.promise("S-21")
@pytest.mark.promise("S-22")
@pytest.mark.promise("S-71")
def test_a_refund_waits_and_resumes_without_redoing_steps(desk: Desk, agent: str) -> None:
    run_id = desk.submit(agent, TICKET)
    desk.work()
    run = desk.get(run_id)
    assert run.status is Status.WAITING_HUMAN, run.error
    assert desk.model_calls() == 2  # classify, choose
    assert desk.refunds(run_id) == []
    desk.restart()
    desk.decide(run_id, Decision.approve("mei"))
    desk.work()
    run = desk.get(run_id)
    assert run.status is Status.SUCCEEDED, run.error
    assert desk.model_calls() == 3  # and draft: as many as without the wait
    assert desk.refunds(run_id) == [4200]
    assert run.output["category"] == "refund"
    assert run.output["refund"]["outcome"] == "refunded"
    assert "42" in run.output["reply"]


@pytest.mark.promise("S-34")
def test_a_refused_refund_pays_nothing_and_the_reply_says_so(desk: Desk, agent: str) -> None:
    run_id = desk.submit(agent, ENGLISH)
    desk.work()
    desk.decide(run_id, Decision.reject("mei", "already credited by phone"))
    desk.work()
    run = desk.get(run_id)
    assert run.status is Status.SUCCEEDED
    assert desk.refunds(run_id) == []
    assert run.output["refund"]["outcome"] == "refused"
    assert "already credited by phone" in run.output["reply"]


def test_an_edited_amount_is_what_is_paid(desk: Desk, agent: str) -> None:
    run_id = desk.submit(agent, TICKET)
    desk.work()
    (question,) = desk.durable.questions(run_id=run_id)
    shown = question.payload.get("arguments", question.payload)
    desk.decide(run_id, Decision.edit("mei", {**shown, "amount_cents": 1000}))
    desk.work()
    run = desk.get(run_id)
    assert run.status is Status.SUCCEEDED, run.error
    assert desk.refunds(run_id) == [1000]


@pytest.mark.promise("S-71")
@pytest.mark.parametrize(
    ("ticket", "category"),
    [("How do I change my billing address?", "billing"), ("你们的应用打不开了", "other")],
)
def test_other_tickets_call_no_refund_tool(
    desk: Desk, agent: str, ticket: str, category: str
) -> None:
    run_id = desk.submit(agent, ticket)
    desk.work()
    run = desk.get(run_id)
    assert run.status is Status.SUCCEEDED, run.error
    assert run.output["category"] == category
    assert desk.tool_calls(run_id)["create_refund"] == 0
    assert desk.model_calls() == 2  # classify, draft


@pytest.mark.promise("S-65")
def test_the_draft_uses_the_smart_route(desk: Desk, agent: str) -> None:
    run_id = desk.submit(agent, "你们的应用打不开了")
    desk.work()
    assert desk.get(run_id).status is Status.SUCCEEDED
    routes = [json.loads(line)["route"] for line in desk.calls.read_text().splitlines()]
    assert routes == ["fast", "smart"]


@pytest.mark.promise("S-70")
def test_a_small_refund_is_made_without_asking(desk: Desk, agent: str) -> None:
    run_id = desk.submit(agent, "The monthly add-on: please refund me $5.", customer="c_43")
    desk.work()
    run = desk.get(run_id)
    assert run.status is Status.SUCCEEDED, (run.error, run.questions)
    assert desk.refunds(run_id) == [500]
    assert desk.durable.questions(run_id=run_id, state=None) == []
