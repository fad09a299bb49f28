"""replay_check: does today's code still replay what was recorded? For CI, before a deploy.

An exported run is plain JSON: its input, its steps, its questions, its end. It is replayed
with every answer from the recording; no model and no tool is called.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, NoReturn

from langgraph_durable import agents
from langgraph_durable.agents import Agent
from langgraph_durable.app import Durable
from langgraph_durable.context import RunContext, Services
from langgraph_durable.context.patching import PREFIX as PATCHED
from langgraph_durable.errors import BadInput, NonDeterminismError, Parked, ToolError
from langgraph_durable.models import ModelRoutes
from langgraph_durable.modes import Passage, drive
from langgraph_durable.runs import (
    COMPENSATE,
    Asked,
    Broke,
    Decision,
    Done,
    Effect,
    Lease,
    Mode,
    Outcome,
    Question,
    QuestionState,
    Refused,
    Retried,
    Retry,
    Run,
    Signal,
    Status,
    Step,
    StepState,
    is_settled_patch,
)
from langgraph_durable.testing.fakes import FakeClock, SeededChance
from langgraph_durable.testing.ledger import Ledger
from langgraph_durable.testing.offline import offline
from langgraph_durable.testing.plain import plain
from langgraph_durable.testing.scenes import NAME
from langgraph_durable.tools import ToolHub
from langgraph_durable.values import Types, decode, encode, readable

FORMAT = 1
_ALL_TIMERS_OVER = timedelta(days=36_525)


# --- export ------------------------------------------------------------------------------


def export_run(durable: Durable, run_id: str, tenant: str | None = None) -> dict[str, Any]:
    """Return a run as plain JSON, for `replay_check`.

    It holds what the run holds: customers' words, and whatever tools answered.

    Raises:
        NotFound: no such run for this tenant.
    """
    run = durable.get(run_id, tenant)
    types = durable.types

    def text(value: Any) -> str:
        return encode(value, types=types, where=f"run {run_id}", limit_bytes=1 << 40)

    told = {
        **{name: getattr(run, name) for name in _RUN},
        "status": run.status.value,
        "created_at": run.created_at.isoformat(),
        "input": text(run.input),
        "output": text(run.output),
    }
    questions = durable.questions(run_id=run_id, state=None, limit=10_000)
    steps = durable.journal(run_id)
    called = {step.name for step in steps if step.kind == "tool"}
    return {
        "format": FORMAT,
        "run": told,
        "effects": {
            spec.full_name: spec.effect.value
            for spec in durable.services.tools.specs()
            if spec.full_name in called
        },
        "steps": [_flat(step) for step in steps],
        "questions": [
            {**_flat(q), "payload": text(q.payload), "default": text(q.default),
             "decision": None if q.decision is None else text(asdict(q.decision))}
            for q in questions
        ],
    }  # fmt: skip


_RUN = ("id", "tenant", "agent", "version", "mode", "thread", "error")


def _flat(row: Step | Question) -> dict[str, Any]:
    found = {f.name: getattr(row, f.name) for f in fields(row) if f.name != "redaction"}
    return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in found.items()}


# --- what was recorded -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Recording:
    run: Run
    steps: Mapping[str, Step]
    questions: Sequence[Question]
    output: str
    effects: Mapping[str, str]  # of the tools that were called, where the export knew them

    @classmethod
    def read(cls, data: Mapping[str, Any] | str, types: Types) -> _Recording:
        given: Mapping[str, Any] = json.loads(data) if isinstance(data, str) else data
        if given.get("format") != FORMAT:
            raise BadInput(
                f"this is no exported run of format {FORMAT}: make one with "
                "`langgraph-durable runs export RUN`"
            )
        told: Mapping[str, Any] = given["run"]
        created = datetime.fromisoformat(told["created_at"])
        run = Run(
            **{name: told[name] for name in _RUN},
            status=Status(told["status"]), input=decode(told["input"], types=types),
            output=None, priority=0, attempts=0, max_attempts=1, epoch=1, worker="replay",
            lease_until=None, run_after=created, deadline_seconds=None, idempotency_key=None,
            created_at=created, started_at=created, finished_at=None,
        )  # fmt: skip
        steps = [
            Step(**_timed({**step, "state": StepState(step["state"])})) for step in given["steps"]
        ]
        questions = [_question(question, types) for question in given["questions"]]
        by_key = {step.key: step for step in steps}
        return cls(run, by_key, questions, told["output"], given.get("effects", {}))


def _timed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        k: datetime.fromisoformat(v) if k.endswith("_at") and isinstance(v, str) else v
        for k, v in row.items()
    }


def _question(row: Mapping[str, Any], types: Types) -> Question:
    decision = row["decision"]
    if decision is not None:
        decision = Decision(**decode(decision, types=types))
    decoded = {name: decode(row[name], types=types) for name in ("payload", "default")}
    given = {**_timed(row), **decoded, "decision": decision, "state": QuestionState(row["state"])}
    return Question(**{**given, "allowed": tuple(row["allowed"])})


# --- the report --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Divergence:
    """One thing that today's code does otherwise."""

    key: str  # of the step or question; empty for the output and the order
    recorded: str
    today: str

    def __str__(self) -> str:
        """Say it in a line."""
        what = f"step {self.key!r}: " if self.key else ""
        return f"{what}recorded {self.recorded}; today {self.today}"


