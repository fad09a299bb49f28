"""Live a run from its submit to its end, dying on the way as planned.

One folder, one SQLite file, one clock that only we turn. Who lives the run plays all the
parts: the client that submits and sends again what got no answer, the worker, the person
who decides.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from langgraph_durable.errors import DurableError
from langgraph_durable.runs import (
    COMPENSATE,
    HAPPENED,
    PARKED,
    Decision,
    Event,
    Question,
    QuestionState,
    Run,
    Signal,
    Status,
    Step,
    StepState,
)
from langgraph_durable.store import open_engine
from langgraph_durable.testing.fakes import FakeClock, SeededChance
from langgraph_durable.testing.mortal import MortalDurable, MortalWorker, recorded_label
from langgraph_durable.testing.points import Called, Died, Life, Point, Trace, living
from langgraph_durable.testing.scenes import PERSON, Scene, enter
from langgraph_durable.values import decode

LEASE_SECONDS = 60.0
MAX_TURNS = 1_000
STALL_SECONDS = 30.0  # by the real clock: a life that can't be woken is a bug of this file
SUBMITTED_AS = "crash-everywhere"
DATABASE = "durable.db"
OUTCOME = "?outcome"  # what the key of "did this call happen?" adds to the step's


class Stuck(DurableError):
    """A run that nobody can carry on, or that never ends."""


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What is left of a run: read back when it had ended, nothing assumed."""

    run: Run
    steps: Sequence[Step]
    values: Mapping[str, Any]  # of the recorded steps, decoded
    events: Sequence[Event]
    questions: Sequence[Question]
    shown: Sequence[Any]  # by the outside world
    calls: Sequence[Called]
    reached: Sequence[Point]
    acknowledged: frozenset[str]  # steps whose record was reported as committed
    kept: Sequence[Mapping[str, Step]] = ()  # what was recorded when each life ended
    unreached: Sequence[Point] = ()
    signals: Sequence[Signal] = ()
    trouble: Sequence[str] = ()


