"""Run an agent once over a claimed run, and say how the pass ended.

The outcome is decided by the marks of the pass and by what the graph says, in one place
and in one order: a lost lease, a cancel, an error that no attempt cures, questions, a
timer, an error worth another attempt, a drain, the end.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph_durable.agents import Agent
from langgraph_durable.checkpoint import Savers
from langgraph_durable.context import RunContext
from langgraph_durable.errors import (
    BadInput,
    CodeChanged,
    DuplicateKey,
    DurableError,
    LeaseLost,
    NonDeterminismError,
    OverBudget,
    PassEnded,
    QuestionExpired,
    QuestionSwallowed,
    SecretMissing,
    StepConflict,
    ToolDenied,
    ToolError,
    WaitTimedOut,
)
from langgraph_durable.modes import graph as graph_mode
from langgraph_durable.modes import steps as steps_mode
from langgraph_durable.modes.ending import Ending, hiding
from langgraph_durable.modes.interrupts import is_answered, untaken_answer
from langgraph_durable.runs import (
    Asked,
    Broke,
    Cancelled,
    Done,
    Drained,
    Outcome,
    Question,
    QuestionState,
    Retried,
    Slept,
    Step,
    StepState,
    is_settled_patch,
)
from langgraph_durable.values import message_of, readable

__all__ = ["Ending", "Passage", "drive", "failure", "is_incurable", "not_ours"]

MAX_SHOWN_KEYS = 20

#: Errors that no further attempt of the same code can cure; they burn no attempts.
INCURABLE = (
    BadInput,
    CodeChanged,
    DuplicateKey,
    NonDeterminismError,
    OverBudget,
    QuestionExpired,
    QuestionSwallowed,
    SecretMissing,
    ToolDenied,
    WaitTimedOut,
)


@dataclass(slots=True)
class Passage:
    """What a pass needs beside its context: the past questions, and the checkpoints."""

    questions: list[Question] = field(default_factory=list)
    savers: Savers | None = None


async def drive(agent: Agent, ctx: RunContext, passage: Passage) -> Outcome:
    """Run the agent until it ends, waits or fails; returns what is to be settled.

    Raises:
        PassEnded: the lease is lost; there is nothing to settle.
    """
    token = ctx.enter()
    ending: Ending | None = None
    error: BaseException | None = None
    try:
        ending = await _run(agent, ctx, passage)
    except (Exception, SystemExit) as raised:  # sys.exit() ends the run, not the worker
        error = raised
    except asyncio.CancelledError as raised:
        error = not_ours(raised)
    finally:
        ctx.state.closed = True
        ctx.leave(token)
    await ctx.state.land()
    outcome = _outcome(ctx, ending, error, passage.questions, is_graph=agent.graph is not None)
    return hiding(outcome, ctx) if ctx.state.secrets else outcome


def not_ours(cancelled: asyncio.CancelledError) -> DurableError:
    """Return the error of code that awaited what was cancelled, when nobody cancelled us.

    Raises:
        CancelledError: we are cancelled.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise cancelled
    error = DurableError("the agent's code awaited a task of its own that was cancelled")
    error.__cause__ = cancelled
    return error.with_traceback(cancelled.__traceback__)


async def _run(agent: Agent, ctx: RunContext, passage: Passage) -> Ending:
    if agent.function is not None:
        ctx.state.places.counts_graphs = True
        return Ending(value=await agent.function(ctx, ctx.run.input))
    if agent.mode == "graph":
        if passage.savers is None:
            raise BadInput(f"agent {agent.name!r}: graph mode needs a store with checkpoints")
        return await graph_mode.run(agent, ctx, passage.questions, passage.savers)
    return await steps_mode.run(agent, ctx, passage.questions)


def _outcome(
    ctx: RunContext,
    ending: Ending | None,
    error: BaseException | None,
    past: Sequence[Question],
    *,
    is_graph: bool,
) -> Outcome:
    state = ctx.state
    if state.lost is not None:
        raise state.lost
    if isinstance(error, LeaseLost | StepConflict):
        raise error  # a fenced checkpoint noticed it first
    if state.cancelling:
        return Cancelled()
    worst = state.broken or error
    if worst is not None and is_incurable(worst):
        return Broke(failure(worst))
    # A sibling that failed does not hide a question: the question is put, and the failed
    # node runs again, its recorded steps answered, when the run comes back.
    asked = (*state.asked.values(), *(ending.asked if ending else ()))
    awaited = tuple(sorted(state.awaited))
    if asked:
        return _asks(ctx, past, Asked(asked, state.sleep_seconds, awaited))
    if state.is_parked:
        return Slept(state.sleep_seconds, awaited)
    if error is not None and not isinstance(error, PassEnded):
        return Retried(failure(error), progressed=getattr(ctx.journal, "progressed", False))
    if state.draining or ending is None or ending.drained:
        return Drained()
    untaken = next(_untaken(ctx, past), None)
    if untaken is not None:
        return Broke(failure(untaken_answer(ctx.agent, untaken)))
    _note_unasked(ctx, is_graph=is_graph)
    return Done(ending.text(ctx))