class Diverged(NonDeterminismError, AssertionError):
    """Today's code does not replay what was recorded."""

    def __init__(self, report: ReplayReport) -> None:
        first = report.divergences[0]
        super().__init__(first.key, first.recorded, first.today)
        self.report = report
        self.args = (str(report),)


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What came of a replay."""

    run_id: str
    agent: str
    replayed: int
    divergences: tuple[Divergence, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        """Whether today's code can carry such a run on."""
        return not self.divergences

    def assert_ok(self) -> None:
        """Raise unless today's code replays the run.

        Raises:
            Diverged: it does not; a NonDeterminismError and an AssertionError.
        """
        if not self.is_ok:
            raise Diverged(self)

    def __str__(self) -> str:
        """Name what diverged."""
        head = f"run {self.run_id} of {self.agent}: {self.replayed} steps replayed"
        if self.is_ok:
            return "\n".join([head, *(f"  warning: {w}" for w in self.warnings)])
        return "\n".join([f"{head}, {len(self.divergences)} diverged:",
                          *(f"  - {d}" for d in self.divergences)])  # fmt: skip


# --- the replay --------------------------------------------------------------------------


@dataclass(slots=True)
class _Replay:
    """A journal that answers from the recording, and notes what is asked of it."""

    recording: _Recording
    asked: dict[str, str] = field(default_factory=dict)  # key -> place today
    missing: dict[str, str] = field(default_factory=dict)
    ctx: RunContext | None = None
    progressed: bool = False

    def recorded(self, key: str) -> Step | None:
        """Answer from the recording; what it lacks ends the code that asks.

        Raises:
            Parked: there is no answer.
            ToolError: the call had failed, and the code went on from there.
        """
        step = self.recording.steps.get(key)
        if step is None and key.startswith(PATCHED):
            return Step(key, "patch", name=key.removeprefix(PATCHED), value=self._side())
        if self.ctx is None or self.ctx.state.closed:
            return step  # the code has ended: it isn't the one who asks
        place = self.ctx.here().path
        (self.missing if step is None else self.asked).setdefault(key, place)
        if step is None or step.state not in (StepState.RECORDED, StepState.FAILED):
            # only this call ends: what runs beside it has answers of its own
            raise Parked(f"the recording ends at step {key!r}")
        if step.state is StepState.FAILED:
            raise ToolError(step.error or "failed", tool=step.name, key=key)
        return step

    def _side(self) -> str:
        """Say which side of a change a run takes that was recorded before the change."""
        asks = any(question.kind == "interrupt" for question in self.recording.questions)
        is_behind = asks or self.recording.run.status.is_final
        has_more = any(key not in self.asked for key in self.recording.steps)
        return "false" if is_behind or has_more else "true"

    def steps(self) -> Sequence[Step]:
        """Return none: a replay uses nothing up."""
        return ()

    def questions(self) -> Sequence[Question]:
        """Return the recorded questions."""
        return self.recording.questions

    def answer(self, key: str, digest: str) -> Question | None:
        """Return the recorded answer to a question that was put for this payload."""
        for question in self.recording.questions:
            if (question.key, question.digest) == (key, digest) and question.state in (
                QuestionState.DECIDED,
                QuestionState.EXPIRED,
            ):
                return question
        return None

    async def signals(self, event: str, limit: int) -> Sequence[Signal]:
        """Return none: what was taken is in the recorded steps."""
        return ()

    async def record(self, step: Step) -> Step:
        """Record nothing: nothing new is called."""
        raise Parked(f"the recording ends at step {step.key!r}")


