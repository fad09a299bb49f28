"""Doubles for graph-level unit tests: no database, no worker, no sleeping."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph_durable.context import RunContext, Services
from langgraph_durable.models import ModelRoutes
from langgraph_durable.policy import Policy, Rule
from langgraph_durable.runs import (
    Decision,
    Lease,
    Mode,
    Question,
    QuestionState,
    Refused,
    Retry,
    Run,
    Signal,
    Status,
    Step,
    StepState,
)
from langgraph_durable.tools import ToolHub
from langgraph_durable.values import Types


class FakeClock:
    """A clock that stands still until a test turns it."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Turn the clock forward."""
        self._now += timedelta(seconds=seconds)

    def turn_to(self, time: datetime) -> None:
        """Set the clock."""
        self._now = time


class SeededChance:
    """Random numbers and ids that are the same in every test run."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311  # repeatable on purpose

    def random(self) -> float:
        """Return a number in [0, 1)."""
        return self._random.random()

    def uuid(self) -> uuid.UUID:
        """Return a new id."""
        return uuid.UUID(int=self._random.getrandbits(128), version=4)


class MemoryJournal:
    """A Journal in a dict. Keep it and give it to a second context to test a replay."""

    def __init__(self) -> None:
        self.rows: dict[str, Step] = {}
        self.decided: dict[tuple[str, str], Question] = {}
        self.sent: list[Signal] = []
        self.passes = 0  # contexts that were made on it
        self.progressed = False

    def recorded(self, key: str) -> Step | None:
        """Return what is recorded under a key."""
        return self.rows.get(key)

    def steps(self) -> list[Step]:
        """Return all steps, in any state."""
        return list(self.rows.values())

    def questions(self) -> list[Question]:
        """Return the questions that were decided."""
        return list(self.decided.values())

    def answer(self, key: str, digest: str) -> Question | None:
        """Return the decided question of a key."""
        return self.decided.get((key, digest))

    async def signals(self, event: str, limit: int) -> list[Signal]:
        """Return the signals of an event that no step has taken, the oldest first."""
        return [s for s in self.sent if s.event == event and s.taken_by is None][:limit]

    def send(self, event: str, payload: Any = None) -> None:
        """Signal an event, for `ctx.wait_for`."""
        number = len(self.sent) + 1
        at = datetime(2026, 1, 1, tzinfo=UTC)
        self.sent.append(Signal(f"signal-{number}", "", event, payload, "test", at, number=number))

    async def record(self, step: Step) -> Step:
        """Keep a step."""
        if step.takes is not None:
            self.sent = [
                replace(s, taken_by=step.key) if s.number == step.takes else s for s in self.sent
            ]
        known = self.rows.get(step.key)
        step = replace(
            step, seq=known.seq if known else len(self.rows) + 1, epoch=max(1, self.passes)
        )
        self.rows[step.key] = step
        self.progressed = self.progressed or step.state is StepState.RECORDED
        return step

    def decide(self, question: Question, decision: Decision) -> None:
        """Answer a question that a context put (see `ctx.state.asked`)."""
        answered = replace(
            question,
            state=QuestionState.DECIDED,
            decision=decision,
            approval_id=f"approval-{len(self.decided) + 1}",
        )
        self.decided[question.key, question.digest] = answered


def context(
    journal: MemoryJournal | None = None,
    *,
    input: Any = None,
    run_id: str = "run-1",
    tenant: str = "default",
    agent: str = "test",
    mode: Mode = "steps",
    models: Mapping[str, Any] | None = None,
    tools: ToolHub | None = None,
    rules: Sequence[Rule] = (),
    types: Sequence[type] = (),
    clock: FakeClock | None = None,
    seed: int = 0,
) -> RunContext:
    """Return a RunContext on a journal in memory; call it in async code."""
    clock = clock or FakeClock()
    journal = journal or MemoryJournal()
    journal.passes += 1
    run = Run(
        id=run_id, tenant=tenant, agent=agent, version="1", mode=mode, thread=run_id,
        status=Status.RUNNING, priority=0, input=input, output=None, error=None, attempts=0,
        max_attempts=3, epoch=journal.passes, worker="test", lease_until=None, run_after=clock.now(),
        deadline_seconds=None, idempotency_key=None, created_at=clock.now(), started_at=clock.now(),
        finished_at=None,
    )  # fmt: skip
    services = Services(
        models=ModelRoutes(models or {}),
        tools=tools or ToolHub(),
        policy=Policy(rules),
        types=Types([Refused, *types]),
        clock=clock,
        chance=SeededChance(seed),
        retry=Retry(attempts=1),
    )
    return RunContext(run, Lease(run_id, journal.passes, "test"), journal, services)


@contextmanager
def running(ctx: RunContext) -> Iterator[RunContext]:
    """Make a context what `current_run()` returns."""
    token = ctx.enter()
    try:
        yield ctx
    finally:
        ctx.leave(token)