@dataclass
class Stage:
    """Where runs are lived: one folder, which is made anew for each of them.

    Args:
        make: builds the scene in the folder, for each life anew.
        input: what is submitted.
        template: a database that has its schema.
    """

    make: Callable[[Path], Scene]
    input: Any
    folder: Path
    template: Path
    clock: FakeClock
    durable: type[MortalDurable] = MortalDurable

    def __post_init__(self) -> None:
        """Open the database; it is there when the first run is set up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.engine = open_engine(f"sqlite:///{self.folder / DATABASE}")

    def set_up(self) -> None:
        """Empty the folder but for an empty database."""
        self.engine.dispose()
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        shutil.copy(self.template, self.folder / DATABASE)

    def open(self, life: Life, chance: SeededChance) -> Player:
        """Begin a life."""
        scene = self.make(self.folder)
        durable = self.durable(scene, life, self.engine, self.clock, chance)
        return Player(durable, scene, self.clock, self.input, enter(durable, scene))


@dataclass
class Client:
    """What the people outside know; it outlives the process."""

    run_id: str | None = None
    clicked: tuple[str, Decision] | None = None  # the last one: its answer may have been lost
    said: tuple[str, Any, str] | None = None  # the last signal: event, payload, id


@dataclass
class Player:
    """One life: a client, a worker and a person on the same database."""

    durable: MortalDurable
    scene: Scene
    clock: FakeClock
    input: Any
    agent: str
    client: Client = field(default_factory=Client)
    before_truth: Callable[[], object] | None = None

    def live(self) -> str:
        """Carry the run on until it has ended; returns its id.

        Raises:
            Stuck: it doesn't end.
            Died: this life ended first (or CancelledError, which its loop ended with).
        """
        worker = MortalWorker(self.durable, "worker", lease_seconds=LEASE_SECONDS)
        with living(self.durable.life):
            # who got no answer submits again, under the same idempotency key
            run_id = self.client.run_id = self.client.run_id or self._submit()
            self._click_again()
            self._say_again()
            for _ in range(MAX_TURNS):
                run = self.durable.get(run_id)
                if run.status.is_final:
                    return run_id
                if run.status in PARKED and self._signal(run):
                    continue
                if run.status is Status.WAITING_HUMAN:
                    self._decide(run)
                    continue
                self._wait_until(_due(run))
                if worker.run_once() is None and self.durable.get(run_id) == run:
                    raise Stuck(f"the run is {run.status.value}, and no worker can claim it")
        raise Stuck(f"the run did not end in {MAX_TURNS} turns; it is {run.status.value}")

    def close(self) -> None:
        """Let go of the database."""
        self.durable.close()

    def find(self) -> str | None:
        """Return the run's id, if its submit was committed."""
        found = self.durable.runs(limit=1)
        return found[0].id if found else None

    def _submit(self) -> str:
        return self.durable.submit(
            self.agent, self.input, tenant=self.scene.tenant, idempotency_key=SUBMITTED_AS
        )

    def _wait_until(self, time: datetime) -> None:
        if time > self.clock.now():
            self.clock.turn_to(time)

    # --- who signals -------------------------------------------------------------------

    def _signal(self, run: Run) -> bool:
        """Send the next signal of an event that the run waits for; False if there is none."""
        sent = Counter(signal.event for signal in self.durable.signals(run.id))
        for step in self.durable.journal(run.id):
            script = self.scene.signals.get(step.name, ())
            if step.state is StepState.WAITING and sent[step.name] < len(script):
                number = sent[step.name]
                self.client.said = (step.name, script[number], f"{step.name}-{number + 1}")
                self._send(run.id)
                return True
        return False

    def _say_again(self) -> None:
        """Send again what was sent last: the answer may have been lost in the crash."""
        if self.client.said is not None and self.client.run_id is not None:
            known = {signal.id for signal in self.durable.signals(self.client.run_id)}
            if self.client.said[2] in known:
                self._send(self.client.run_id)

    def _send(self, run_id: str) -> None:
        if self.client.said is not None:
            event, payload, id_ = self.client.said
            self.durable.send(run_id, event, payload, id=id_)

    # --- the person --------------------------------------------------------------------

    def _decide(self, run: Run) -> None:
        open_ = self.durable.questions(run_id=run.id)
        if not open_:
            raise Stuck("the run waits for people, but it asks nothing")
        unanswered = []
        for question in open_:
            decision = self._answer(question)
            if decision is None:
                unanswered.append(question)
                continue
            self.client.clicked = (question.id, decision)
            self.durable.decide(question.id, decision)
        if len(unanswered) == len(open_):
            self._let_expire(unanswered)

    def _answer(self, question: Question) -> Decision | None:
        if question.kind == "outcome":
            return self._truth(question)
        if question.key.endswith(HAPPENED) and "approve" in question.allowed:
            return self._truth_of_undone(question)
        return self.scene.decisions(question)

    def _truth(self, question: Question) -> Decision:
        """Say whether a call happened that a dead worker had begun: a person would look.

        A worker that only stands still may make the call yet, so nobody can know before it
        has ended.
        """
        if self.before_truth is not None:
            self.before_truth()
        known = self._seen(question.key.partition(OUTCOME)[0])
        if known is None:
            return Decision.reject(PERSON, "it did not happen")
        return Decision.respond(PERSON, decode(known, types=self.durable.types))

    def _truth_of_undone(self, question: Question) -> Decision:
        """Say whether a call happened that is to be undone."""
        if self.before_truth is not None:
            self.before_truth()
        key = question.key.removeprefix(COMPENSATE).removesuffix(HAPPENED)
        if self._seen(key) is None:
            return Decision.reject(PERSON, "it did not happen")
        return Decision.approve(PERSON)

    def _seen(self, key: str) -> str | None:
        """Return the result that the outside world gave the call of a step."""
        trace = self.durable.life.trace
        results = [call.result for call in trace.calls if call.key == key and call.result]
        return results[-1] if results else trace.values.get(key)

    def _click_again(self) -> None:
        """Decide again what was decided last: the answer may have been lost in the crash."""
        if self.client.clicked is not None:
            question_id, decision = self.client.clicked
            if self.durable.store.question(question_id).state is QuestionState.DECIDED:
                self.durable.decide(question_id, decision)

    def _let_expire(self, questions: Sequence[Question]) -> None:
        times = [q.expires_at for q in questions if q.expires_at is not None]
        if not times:
            keys = ", ".join(q.key for q in questions)
            raise Stuck(f"nobody answers {keys}, and it never expires")
        self._wait_until(min(times) + timedelta(seconds=1))
        self.durable.store.sweep()

    # --- afterwards --------------------------------------------------------------------

    def recorded(self) -> dict[str, Step]:
        """Return the answers that the journal has now."""
        run_id = self.client.run_id or self.find()
        steps = self.durable.store.list_steps(run_id) if run_id else []
        return {step.key: step for step in steps if step.state is StepState.RECORDED}

    def aftermath(self, run_id: str) -> Aftermath:
        """Read everything back."""
        durable, trace = self.durable, self.durable.life.trace
        steps = durable.journal(run_id)
        labels = {point.label for point in trace.points if point.when == "after"}
        return Aftermath(
            run=durable.get(run_id),
            steps=steps,
            values={s.key: durable.value(s) for s in steps if s.state is StepState.RECORDED},
            events=durable.events(run_id),
            questions=durable.questions(run_id=run_id, state=None),
            signals=durable.signals(run_id),
            shown=self.scene.shown(),
            calls=list(trace.calls),
            reached=list(trace.points),
            acknowledged=frozenset(k for k in trace.values if recorded_label(k) in labels),
        )


