"""What a run costs the database, counted: a new query on the hot path shows in review.

A change of these tables is a decision. Say in the commit what the query is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from langgraph_durable import Decision, Durable, Status, Worker
from supportpilot.build import STEPS_MODE, make
from supportpilot.demo.processes import billing
from supportpilot.settings import Settings


@dataclass(frozen=True)
class Cost:
    """Statements (BEGIN and COMMIT are not counted), and transactions that wrote or only read."""

    statements: int
    commits: int
    reads: int


#: A ticket of SupportPilot in steps mode: two models and a read tool, a refund that a person
#: approves, and a last model. Five steps, of which the refund is recorded three times over: as
#: a question, as an intent, and with its result.
PARKED_RUN = {
    #                              SQLite          PostgreSQL (which also notifies)
    "submit": (Cost(2, 1, 0), Cost(3, 1, 0)),
    "first pass: sweep, claim, 3 steps, park": (Cost(20, 5, 1), Cost(16, 5, 1)),
    "the person decides": (Cost(10, 1, 1), Cost(11, 1, 1)),
    "second pass: sweep, claim, intent, 2 steps, settle": (Cost(13, 5, 2), Cost(10, 5, 2)),
    "the client reads the result": (Cost(3, 0, 1), Cost(3, 0, 1)),
}

#: What one more step costs a run.
ONE_STEP = (Cost(2, 1, 0), Cost(1, 1, 0))

#: What an idle worker's look for work costs: the sweep, and a claim that finds nothing.
NOTHING_TO_DO = (Cost(2, 1, 1), Cost(2, 1, 1))


@dataclass
class Meter:
    """Counts what an engine does."""

    engine: sa.Engine
    statements: list[str] = field(default_factory=list)
    commits: int = 0
    reads: int = 0

    @contextmanager
    def counting(self) -> Iterator[Meter]:
        """Count from here to the end of the block."""
        self.statements.clear()
        self.commits = self.reads = 0
        sa.event.listen(self.engine, "before_cursor_execute", self._statement)
        sa.event.listen(self.engine, "commit", self._commit)
        try:
            yield self
        finally:
            sa.event.remove(self.engine, "before_cursor_execute", self._statement)
            sa.event.remove(self.engine, "commit", self._commit)

    def _statement(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("BEGIN"):
            self.statements.append(" ".join(statement.split())[:100])

    def _commit(self, connection: sa.Connection) -> None:
        if connection.get_execution_options().get("reads_only"):
            self.reads += 1
        else:
            self.commits += 1

    @property
    def cost(self) -> Cost:
        """What was counted."""
        return Cost(len(self.statements), self.commits, self.reads)


def expected(pair: tuple[Cost, Cost], durable: Durable) -> Cost:
    """Return the cost on the database that is used."""
    return pair[0] if durable.store.engine.dialect.name == "sqlite" else pair[1]


@pytest.fixture
def support(ready_url: str, tmp_path: Path) -> Iterator[Durable]:
    """SupportPilot on each database, with its billing system in a process of its own."""
    with billing(tmp_path) as system:
        durable = make(Settings(database_url=ready_url, billing_url=system.url))
        yield durable
        durable.close()


def test_a_run_of_supportpilot_that_parks_costs_exactly_this(support: Durable) -> None:
    meter = Meter(support.store.engine)
    worker = Worker(support)
    found: dict[str, Cost] = {}
    told: dict[str, list[str]] = {}

    def spend(phase: str, act: Any) -> Any:
        with meter.counting():
            result = act()
        found[phase] = meter.cost
        told[phase] = list(meter.statements)
        return result

    phases = list(PARKED_RUN)
    ticket = {"ticket": "I was charged twice, please refund one.", "customer_id": "c_42"}
    run_id = spend(phases[0], lambda: support.submit(STEPS_MODE, ticket, tenant="t_acme"))
    spend(phases[1], worker.run_once)
    assert support.get(run_id).status is Status.WAITING_HUMAN
    question = support.questions()[0]
    spend(phases[2], lambda: support.decide(question.id, Decision.approve("mei")))
    spend(phases[3], worker.run_once)
    run = spend(phases[4], lambda: support.get(run_id))
    assert run.status is Status.SUCCEEDED, run.error
    assert found == {p: expected(pair, support) for p, pair in PARKED_RUN.items()}, told


def test_one_more_step_is_one_statement_and_one_commit(ready_url: str) -> None:
    durable = Durable(ready_url)

    async def answer() -> str:
        return "x"

    @durable.agent("count")
    async def count(ctx: Any, steps: Any) -> None:
        for i in range(steps):
            await ctx.once(f"n{i}", answer)

    meter, worker = Meter(durable.store.engine), Worker(durable)
    costs = []
    for steps in (3, 4):
        durable.submit("count", steps)
        with meter.counting():
            worker.run_once()
        costs.append(meter.cost)
    more = Cost(
        costs[1].statements - costs[0].statements,
        costs[1].commits - costs[0].commits,
        costs[1].reads - costs[0].reads,
    )
    durable.store.engine.dispose()
    assert more == expected(ONE_STEP, durable), meter.statements


def test_a_look_for_work_that_finds_none(support: Durable) -> None:
    meter = Meter(support.store.engine)
    with meter.counting():
        assert Worker(support).run_once() is None
    assert meter.cost == expected(NOTHING_TO_DO, support), meter.statements
