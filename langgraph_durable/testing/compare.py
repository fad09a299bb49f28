"""Compare a run that crashed with the calm one: nothing twice, nothing lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from langgraph_durable.errors import DuplicateKey, NonDeterminismError, QuestionSwallowed
from langgraph_durable.runs import (
    HAPPENED,
    NEXT,
    UNWINDING,
    Effect,
    Event,
    Question,
    Status,
    Step,
    StepState,
)
from langgraph_durable.testing.passes import OUTCOME, Aftermath
from langgraph_durable.testing.plain import plain
from langgraph_durable.values import readable

_MISTAKES = tuple(kind.__name__ for kind in (NonDeterminismError, DuplicateKey, QuestionSwallowed))
_GIVEN = ("now", "uuid", "random")
_STATUS_OF = {
    "run_submitted": Status.QUEUED,
    "run_claimed": Status.RUNNING,
    "run_taken_over": Status.RUNNING,
    "run_parked": Status.WAITING_HUMAN,
    "run_resumed": Status.QUEUED,
    "run_slept": Status.SLEEPING,
    "run_requeued": Status.QUEUED,
    "run_handed_back": Status.QUEUED,
    "run_retried": Status.QUEUED,
    "run_compensating": Status.QUEUED,
    **{f"run_{status.value}": status for status in Status},
}


def differences(calm: Aftermath, after: Aftermath) -> list[str]:
    """Return what is wrong with a run that crashed; empty if nothing is."""
    return [
        *(f"the planned crash {point} never happened" for point in after.unreached),
        *after.trouble,
        *_other_end(calm, after),
        *_doubled(calm, after),
        *_keys(after),
        *_questions(calm, after),
        *_signals(calm, after),
        *_lost(after),
        *_other_steps(calm, after),
        *_not_asked_again(after),
        *_moves(after.events),
        *_epochs(after),
    ]


def faults(calm: Aftermath) -> list[str]:
    """Return what is wrong with the calm run by itself; empty if nothing is.

    A run that fails is fine, unless it fails by a mistake in how the code uses steps.
    """
    error = calm.run.error or {}
    said = []
    if error.get("type") in _MISTAKES:
        said.append(f"{error['type']}: {error['message']}")
    own = (
        *_keys(calm),
        *_lost(calm),
        *_not_asked_again(calm),
        *_moves(calm.events),
        *_epochs(calm),
    )
    return [*said, *own]


# --- the end -----------------------------------------------------------------------------


def _other_end(calm: Aftermath, after: Aftermath) -> Iterator[str]:
    if calm.run.status is not after.run.status:
        error = after.run.error or {}
        why = f": {error.get('type')}: {error.get('message')}" if error else ""
        yield f"the run {after.run.status.value}{why} (calm: {calm.run.status.value})"
        return
    ours, theirs = _plain(after.run.output, after), _plain(calm.run.output, calm)
    if ours != theirs:
        yield f"another output: {readable(ours)} (calm: {readable(theirs)})"


# --- effects -----------------------------------------------------------------------------


def _doubled(calm: Aftermath, after: Aftermath) -> Iterator[str]:
    """Effects as the outside world shows them: what is there twice, and what is missing."""
    ours, theirs = (Counter(_effect(shown, s) for shown in s.shown) for s in (after, calm))
    for effect, count in ours.items():
        if count > theirs[effect]:
            yield f"{effect} took effect {count} times (calm: {theirs[effect]})"
    for effect, count in theirs.items():
        if effect not in ours or ours[effect] < count:
            yield f"{effect} took effect {ours[effect]} times (calm: {count})"


def _effect(shown: Any, seen: Aftermath) -> str:
    named = _plain(shown, seen)
    if isinstance(named, dict) and set(named) == {"effect", "arguments", "from"}:
        return f"{named['effect']!r} {readable(named['arguments'])} from {named['from']}"
    return readable(named)


def _keys(after: Aftermath) -> Iterator[str]:
    """Calls of the hub: a key always for the same call, and `once` once."""
    by_key = defaultdict(list)
    for call in after.calls:
        by_key[call.key].append(call)
    for key, calls in by_key.items():
        first = calls[0]
        if first.effect == Effect.READ.value:
            continue
        if len({(c.tool, c.arguments, c.idempotency_key) for c in calls}) > 1:
            yield f"step {key!r}: {first.tool!r} was called again with another key or arguments"
        happened = sum(call.result is not None for call in calls)
        if first.effect == Effect.ONCE.value and happened > 1:
            yield f"step {key!r}: {first.tool!r} can't be repeated, and was called {happened} times"


# --- questions ---------------------------------------------------------------------------


def _questions(calm: Aftermath, after: Aftermath) -> Iterator[str]:
    asked = Counter((q.key, q.digest) for q in after.questions)
    for (key, _), count in asked.items():
        if count > 1:
            yield f"question {key!r} was asked {count} times"
    ours, theirs = ({q.key for q in s.questions if not _is_about_a_death(q)} for s in (after, calm))
    yield from (f"question {key!r} was never asked" for key in sorted(theirs - ours))
    yield from (f"question {key!r} is asked only after a crash" for key in sorted(ours - theirs))
    decided = Counter(e.data["key"] for e in after.events if e.type == "question_decided")
    for key, count in decided.items():
        if count > sum(q.key == key for q in after.questions):
            yield f"question {key!r} was decided {count} times"


def _is_about_a_death(question: Question) -> bool:
    return question.kind == "outcome" or question.key.endswith(HAPPENED)


# --- signals -----------------------------------------------------------------------------


def _signals(calm: Aftermath, after: Aftermath) -> Iterator[str]:
    """Each signal is kept once, and the same step takes it."""
    ours, theirs = ({s.id: s.taken_by for s in seen.signals} for seen in (after, calm))
    if len(after.signals) > len(ours):
        yield "a signal was kept twice"
    for id_ in sorted(ours.keys() | theirs.keys()):
        if id_ not in ours:
            yield f"signal {id_!r} was lost or never needed"
        elif ours[id_] != theirs.get(id_):
            yield f"signal {id_!r} went to {ours[id_] or 'nobody'} (calm: {theirs.get(id_)})"


# --- steps -------------------------------------------------------------------------------


def _lost(after: Aftermath) -> Iterator[str]:
    """What was recorded when a life ended must be there at the end, as it was."""
    now = {step.key: step for step in after.steps}
    for key in sorted(after.acknowledged):
        if key not in now or now[key].state is not StepState.RECORDED:
            yield f"the record of step {key!r} was reported as committed, and is not there"
    for kept in after.kept:
        for key, step in kept.items():
            if key not in now:
                yield f"step {key!r} was recorded, and is lost"
            elif _answer(now[key]) != _answer(step):
                yield f"step {key!r} was recorded, and was changed"


def _answer(step: Step) -> tuple[Any, ...]:
    return (step.state, step.value, step.fingerprint, step.name, step.seq, step.epoch)


def _other_steps(calm: Aftermath, after: Aftermath) -> Iterator[str]:
    ours, theirs = _shapes(after), _shapes(calm)
    for key in theirs.keys() - ours.keys():
        yield f"step {key!r} is missing (calm: {_said(theirs[key])})"
    for key in ours.keys() - theirs.keys():
        yield (
            f"step {key!r} is not in the calm run: the code took another way after the crash. "
            "Does it branch on the clock, on chance or on what is outside of a step?"
        )
    for key in ours.keys() & theirs.keys():
        if ours[key] != theirs[key]:
            yield f"step {key!r} is {_said(ours[key])} (calm: {_said(theirs[key])})"


def _shapes(seen: Aftermath) -> dict[str, tuple[Any, ...]]:
    return {
        s.key: (s.kind, s.name, s.state.value, _value(s, seen))
        for s in seen.steps
        if OUTCOME not in s.key
    }


def _value(step: Step, seen: Aftermath) -> Any:
    if step.kind in (*_GIVEN, "sleep") or step.state is not StepState.RECORDED:
        return None
    return _plain(seen.values[step.key], seen)


def _said(shape: tuple[Any, ...]) -> str:
    kind, name, state, value = shape
    return f"{state} {kind} {name} {readable(value, 100)}".replace("  ", " ")


def _not_asked_again(after: Aftermath) -> Iterator[str]:
    for event in after.events:
        if event.type == "steps_not_replayed":
            yield (
                f"steps {', '.join(map(repr, event.data['keys']))} were recorded, and a later "
                "pass ended without asking for them"
            )


# --- status and epochs -------------------------------------------------------------------


def _moves(events: Iterable[Event]) -> Iterator[str]:
    before: Status | None = None
    table = NEXT
    for event in events:
        status = _STATUS_OF.get(event.type)
        if status is None:
            continue
        if event.type == "run_compensating":  # from any status that is not an end
            table, before = UNWINDING, status
            continue
        if event.data.get("unwinding") == Status.CANCELLED.value:
            status = Status.CANCELLING
        if before is None and status is not Status.QUEUED:
            yield f"the run began as {status.value}"
        if before is not None and status not in table[before] and not _stays(before, event):
            yield f"the run went from {before.value} to {status.value} ({event.type})"
        before = before if _stays(before, event) else status


def _stays(before: Status | None, event: Event) -> bool:
    """A run that is being cancelled stays so when another worker takes it over."""
    return before is Status.CANCELLING and event.type == "run_taken_over"


def _epochs(after: Aftermath) -> Iterator[str]:
    epochs = [
        event.data["epoch"]
        for event in after.events
        if event.type in ("run_claimed", "run_taken_over")
    ]
    if epochs != list(range(1, len(epochs) + 1)):
        yield f"epochs do not grow by one with each claim: {epochs}"
    for step in after.steps:
        if not 1 <= step.epoch <= after.run.epoch:
            yield f"step {step.key!r} was written under epoch {step.epoch}, which never was"


def _plain(value: Any, seen: Aftermath) -> Any:
    """Return a value as plain data, with names for what is new in every run."""
    given: dict[Any, str] = {seen.run.id: "<run id>"}
    for step in seen.steps:
        if step.kind in _GIVEN and step.key in seen.values:
            given[seen.values[step.key]] = f"<{step.kind} {step.key}>"
    return plain(value, given)
