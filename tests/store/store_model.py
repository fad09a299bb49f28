"""What the store promises, in plain dicts: the model that the state machine compares it with.

It knows no SQL, no transaction and no race. Where it and the store disagree, one is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from langgraph_durable.runs import FINAL, Decision, Lease, QuestionState, Status

OWNED = (Status.RUNNING, Status.CANCELLING)
OPEN = QuestionState.OPEN


@dataclass
class ModelQuestion:
    """A question, and the one decision it got."""

    id: str
    key: str
    digest: str
    expires_at: datetime | None
    on_expiry: str
    state: QuestionState = OPEN
    decision: Decision | None = None


@dataclass
class ModelRun:
    """A run with all that belongs to it."""

    id: str
    thread: str
    idempotency_key: str | None
    input: str
    priority: int
    created_at: datetime
    run_after: datetime
    status: Status = Status.QUEUED
    epoch: int = 0
    attempts: int = 0
    max_attempts: int = 3
    worker: str | None = None
    lease_until: datetime | None = None
    finished_at: datetime | None = None
    holds_thread: bool = False
    wake_at: datetime | None = None  # when the timer of a parked run is over
    steps: dict[str, tuple[str, str | None, int]] = field(default_factory=dict)
    questions: dict[str, ModelQuestion] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)  # key -> state

    @property
    def progressed(self) -> bool:
        """Whether its last claim recorded a step."""
        return any(s == "recorded" and e == self.epoch for s, _, e in self.steps.values())

    @property
    def open_questions(self) -> list[ModelQuestion]:
        """The questions that wait."""
        return [q for q in self.questions.values() if q.state is OPEN]

    def is_held_by(self, lease: Lease) -> bool:
        """Whether this lease may write."""
        return self.epoch == lease.epoch and self.status in OWNED

    def leave(self, status: Status, now: datetime, run_after: datetime | None = None) -> None:
        """Give the run up."""
        self.status, self.worker, self.lease_until, self.wake_at = status, None, None, None
        self.run_after = run_after or self.run_after
        if status in FINAL:
            self.finished_at, self.holds_thread = now, False
            for question in self.open_questions:
                question.state = QuestionState.CLOSED

    def wake(self) -> None:
        """Queue it again when no question of it is open."""
        if self.status is Status.WAITING_HUMAN and not self.open_questions:
            self.status, self.run_after, self.wake_at = Status.QUEUED, self.created_at, None

    def has_slept(self, now: datetime) -> bool:
        """Queue it again when its timer is over, whoever still thinks about a question."""
        over = self.wake_at is not None and self.wake_at <= now
        if over and self.wake_at is not None:
            self.status, self.run_after, self.wake_at = Status.QUEUED, self.wake_at, None
        return over


class Model:
    """All runs, and what each move does to them."""

    def __init__(self) -> None:
        self.runs: dict[str, ModelRun] = {}

    # --- claims ------------------------------------------------------------------------

    def candidates(self, now: datetime) -> list[ModelRun]:
        """Return the runs that a claim may take first: more than one only if they tie."""
        over = [
            run
            for run in self.runs.values()
            if run.status in OWNED and run.lease_until is not None and run.lease_until < now
        ]
        if over:
            first = min(run.lease_until for run in over if run.lease_until is not None)
            return [run for run in over if run.lease_until == first]
        due = [
            run
            for run in self.runs.values()
            if run.status is Status.QUEUED and run.run_after <= now and self._has_its_thread(run)
        ]
        return sorted(due, key=lambda run: (-run.priority, run.run_after, run.id))[:1]

    def _has_its_thread(self, run: ModelRun) -> bool:
        rivals = [
            other
            for other in self.runs.values()
            if other.thread == run.thread and other is not run and other.status not in FINAL
        ]
        earlier = [other for other in rivals if other.created_at < run.created_at]
        return run.holds_thread or not (earlier or any(r.holds_thread for r in rivals))

    def is_doomed(self, run: ModelRun) -> bool:
        """Whether the next claim of it finds that it killed its workers too often."""
        died = 1 if run.progressed else run.attempts + 1
        return run.status is Status.RUNNING and died >= run.max_attempts

    def claim(self, run: ModelRun, worker: str, now: datetime, seconds: float) -> bool:
        """Take a run; False if that was its end."""
        doomed = self.is_doomed(run)
        if run.status is Status.RUNNING:
            run.attempts = 1 if run.progressed else run.attempts + 1
        if run.status is not Status.CANCELLING:
            run.status = Status.RUNNING
        run.epoch += 1
        run.worker, run.holds_thread = worker, True
        run.lease_until = now + timedelta(seconds=seconds)
        if doomed:
            run.leave(Status.FAILED, now)
        return not doomed

    # --- people ------------------------------------------------------------------------

    def ask(
        self,
        run: ModelRun,
        asked: Sequence[ModelQuestion],
        now: datetime,
        wake_at: datetime | None,
    ) -> None:
        """Park a run with its questions, and perhaps a timer."""
        for question in asked:
            same = [q for q in run.open_questions if q.key == question.key]
            if any(q.digest == question.digest for q in same):
                continue
            for other in same:
                other.state = QuestionState.CLOSED
            run.questions[question.id] = question
        for question in asked:
            state, _, _ = run.steps.get(question.key, ("", None, 0))
            if state != "recorded":
                run.steps[question.key] = ("asking", None, run.epoch)
        run.attempts = 0
        run.leave(Status.WAITING_HUMAN, now)
        run.wake_at = wake_at
        run.wake()

    def sweep(self, now: datetime) -> int:
        """Wake who slept enough, expire what is overdue; return how many."""
        done = 0
        for run in self.runs.values():
            done += run.has_slept(now)
            for question in run.open_questions:
                if question.expires_at is not None and question.expires_at <= now:
                    question.state = QuestionState.EXPIRED
                    run.wake()
                    done += 1
        return done

    # --- the end -----------------------------------------------------------------------

    def purge(self, before: datetime) -> list[ModelRun]:
        """Forget the finished runs that have told all they had to tell."""
        gone = [
            run
            for run in self.runs.values()
            if run.status in FINAL
            and run.finished_at is not None
            and run.finished_at < before
            and "pending" not in run.messages.values()
        ]
        for run in gone:
            del self.runs[run.id]
        return gone