class _NoModels(ModelRoutes):
    """Every route is there, and none answers."""

    def __contains__(self, route: str) -> bool:
        return True

    async def ask(self, route: str, messages: Any, **options: Any) -> NoReturn:
        raise AssertionError("a replay asks no model")


def replay_check(
    agent: Any,
    recorded_run: Mapping[str, Any] | str,
    *,
    types: Iterable[type] = (),
    tools: ToolHub | None = None,
    context: Any = None,
    ledger: Ledger | None = None,
) -> ReplayReport:
    """Replay an exported run against today's code; no model and no tool is called.

    Reported: a step that the recording lacks and that is asked before its end; a recorded
    step that is not asked for; another tool or other arguments (both sides shown); nodes
    in another order; another output; an effect outside of a step, which every replay would
    repeat: a connection (it is refused, and its line named) or a line of the `ledger`; a
    write whose tool takes no key any more. A changed prompt is a warning, as it is at run
    time.

    Args:
        agent: a graph, an async function `(ctx, input)`, or what `durable.graph` returned.
        recorded_run: what `export_run` returned, or the text of it.
        tools: today's; for code that reads the hub itself, and to compare their effects with
            those at the time of the export.
        ledger: what the code's own effects are written to (`Ledger.act`).

    Raises:
        BadInput: it is no exported run, or one of graph mode, whose state is in LangGraph's
            checkpoints and not in the journal.
    """
    known = _agent(agent, context)
    kinds = Types([Refused, *types])
    for attribute in ("state_schema", "input_schema", "output_schema"):
        schema = getattr(getattr(known.graph, "builder", None), attribute, None)
        if schema is not None:
            kinds.discover(schema)
    recording = _Recording.read(recorded_run, kinds)
    mode: Mode = recording.run.mode
    if mode != "steps":
        raise BadInput(
            f"run {recording.run.id} is of graph mode: what it did is in LangGraph's checkpoints, "
            "so there are no steps to replay"
        )
    before = 0 if ledger is None else len(ledger.lines())
    with offline() as reached:
        report = asyncio.run(_replay(known, recording, kinds, tools or ToolHub()))
    acted = [] if ledger is None else ledger.lines()[before:]
    outside = [
        *(Divergence("", "a replay has no effects", str(one)) for one in reached),
        *(
            Divergence("", "a replay has no effects", f"{line.what!r} took effect: {line.place}")
            for line in acted
        ),
        *_keyless(recording, tools),
    ]
    return replace(report, divergences=(*outside, *report.divergences))


def _keyless(recording: _Recording, tools: ToolHub | None) -> Iterator[Divergence]:
    """Writes that were made under a key, and would be made without one after a crash today."""
    today = {} if tools is None else {spec.full_name: spec.effect for spec in tools.specs()}
    for key, step in recording.steps.items():
        before, now = recording.effects.get(step.name), today.get(step.name)
        if before is not None and now is Effect.READ and before != now.value:
            yield Divergence(
                key, f"{step.name} as {before!r}",
                "the tool is declared 'read': after a crash it is called again without a key",
            )  # fmt: skip


def _agent(agent: Any, context: Any) -> Agent:
    if isinstance(agent, Agent):
        return agent
    if asyncio.iscoroutinefunction(agent):
        return agents.of_function(NAME, agent, version="1")
    return agents.of_graph(NAME, agent, mode="steps", version="1", context=context)


