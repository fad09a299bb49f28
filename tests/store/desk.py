"""A store, and the few moves that most tests of it make."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from langgraph_durable.runs import Decision, Lease, Question, Run, Status, Step
from langgraph_durable.store import Claim, NewRun, RunStore, Served, open_engine, schema
from langgraph_durable.testing.fakes import FakeClock


class Desk:
    """A store whose time stands still until a test turns it, and short words for its use."""

    def __init__(self, url: str, clock: FakeClock | None) -> None:
        self.url = url
        self.clock = clock or FakeClock()
        self.store = RunStore(open_engine(url), clock)
        self.engine = self.store.engine
        self.is_postgres = self.engine.dialect.name == "postgresql"

    def submit(self, agent: str = "a", **more: Any) -> Run:
        """Submit a run, a moment after the last one."""
        self.clock.advance(0.001)
        run_id = more.pop("id", None) or str(uuid.uuid4())
        known = {"tenant": "t", "version": "1", "mode": "steps", "input": "{}", "thread": run_id}
        return self.store.create(NewRun(id=run_id, agent=agent, **(known | more)))

    def claim(
        self,
        worker: str = "w1",
        *agents: str,
        lease_seconds: float = 60.0,
        adopts: bool = True,
        version: str = "1",
    ) -> Claim | None:
        """Claim what there is for a worker that has these agents."""
        served = Served([(agent, version) for agent in agents or ("a",)], adopts)
        return self.store.claim(worker, lease_seconds, served)

    def take(self, worker: str = "w1", **more: Any) -> Claim:
        """Claim what must be there."""
        claim = self.claim(worker, **more)
        assert claim is not None
        return claim

    def started(self, worker: str = "w1", **more: Any) -> Claim:
        """Submit a run and claim it."""
        run = self.submit(**more)
        claim = self.take(worker)
        assert claim.run.id == run.id
        return claim

    def run(self, run: str | Run | Lease) -> Run:
        """Read a run."""
        return self.store.get(
            run if isinstance(run, str) else getattr(run, "run_id", None) or run.id
        )

    def status(self, run: str | Run | Lease) -> Status:
        """Read a run's status."""
        return self.run(run).status

    def types(self, run: str | Run | Lease) -> list[str]:
        """Return the types of a run's events, in order."""
        return [event.type for event in self.store.list_events(self.run(run).id)]

    def decide(self, question_id: str, decision: Decision | None = None, **more: Any) -> Question:
        """Decide a question; approve it unless told otherwise."""
        decision = decision or Decision.approve("mei")
        return self.store.decide(question_id, decision, approval_id=str(uuid.uuid4()), **more)

    def wipe(self) -> None:
        """Empty every table."""
        with self.engine.begin() as tx:
            for table in schema.metadata.sorted_tables:
                tx.execute(sa.delete(table))

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table, to show that nothing changed."""
        with self.engine.connect() as tx:
            return {
                table.name: sorted(map(tuple, tx.execute(sa.select(table)).all()), key=repr)
                for table in schema.metadata.sorted_tables
            }


def step(key: str = "classify", value: Any = "refund", **more: Any) -> Step:
    """Build a recorded step."""
    return Step(key=key, kind="once", fingerprint="f", value=json.dumps(value), **more)


def question(key: str = "pay", **more: Any) -> Question:
    """Build a question about a tool call."""
    known = {"kind": "tool", "payload": {"amount": 42}, "digest": "d1", "tool": "pay"}
    return Question(id=str(uuid.uuid4()), key=key, **(known | more))


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Run functions in threads at the same instant; return what each returned or raised."""
    barrier = threading.Barrier(len(works))
    results: list[Any] = [None] * len(works)

    def one(index: int, work: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            results[index] = work()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return results