def _due(run: Run) -> datetime:
    if run.status in (Status.RUNNING, Status.CANCELLING) and run.lease_until is not None:
        return run.lease_until + timedelta(seconds=1)
    if run.status in PARKED:
        if run.wake_at is None:
            raise Stuck("the run waits for an event that nobody signals, without end")
        return run.wake_at
    return run.run_after


def play(stage: Stage, plan: Sequence[Point] = ()) -> Aftermath:
    """Live a run that crashes at each planned point in turn."""
    stage.set_up()
    trace, chance = Trace(), SeededChance()
    client = Client()
    kept: list[Mapping[str, Step]] = []
    for number, fault in enumerate([*plan, None]):
        life = Life(trace, fault, Life.crash)
        player = stage.open(life, chance)
        player.client = client
        try:
            if number:
                kept.append(player.recorded())
            run_id = player.live()
            return replace(player.aftermath(run_id), kept=kept, unreached=tuple(plan[number:]))
        except (Died, asyncio.CancelledError):
            if not life.is_dead:
                raise
        finally:
            player.close()
    raise AssertionError("unreachable: the last life has no end planned")


def play_stopped(stage: Stage, point: Point) -> Aftermath:
    """Live a run whose worker stands still at a point until another one has ended the run."""
    stage.set_up()
    trace, chance = Trace(), SeededChance()
    first = Life(trace, point, Life.stop)
    sleeper = stage.open(first, chance)
    said: list[str] = []

    def live() -> None:
        try:
            sleeper.live()
        except Exception as error:
            said.append(f"the worker that woke up raised {type(error).__name__}: {error}")

    thread = threading.Thread(target=live, name="stopped life", daemon=True)
    thread.start()
    while thread.is_alive() and not first.has_stopped.wait(0.001):
        pass
    unreached = () if first.has_stopped.is_set() else (point,)
    second = stage.open(Life(trace), chance)

    def wake() -> None:
        first.go_on()
        thread.join(STALL_SECONDS)

    second.before_truth = wake
    try:
        run_id = second.live()
        before = second.durable.get(run_id)
        wake()
        if thread.is_alive():
            said.append("the worker that woke up does not end")
        after = second.aftermath(run_id)
        if before != after.run:
            said.append("the worker that woke up changed the run after its end")
        return replace(after, unreached=unreached, trouble=tuple(said))
    finally:
        wake()
        second.close()
        sleeper.close()
