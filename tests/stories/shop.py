"""One database, and the processes that come and go on it.

`deploy` is a process with some code; `restart` the same code in a new process: a new
Durable and new workers on the same database, with nothing carried over in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from langgraph_durable import Decision, Durable, Question, Retry, Run, Status, Worker
from langgraph_durable.runs import Lease, Step

AGENT = "agent"
AT_ONCE = Retry(first_seconds=0.0)


class Shop:
    """A user's installation."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.run_id = ""
        self.durable: Durable
        self._open: list[Durable] = []
        self._again: Callable[[], Durable] | None = None

    # --- processes -----------------------------------------------------------------------

    def deploy(
        self,
        graph: Any,
        mode: str = "steps",
        agent: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Durable:
        """Start a process with this graph, or async function; `options` are Durable's."""

        def start() -> Durable:
            durable = Durable(self.url, **options)
            settings = {"retry": AT_ONCE, **(agent or {})}
            if callable(graph) and not hasattr(graph, "nodes"):
                durable.agent(AGENT, **settings)(graph)
            else:
                durable.graph(AGENT, graph, mode=mode, **settings)  # type: ignore[arg-type]
            return durable

        self._again = start
        return self.restart()

    def restart(self) -> Durable:
        """End the process, and start another with the same code."""
        assert self._again is not None
        self.stop()
        self.durable = self._again()
        self._open.append(self.durable)
        return self.durable

    def stop(self) -> None:
        while self._open:
            self._open.pop().store.engine.dispose()

    # --- what people do ------------------------------------------------------------------

    def submit(self, given: Any = None, **options: Any) -> str:
        self.run_id = self.durable.submit(AGENT, given, **options)
        return self.run_id

    def work(self) -> Run:
        """Let a worker do what there is to do; returns the run that was submitted last."""
        Worker(self.durable, lease_seconds=20).run_until_idle(limit=30)
        return self.run

    def begin(self, given: Any = None, **options: Any) -> Run:
        """Submit, and let a worker do it."""
        self.submit(given, **options)
        return self.work()

    def decide(self, decision: Decision, key: str | None = None) -> Question:
        """Decide the open question (or the one whose key begins so)."""
        found = [q for q in self.asked if key is None or q.key.startswith(key)]
        assert len(found) == 1, f"{[q.key for q in found]} are open"
        return self.durable.decide(found[0].id, decision)

    def answer(self, value: Any, key: str | None = None) -> Run:
        """Respond in a new process, and let its worker go on."""
        self.restart()
        self.decide(Decision.respond("mei", value), key)
        return self.work()

    def approve(self, key: str | None = None) -> Run:
        self.restart()
        self.decide(Decision.approve("mei"), key)
        return self.work()

    def reject(self, reason: str = "no", key: str | None = None) -> Run:
        self.restart()
        self.decide(Decision.reject("mei", reason), key)
        return self.work()

    def answer_all(self, answer: Callable[[Question], Any], rounds: int = 10) -> Run:
        """Respond to whatever is asked, each time in a new process, until nothing is."""
        for _ in range(rounds):
            if self.run.status is not Status.WAITING_HUMAN:
                break
            self.restart()
            for question in self.asked:
                value = answer(question)
                decision = value if isinstance(value, Decision) else Decision.respond("mei", value)
                self.durable.decide(question.id, decision)
            self.work()
        return self.run

    # --- what there is to see ------------------------------------------------------------

    @property
    def run(self) -> Run:
        return self.durable.get(self.run_id)

    @property
    def asked(self) -> list[Question]:
        return sorted(self.durable.questions(run_id=self.run_id), key=lambda q: q.key)

    @property
    def journal(self) -> dict[str, Step]:
        return {step.key: step for step in self.durable.journal(self.run_id)}

    @property
    def events(self) -> list[str]:
        return [event.type for event in self.durable.events(self.run_id)]

    def event(self, type_: str) -> Mapping[str, Any]:
        found = [e.data for e in self.durable.events(self.run_id) if e.type == type_]
        assert found, f"no {type_} among {self.events}"
        return found[-1]

    # --- faults --------------------------------------------------------------------------

    def sql(self, text: str, **values: Any) -> None:
        with self.durable.store.engine.begin() as tx:
            tx.execute(sa.text(text), values)

    def steal(self) -> None:
        """Let another worker have claimed the run: whoever has it now writes nothing more."""
        self.sql(
            "UPDATE runs SET epoch = epoch + 1, worker = 'thief' WHERE id = :id", id=self.run_id
        )

    def expire_lease(self) -> None:
        """Let the time of the run's lease be over: its worker died."""
        self.sql("UPDATE runs SET lease_until = :past WHERE id = :id AND status = 'running'",
                 id=self.run_id, past="2000-01-01 00:00:00")  # fmt: skip

    def lease(self) -> Lease:
        return Lease(self.run_id, self.run.epoch, "test")


def succeeded(run: Run) -> Any:
    """Return the output of a run that succeeded."""
    assert run.status is Status.SUCCEEDED, (run.status, run.error, run.questions)
    return run.output


def waits(run: Run) -> None:
    assert run.status is Status.WAITING_HUMAN, (run.status, run.error)


def failed(run: Run) -> Mapping[str, Any]:
    """Return the error of a run that failed."""
    assert run.status is Status.FAILED, (run.status, run.output, run.questions)
    assert run.error is not None
    return run.error