async def _replay(
    agent: Agent, recording: _Recording, types: Types, tools: ToolHub
) -> ReplayReport:
    notes: list[str] = []
    replay = _Replay(recording)
    services = Services(
        models=_NoModels({}),
        tools=tools,
        types=types,
        clock=FakeClock(recording.run.created_at + _ALL_TIMERS_OVER),
        chance=SeededChance(),
        retry=Retry(attempts=1),
        note=lambda type_, data: notes.append(f"{type_} {dict(data)}"),
    )
    run = replace(recording.run, agent=agent.name)
    ctx = RunContext(run, Lease(run.id, 1, "replay"), replay, services)
    replay.ctx = ctx
    outcome = await drive(agent, ctx, Passage(list(recording.questions)))
    return ReplayReport(
        run_id=run.id,
        agent=recording.run.agent,
        replayed=ctx.state.replayed.steps,
        divergences=tuple(_divergences(replay, outcome, types)),
        warnings=tuple(notes),
    )


def _divergences(replay: _Replay, outcome: Outcome, types: Types) -> Iterator[Divergence]:
    recording = replay.recording
    # a run that was cancelled ended before its code did
    has_ended = recording.run.status.is_final and recording.run.status is not Status.CANCELLED
    if isinstance(outcome, Broke | Retried):
        yield from _error(recording, outcome)
    if has_ended:
        for key, place in replay.missing.items():
            yield Divergence(key, "no such step", f"asked in {place}")
    for key, step in recording.steps.items():
        if key.startswith(COMPENSATE):  # made by the runtime, when the code had ended
            continue
        if is_settled_patch(step):  # its test may go
            continue
        if step.state is StepState.RECORDED and key not in replay.asked:
            yield Divergence(key, f"{step.kind} {step.name} in {step.place}", "never asked")
    yield from _order(replay)
    yield from _questions(recording, outcome)
    if recording.run.status is Status.SUCCEEDED and isinstance(outcome, Done):
        yield from _output(recording, outcome.output, types)


def _error(recording: _Recording, outcome: Broke | Retried) -> Iterator[Divergence]:
    """An error that the recorded run did not end with."""
    error, before = outcome.error, recording.run.error or {}
    if before.get("type") == error.get("type"):
        return
    failed = [step.key for step in recording.steps.values() if step.state is StepState.FAILED]
    if error.get("type") == ToolError.__name__ and failed:
        return  # the failed try of the recording, which the code did not survive then either
    where = (error.get("where") or ["?"])[-1]
    yield Divergence(
        _key_in(error), before.get("type") or "no error",
        f"{error.get('type')}: {error.get('message')} ({where})",
    )  # fmt: skip


def _key_in(error: Mapping[str, Any]) -> str:
    said = str(error.get("message"))
    return said.split("'")[1] if said.startswith("step '") else ""


def _superstep(place: str) -> int | None:
    number = place.partition("/")[0].partition("@")[2].partition("s")[0]
    return int(number) if number.isdigit() else None


def _order(replay: _Replay) -> Iterator[Divergence]:
    """Nodes that run in another order; another number alone, or another name, is none."""
    places = [
        (before, today, key)
        for key, step in replay.recording.steps.items()
        if key in replay.asked
        and (before := _superstep(step.place)) is not None
        and (today := _superstep(replay.asked[key])) is not None
    ]
    latest: tuple[int, int, str] | None = None
    for place in sorted(places):
        if latest is not None and place[0] > latest[0] and place[1] < latest[1]:
            first, then = latest[2], place[2]
            yield Divergence(
                then,
                f"in {replay.recording.steps[then].place}, after {first!r}",
                f"in {replay.asked[then]}, before {first!r}",
            )
            return
        if latest is None or place[1] > latest[1]:
            latest = place


def _questions(recording: _Recording, outcome: Outcome) -> Iterator[Divergence]:
    if not isinstance(outcome, Asked):
        return
    put = {(q.key, q.digest) for q in recording.questions}
    keys = {q.key for q in recording.questions}
    for question in outcome.questions:
        if (question.key, question.digest) not in put and (
            recording.run.status.is_final or question.key in keys
        ):
            before = "with another payload" if question.key in keys else "no such question"
            yield Divergence(question.key, before, f"asks {readable(question.payload)}")


def _output(recording: _Recording, output: str, types: Types) -> Iterator[Divergence]:
    before, today = (plain(decode(text, types=types)) for text in (recording.output, output))
    if before != today:
        yield Divergence("", f"the output {readable(before)}", f"the output {readable(today)}")
