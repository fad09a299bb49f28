"""The store against a simple model, by histories that nobody would think of, on both databases.

A few examples here and in CI; `pytest --hypothesis-profile=long` looks for minutes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from desk import Desk, at_once, question
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from store_model import OPEN, OWNED, Model, ModelQuestion, ModelRun

from langgraph_durable.errors import (
    AlreadyDecided,
    Conflict,
    DurableError,
    IllegalMove,
    LeaseLost,
    NotFound,
    NotWaiting,
    StepConflict,
)
from langgraph_durable.runs import (
    FINAL,
    NEXT,
    Asked,
    Broke,
    Cancelled,
    Decision,
    Done,
    Drained,
    Emitted,
    Lease,
    Outcome,
    Question,
    QuestionState,
    Retried,
    Retry,
    Slept,
    Status,
    Step,
    StepState,
)
from langgraph_durable.store import schema

LEASE_SECONDS = 60.0
ERROR = {"type": "E", "message": "no"}
BACKOFF = Retry()
# 0 is one that lives, if one does; others are the n-th from the newest, living or dead
WHICH = st.one_of(st.just(0), st.just(0), st.integers(1, 9))
KEYS = st.sampled_from(["a", "b", "pay"])
WORKERS = st.sampled_from(["w1", "w1", "w2"])  # two workers may bear one name
DECISIONS = st.sampled_from(
    [
        Decision.approve("mei"),
        Decision.approve("bo", "me too"),
        Decision.reject("bo", "no"),
        Decision.edit("mei", {"amount": 1}),
        Decision.edit("mei", {"amount": True}),
    ]
)
ASKED = st.dictionaries(
    KEYS,
    st.tuples(
        st.sampled_from(["d1", "d2"]),
        st.sampled_from([None, 30.0]),
        st.sampled_from(["fail", "reject"]),
    ),
    max_size=3,
)


class StoreMachine(RuleBasedStateMachine):
    """Moves of clients, people, workers living and dead, operators and the clock."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        desk.wipe()
        self.desk, self.store, self.model = desk, desk.store, Model()
        self.leases: list[Lease] = []
        self.asked: list[str] = []  # ids of questions, the purged ones too
        self.answers: dict[tuple[str, str], tuple[Any, ...]] = {}  # as first recorded
        self.epochs: dict[str, int] = {}
        self.statuses: dict[str, Status] = {}
        self.ids = 0

    # --- words -------------------------------------------------------------------------

    @property
    def now(self) -> Any:
        return self.desk.clock.now()

    def lease(self, which: int) -> Lease:
        living = [lease for lease in self.leases if self.held(lease)]
        return living[-1] if living and which == 0 else _nth(self.leases, which)

    def run_of(self, which: int) -> ModelRun:
        return _nth(list(self.model.runs.values()), which)

    def question(self, which: int) -> tuple[str, ModelRun | None, ModelQuestion | None]:
        open_ = [q.id for run in self.model.runs.values() for q in run.open_questions]
        id_ = open_[-1] if open_ and which == 0 else _nth(self.asked, which)
        for run in self.model.runs.values():
            if id_ in run.questions:
                return id_, run, run.questions[id_]
        return id_, None, None

    def held(self, lease: Lease) -> ModelRun | None:
        run = self.model.runs.get(lease.run_id)
        return run if run is not None and run.is_held_by(lease) else None

    def tick(self) -> None:
        """Let no two leases end at one instant: which is taken over first would be chance."""
        self.desk.clock.advance(0.001)

    def outcome_of(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except DurableError as error:
            return error

    @initialize(asked=ASKED)
    def in_the_middle_of_a_day(self, asked: dict[str, tuple[str, float | None, str]]) -> None:
        """A run that told something and has ended, or waits; and two that share a thread."""
        self.submit(None, None, "1", 0)
        self.claim("w1")
        for key in ("a", "b"):
            self.record(0, key, "1", StepState.RECORDED, True)
        if asked:
            self.park(0, asked, None)
        else:
            self.settle(0, Done("1"))
        self.submit("c1", None, "1", 0)
        self.submit("c1", "k1", "1", 1)

    # --- clients -----------------------------------------------------------------------

    @rule(
        thread=st.sampled_from([None, None, "c1"]),
        key=st.sampled_from([None, None, "k1"]),
        given=st.sampled_from(["1", "1", "2"]),
        priority=st.sampled_from([0, 0, 1]),
    )
    def submit(self, thread: str | None, key: str | None, given: str, priority: int) -> None:
        self.ids += 1
        id_ = f"run-{self.ids:03d}"
        more = {"thread": thread} if thread else {}
        got = self.outcome_of(
            lambda: self.desk.submit(
                id=id_, input=given, idempotency_key=key, priority=priority, **more
            )
        )
        same = [r for r in self.model.runs.values() if key is not None and r.idempotency_key == key]
        if not same:
            assert got.id == id_
            self.model.runs[id_] = ModelRun(
                id_, thread or id_, key, given, priority, self.now, self.now
            )
        elif same[0].input == given:
            assert got.id == same[0].id
        else:
            assert isinstance(got, Conflict)

    @precondition(lambda self: self.model.runs)
    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        run = self.run_of(which)
        got = self.outcome_of(lambda: self.store.cancel(run.id, by="x"))
        if run.status in (Status.CANCELLED, Status.CANCELLING):
            assert got is run.status
        elif run.status in FINAL:
            assert isinstance(got, Conflict)
        elif run.status is Status.RUNNING:
            assert got is Status.CANCELLING
            run.status = Status.CANCELLING
        else:
            assert got is Status.CANCELLED
            run.leave(Status.CANCELLED, self.now)

    # --- workers -----------------------------------------------------------------------

    @rule(worker=WORKERS)
    def claim(self, worker: str) -> None:
        self.tick()
        got = self.desk.claim(worker, lease_seconds=LEASE_SECONDS)
        while allowed := self.model.candidates(self.now):
            chosen = next((r for r in allowed if got and r.id == got.run.id), allowed[0])
            if self.model.claim(chosen, worker, self.now, LEASE_SECONDS):
                assert got is not None
                assert got.lease == Lease(chosen.id, chosen.epoch, worker)
                self.leases.append(got.lease)
                return
        assert got is None

    @precondition(lambda self: not any(self.model.is_doomed(r) for r in self.model.runs.values()))
    @rule()
    def two_claim_at_once(self) -> None:
        got = at_once(*(lambda w=w: self.desk.claim(w) for w in ("w1", "w2")))
        ids = [claim.run.id for claim in got if claim is not None]
        assert len(set(ids)) == len(ids), "a run was claimed twice"
        for claim in sorted((c for c in got if c), key=lambda c: c.run.id):
            run = self.model.runs[claim.run.id]
            assert self.model.claim(run, claim.lease.worker, self.now, LEASE_SECONDS)
            assert claim.lease.epoch == run.epoch
            self.leases.append(claim.lease)
            self.heartbeat_of(claim.lease)
        if len(ids) < 2:  # nothing was overlooked
            assert self.model.candidates(self.now) == []

    @precondition(lambda self: self.leases)
    @rule(which=WHICH)
    def heartbeat(self, which: int) -> None:
        self.heartbeat_of(self.lease(which))

    def heartbeat_of(self, lease: Lease) -> None:
        self.tick()
        run = self.held(lease)
        got = self.store.heartbeat([lease], LEASE_SECONDS)
        assert got == ({lease: run.status} if run else {})
        if run is not None:
            run.lease_until = self.now + timedelta(seconds=LEASE_SECONDS)

    @precondition(lambda self: self.leases)
    @rule(
        which=WHICH,
        key=KEYS,
        value=st.sampled_from(["1", "2"]),
        state=st.sampled_from([StepState.RECORDED, StepState.RECORDED, StepState.INTENT]),
        emits=st.booleans(),
    )
    def record(self, which: int, key: str, value: str, state: StepState, emits: bool) -> None:
        self.tick()
        lease = self.lease(which)
        run = self.held(lease)
        recorded = state is StepState.RECORDED
        told = (Emitted(key, "refund.made", "t", {"v": value}),) if emits and recorded else ()
        written = Step(key, "once", "f", state=state, value=value if recorded else None, emits=told)
        got = self.outcome_of(lambda: self.store.put_step(lease, written, LEASE_SECONDS))
        if run is None:
            assert isinstance(got, LeaseLost)
            return
        run.lease_until = self.now + timedelta(seconds=LEASE_SECONDS)
        known = run.steps.get(key)
        if known is not None and known[0] == "recorded":
            if (known[1], known[2]) != (written.value, lease.epoch):
                assert isinstance(got, StepConflict)
                return
        else:
            run.steps[key] = (state.value, written.value, lease.epoch)
        assert got is None
        if told:
            run.messages.setdefault(key, "pending")

    @precondition(lambda self: self.leases)
    @rule(which=WHICH, asked=ASKED, seconds=st.sampled_from([None, None, 30.0]))
    def park(
        self, which: int, asked: dict[str, tuple[str, float | None, str]], seconds: float | None
    ) -> None:
        put = [
            question(key, digest=digest, expires_in_seconds=expires, on_expiry=on_expiry)
            for key, (digest, expires, on_expiry) in asked.items()
        ]
        self._settle(self.lease(which), Asked(tuple(put), seconds))

    @precondition(lambda self: self.leases)
    @rule(
        which=WHICH,
        outcome=st.sampled_from(
            [
                Slept(30.0),
                Slept(30.0),
                Drained(),
                Drained(),
                Done("1"),
                Broke(ERROR),
                Cancelled(),
                Retried(ERROR, progressed=False),
                Retried(ERROR, progressed=True),
            ]
        ),
    )
    def settle(self, which: int, outcome: Outcome) -> None:
        self._settle(self.lease(which), outcome)

    def _settle(self, lease: Lease, outcome: Outcome) -> None:
        got = self.outcome_of(lambda: self.store.settle(lease, outcome, backoff=BACKOFF))
        run = self.model.runs.get(lease.run_id)
        if run is None or run.epoch != lease.epoch:
            assert isinstance(got, LeaseLost)
            return
        if run.worker is None:  # settled before, under this very lease
            assert got is run.status
            return
        if run.status is not Status.CANCELLING and isinstance(outcome, Cancelled):
            assert isinstance(got, IllegalMove)
            return
        self._expect(run, Cancelled() if run.status is Status.CANCELLING else outcome)
        assert got is run.status

    def _expect(self, run: ModelRun, outcome: Outcome) -> None:
        match outcome:
            case Done():
                run.leave(Status.SUCCEEDED, self.now)
            case Broke():
                run.leave(Status.FAILED, self.now)
            case Cancelled():
                run.leave(Status.CANCELLED, self.now)
            case Slept(seconds):
                run.attempts = 0
                run.leave(Status.SLEEPING, self.now)
                run.wake_at = self._later(seconds)
            case Drained():
                run.attempts = 0 if run.progressed else run.attempts
                run.leave(Status.QUEUED, self.now, run.created_at)
            case Retried(_, progressed):
                run.attempts = 1 if progressed else run.attempts + 1
                if run.attempts >= run.max_attempts:
                    run.leave(Status.FAILED, self.now)
                    return
                pause = BACKOFF.first_seconds * BACKOFF.factor ** (run.attempts - 1)
                run.leave(Status.QUEUED, self.now, self.now + timedelta(seconds=pause))
            case Asked(asked, seconds):
                self._park(run, asked, seconds)

    def _later(self, seconds: float | None) -> Any:
        return None if seconds is None else self.now + timedelta(seconds=seconds)

    def _park(self, run: ModelRun, asked: Sequence[Question], seconds: float | None) -> None:
        put = [
            ModelQuestion(
                one.id,
                one.key,
                one.digest,
                self._later(one.expires_in_seconds),
                one.on_expiry,
            )
            for one in asked
        ]
        self.model.ask(run, put, self.now, self._later(seconds))
        self.asked += [one.id for one in put if one.id in run.questions]

    # --- people ------------------------------------------------------------------------

    @precondition(lambda self: self.asked)
    @rule(which=WHICH, decision=DECISIONS)
    def decide(self, which: int, decision: Decision) -> None:
        id_, run, asked = self.question(which)
        got = self.outcome_of(lambda: self.desk.decide(id_, decision))
        if run is None or asked is None:
            assert isinstance(got, NotFound)
        elif asked.state is QuestionState.DECIDED:
            assert asked.decision is not None
            same = _says(asked.decision) == _says(decision)
            assert isinstance(got, Question if same else AlreadyDecided)
            if same:
                assert got.decision == asked.decision, "the first one stands"
        elif asked.state is not OPEN or self._is_overdue(asked):
            assert isinstance(got, NotWaiting)
        else:
            assert got.decision == decision
            self._decided(run, asked, decision)

    def _is_overdue(self, asked: ModelQuestion) -> bool:
        return asked.expires_at is not None and asked.expires_at <= self.now

    def _decided(self, run: ModelRun, asked: ModelQuestion, decision: Decision) -> None:
        asked.state, asked.decision = QuestionState.DECIDED, decision
        run.wake()

    @precondition(lambda self: any(r.open_questions for r in self.model.runs.values()))
    @rule(which=WHICH)
    def approve_reject_and_sweep_at_once(self, which: int) -> None:
        open_ = [(r, q) for r in self.model.runs.values() for q in r.open_questions]
        run, asked = _nth(open_, which)
        yes, no = Decision.approve("mei"), Decision.reject("bo")
        approved, rejected, swept = at_once(
            lambda: self.desk.decide(asked.id, yes),
            lambda: self.desk.decide(asked.id, no),
            self.store.sweep,
        )
        assert isinstance(swept, int)
        got = [approved, rejected]
        if self._is_overdue(asked):
            assert all(isinstance(one, NotWaiting) for one in got)
        else:
            kept = [one for one in got if isinstance(one, Question)]
            told = [one for one in got if isinstance(one, AlreadyDecided)]
            assert (len(kept), len(told)) == (1, 1), got
            self._decided(run, asked, yes if isinstance(approved, Question) else no)
        self.model.sweep(self.now)

    # --- operators and time ------------------------------------------------------------

    @precondition(lambda self: self.model.runs)
    @rule(which=WHICH)
    def retry(self, which: int) -> None:
        run = self.run_of(which)
        got = self.outcome_of(lambda: self.store.retry(run.id, by="x"))
        if run.status is not Status.FAILED:
            assert isinstance(got, IllegalMove)
            return
        assert got.status is Status.QUEUED
        run.status, run.attempts, run.finished_at = Status.QUEUED, 0, None
        run.run_after = self.now
        for asked in run.questions.values():
            if asked.state is QuestionState.EXPIRED and asked.on_expiry == "fail":
                asked.state = QuestionState.CLOSED

    @rule(seconds=st.sampled_from([0.5, 31.0, 61.0, 3600.0]))
    def advance(self, seconds: float) -> None:
        self.desk.clock.advance(seconds)

    @rule()
    def sweep(self) -> None:
        assert self.store.sweep() == self.model.sweep(self.now)

    @rule(arrives=st.booleans())
    def deliver(self, arrives: bool) -> None:
        """Take what is due and settle all of it; what doesn't arrive is dead at once."""
        taken = self.store.take_messages(["refund.*"])
        assert len({message.run_id for message in taken}) == len(taken), "two of one run at once"
        for message in taken:
            run = self.model.runs[message.run_id]
            key = message.id.removeprefix(f"{run.id}:")
            pending = [k for k, state in run.messages.items() if state == "pending"]
            assert key == pending[0], "out of order"
            self.store.settle_message(message, None if arrives else "no")
            run.messages[key] = "delivered" if arrives else "dead"

    @precondition(lambda self: any(r.messages for r in self.model.runs.values()))
    @rule(which=WHICH)
    def resend(self, which: int) -> None:
        known = [(r, key) for r in self.model.runs.values() for key in r.messages]
        run, key = _nth(known, which)
        got = self.outcome_of(lambda: self.store.resend(f"{run.id}:{key}", by="x"))
        if run.messages[key] == "dead":
            assert (got.id, got.state) == (f"{run.id}:{key}", "pending")
            run.messages[key] = "pending"
        else:
            assert isinstance(got, Conflict)

    @rule(seconds=st.sampled_from([0.0, 100.0]))
    def purge(self, seconds: float) -> None:
        gone = self.model.purge(self.now - timedelta(seconds=seconds))
        assert self.store.purge(seconds) == len(gone)

    # --- what always holds -------------------------------------------------------------

    @invariant()
    def the_database_is_as_the_model_says(self) -> None:
        with self.desk.engine.connect() as tx:
            rows = {
                table.name: tx.execute(sa.select(table)).all()
                for table in (schema.runs, schema.steps, schema.questions, schema.outbox)
            }
            told = tx.execute(
                sa.select(schema.events.c.run_id, schema.events.c.type, schema.events.c.data)
            ).all()
        self._runs_agree(rows["runs"])
        self._steps_agree(rows["steps"])
        self._questions_agree(rows["questions"], told)
        assert {(r.run_id, r.key): r.state for r in rows["outbox"]} == {
            (run.id, key): state
            for run in self.model.runs.values()
            for key, state in run.messages.items()
        }
        assert {row.run_id for row in told} <= set(self.model.runs), "events outlived their run"

    def _runs_agree(self, rows: Sequence[Any]) -> None:
        shown = (
            "status", "epoch", "attempts", "worker", "lease_until", "holds_thread", "finished_at",
            "run_after", "wake_at",
        )  # fmt: skip
        assert {row.id: {name: getattr(row, name) for name in shown} for row in rows} == {
            run.id: {name: getattr(run, name) for name in shown} for run in self.model.runs.values()
        }
        for row in rows:
            status = Status(row.status)
            before = self.statuses.get(row.id, Status.QUEUED)
            assert status is before or _leads(before, status), (before, status)
            assert row.epoch >= self.epochs.get(row.id, 0), "an epoch went back"
            assert (row.worker is not None) is (status in OWNED)
            self.statuses[row.id], self.epochs[row.id] = status, row.epoch
        held = [row.thread for row in rows if row.holds_thread]
        assert len(set(held)) == len(held), "two runs on one thread"

    def _steps_agree(self, rows: Sequence[Any]) -> None:
        assert {(r.run_id, r.key): (r.state, r.value, r.epoch) for r in rows} == {
            (run.id, key): kept
            for run in self.model.runs.values()
            for key, kept in run.steps.items()
        }
        for row in rows:
            if row.state == "recorded":  # an answer never changes, not even its time
                assert self.answers.setdefault((row.run_id, row.key), tuple(row)) == tuple(row)

    def _questions_agree(self, rows: Sequence[Any], told: Sequence[Any]) -> None:
        assert {(r.run_id, r.id): (r.key, r.state, r.decided_by) for r in rows} == {
            (run.id, q.id): (q.key, q.state, q.decision.by if q.decision else None)
            for run in self.model.runs.values()
            for q in run.questions.values()
        }
        said = [json.loads(e.data)["question_id"] for e in told if e.type == "question_decided"]
        assert sorted(said) == sorted(r.id for r in rows if r.decision is not None)
        for run in self.model.runs.values():
            if run.status is Status.WAITING_HUMAN:
                assert run.open_questions, "it waits for nobody"
            assert not (run.open_questions and run.status in FINAL), "nobody is waited for"


def _nth(known: Sequence[Any], which: int) -> Any:
    return known[-1 - which % len(known)]


def _says(decision: Decision) -> str:
    # True is not 1 in an answer
    return repr(replace(decision, by="", reason=""))


def _leads(source: Status, target: Status) -> bool:
    """One call may make two moves: a claim that ends a crash loop, a park that wakes at once."""
    return target in NEXT[source] or any(target in NEXT[middle] for middle in NEXT[source])


@pytest.mark.promise("S-05")
@pytest.mark.promise("H-05")
@pytest.mark.promise("H-09")
@pytest.mark.promise("H-12")
def test_the_store_does_what_a_simple_model_says(desk: Desk) -> None:
    many = settings.default.max_examples
    run_state_machine_as_test(
        lambda: StoreMachine(desk),
        settings=settings(
            max_examples=max(1, many // 5),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