def is_incurable(error: BaseException) -> bool:
    """Whether no further attempt of the same code can cure an error."""
    answered = isinstance(error, ToolError) and not error.outcome_unknown
    return answered or isinstance(error, INCURABLE)


def _asks(ctx: RunContext, past: Sequence[Question], outcome: Asked) -> Outcome:
    """Park on questions, unless one was answered under another key."""
    for question in outcome.questions:
        moved = _asked_before(ctx, past, question)
        if moved is not None:
            return Broke(failure(moved))
    return replace(outcome, questions=_as_put_before(outcome.questions, past))


def _as_put_before(asked: Sequence[Question], past: Sequence[Question]) -> tuple[Question, ...]:
    """Let a question that was open when the pass began keep its id.

    A timer or a signal woke the run while somebody thought about it: whatever they have said
    meanwhile, it is not put twice.
    """
    open_ = {(q.key, q.digest): q.id for q in past if q.state is QuestionState.OPEN}
    return tuple(replace(q, id=open_.get((q.key, q.digest), q.id)) for q in asked)


def _note_unasked(ctx: RunContext, *, is_graph: bool) -> None:
    """Warn of a graph that journaled nothing, and of steps that this pass did not ask for.

    Earlier passes recorded them, and this one took another way to its end: by the clock, by
    chance, by what is outside of a step. It is no proof: a call that failed then and not now
    leads another way as well. So it is an event, and the run's end stands.
    """
    if ctx.run.mode != "steps":
        return
    recorded: Sequence[Step] = getattr(ctx.journal, "steps", tuple)()
    if is_graph and not ctx.state.has_used_any:
        why = "no node made a durable step: after a crash all of them would run again"
        ctx.services.note("nothing_journaled", {"agent": ctx.agent, "message": why})
    keys = [
        step.key
        for step in recorded
        if step.state is StepState.RECORDED
        and step.epoch < ctx.epoch
        and not is_settled_patch(step)
        and not ctx.state.has_used(step.key)
    ]
    if keys:
        ctx.services.note("steps_not_replayed", {"keys": keys[:MAX_SHOWN_KEYS], "count": len(keys)})


def _untaken(ctx: RunContext, past: Sequence[Question]) -> Iterator[Question]:
    """Yield the questions whose answers no step took: the code that asked is gone (H-07)."""
    for question in past:
        if question.kind in ("ask", "tool") and is_answered(question):
            step = ctx.journal.recorded(question.key)
            if step is None or step.state is StepState.ASKING:
                yield question


def _asked_before(
    ctx: RunContext, past: Sequence[Question], question: Question
) -> CodeChanged | None:
    """Return an error if this was answered under another key: a deploy renamed the step.

    Put to people again, it would hold the run up also when the code is rolled back, which
    would never take that second answer.
    """
    for before in _untaken(ctx, past):
        same = (before.kind, before.tool, before.digest)
        if before.key != question.key and same == (question.kind, question.tool, question.digest):
            return CodeChanged(
                ctx.agent,
                f"key {before.key!r}",
                f"its question was answered, and today's code asks the same as {question.key!r}.",
            )
    return None


def failure(error: BaseException, reason: str = "") -> Mapping[str, Any]:
    """Return an error as it is stored with a run: type, sentence, reason, and where it arose."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames][-5:]
    return {
        "type": type(error).__name__,
        "reason": reason or _reason(error),
        "message": (message_of(error) or type(error).__name__)[:4000],
        "where": own,
        "key": readable(getattr(error, "key", "")),
    }


def _reason(error: BaseException) -> str:
    if isinstance(error, OverBudget):
        return error.reason
    name = type(error).__name__
    return (
        "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
        .lstrip("_")
        .removesuffix("_error")
    )
