"""Unwind a run that failed or was cancelled: its compensations run, the last step's first.

Each is a step under a key of its own, so that a worker that dies half-way is followed by one
that goes on where it stopped. What can't be undone, or may not have been done, is a person's
to say; the run waits for that like for any question, and then goes on unwinding.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from langgraph_durable.context import RunContext
from langgraph_durable.context.calls import begin
from langgraph_durable.context.compensating import Undoing, read
from langgraph_durable.context.questioning import put
from langgraph_durable.context.revealing import record
from langgraph_durable.context.tooling import call_tool
from langgraph_durable.errors import DurableError, LeaseLost, PassEnded, StepConflict
from langgraph_durable.modes import failure, is_incurable, not_ours
from langgraph_durable.modes.ending import hiding
from langgraph_durable.runs import (
    COMPENSATE,
    HAPPENED,
    Asked,
    Choice,
    Decision,
    Drained,
    Outcome,
    Question,
    QuestionState,
    Refused,
    Retried,
    Status,
    Step,
    StepState,
    Unwound,
)
from langgraph_durable.tools import digest
from langgraph_durable.values import decode, encode, fingerprint, message_of, readable

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


async def unwind(ctx: RunContext) -> Outcome:
    """Run the compensations that are left; returns what is to be settled.

    Raises:
        PassEnded: the lease is lost; there is nothing to settle.
    """
    token = ctx.enter()
    error: BaseException | None = None
    try:
        await _undo_all(ctx)
    except (Exception, SystemExit) as raised:
        error = raised
    except asyncio.CancelledError as raised:
        error = not_ours(raised)
    finally:
        ctx.state.closed = True
        ctx.leave(token)
    await ctx.state.land()
    outcome = _outcome(ctx, error)
    return hiding(outcome, ctx) if ctx.state.secrets else outcome


def _outcome(ctx: RunContext, error: BaseException | None) -> Outcome:
    state = ctx.state
    if state.lost is not None:
        raise state.lost
    if isinstance(error, LeaseLost | StepConflict):
        raise error
    if state.asked:
        return Asked(tuple(state.asked.values()))
    if error is None:
        is_failed = ctx.run.unwinding is Status.FAILED
        return Unwound(_review(ctx) if is_failed else None)
    if isinstance(error, PassEnded):
        return Drained()
    return Retried(failure(error), progressed=getattr(ctx.journal, "progressed", False))


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Return the steps that have a compensation, the one recorded last first.

    Times are compared within a claim only: on SQLite each worker has a clock of its own.
    """
    return sorted(
        (step for step in steps if step.compensation is not None),
        key=lambda step: (step.epoch, step.recorded_at or _LONG_AGO, step.seq),
        reverse=True,
    )


async def _undo_all(ctx: RunContext) -> None:
    is_worn = ctx.run.attempts >= ctx.run.max_attempts  # its workers died, or its time ran out
    for step in in_order(ctx.journal.steps()):
        done = ctx.journal.recorded(COMPENSATE + step.key)
        if done is None or done.state is not StepState.RECORDED:
            await _Undo(ctx, step, read(ctx, step.compensation or "")).see_through(is_worn=is_worn)
            is_worn = False


@dataclass(frozen=True, slots=True)
class _Undo:
    """One step that is to be undone, and is not yet."""

    ctx: RunContext
    step: Step
    wanted: Undoing

    @property
    def key(self) -> str:
        return COMPENSATE + self.step.key

    async def see_through(self, *, is_worn: bool) -> None:
        """Make the compensating call and record it; or ask a person, or record their no."""
        arguments = self.wanted["arguments"]
        if self.step.state is not StepState.RECORDED or arguments is None:
            said = await self._ask_what_happened()
            if said.choice == "reject":
                return await self._skip(said)
            arguments = dict(said.arguments) if said.arguments is not None else arguments
        failed = self._asked_about_failures()
        last = failed[-1].decision if failed else None
        if last is not None and last.choice != "approve":
            return await self._skip(last)
        known = self.ctx.journal.recorded(self.key)
        if is_worn:
            said_last = known.error if known is not None else None
            self._ask_about_failure(
                arguments, said_last or "its worker died, or took too long", len(failed)
            )
        try:
            await call_tool(self.ctx, self.key, self.wanted["tool"], arguments or {})
        except PassEnded:
            raise
        except Exception as error:
            if is_incurable(error):
                said_now = f"{type(error).__name__}: {message_of(error)}"
                self._ask_about_failure(arguments, said_now, len(failed))
            raise

    async def _ask_what_happened(self) -> Decision:
        """Ask about a call whose outcome is unknown, or whose undoing nobody knows how to call."""
        happened = self.step.state is StepState.RECORDED
        arguments = self.wanted["arguments"]
        what = (
            "This step is done and has to be undone, but its compensation's arguments could not "
            "be made out."
            if happened
            else "The run ended while this call was being made: it may have happened or not."
        )
        with_shown = "" if arguments is None else "approve: it happened, undo it as shown; "
        no = "leave it as it is" if happened else "it did not happen, there is nothing to undo"
        payload = {
            "question": f"{what} {with_shown}edit: undo it with these arguments; reject: {no}.",
            "step": self.step.key,
            "call": {"name": self.step.name, "request": self.step.request},
            "compensation": dict(self.wanted),
        }
        choices: tuple[Choice, ...] = ("approve", "edit", "reject")
        question = self._question(
            HAPPENED, payload, choices[1:] if arguments is None else choices, await self._schema()
        )
        answer = self.ctx.journal.answer(question.key, question.digest)
        if answer is None or answer.decision is None:
            put(self.ctx, question)
        return answer.decision

    async def _schema(self) -> Mapping[str, Any] | None:
        """Return what the compensation takes, so that nobody edits it into one that fails."""
        with contextlib.suppress(DurableError):
            return (await self.ctx.services.tools.find(self.wanted["tool"])).schema
        return None

    def _asked_about_failures(self) -> list[Question]:
        return [
            question
            for question in self.ctx.journal.questions()
            if question.kind == "compensation"
            and question.key.startswith(f"{self.key}?failed")
            and question.state is QuestionState.DECIDED
        ]

    def _ask_about_failure(
        self, arguments: Mapping[str, Any] | None, error: str, before: int
    ) -> NoReturn:
        payload = {
            "question": "This step has to be undone, and that failed. approve: try again; "
            "reject or respond: leave it as it is, and say why.",
            "step": self.step.key,
            "compensation": {"tool": self.wanted["tool"], "arguments": arguments},
            "error": error,
        }
        put(
            self.ctx,
            self._question(f"?failed{before + 1}", payload, ("approve", "reject", "respond")),
        )

    def _question(
        self,
        suffix: str,
        payload: Mapping[str, Any],
        allowed: tuple[Choice, ...],
        schema: Mapping[str, Any] | None = None,
    ) -> Question:
        types = self.ctx.services.types
        return Question(
            id="",
            key=self.key + suffix,
            kind="compensation",
            tool=self.wanted["tool"],
            payload=payload,
            digest=fingerprint(payload, types=types, where=f"question {self.key + suffix!r}"),
            allowed=allowed,
            schema=schema,
        )

    async def _skip(self, said: Decision) -> None:
        """Record that a person left the step as it is: the compensation's answer is their no."""
        at = begin(self.ctx, self.key)
        reason = said.reason or ("" if said.value is None else readable(said.value))
        refused = Refused(reason, said.by)
        types = self.ctx.services.types
        arguments = self.wanted["arguments"] or {}
        known = self.ctx.journal.recorded(self.key)
        await record(
            self.ctx,
            Step(
                key=self.key,
                kind="tool",
                name=self.wanted["tool"],
                fingerprint=digest(arguments),
                request=self.ctx.services.redaction.readable(arguments),
                value=encode(refused, types=types, where=f"step {self.key!r}"),
                place=at.path,
                attempts=known.attempts if known is not None else 0,
            ),
        )


def _review(ctx: RunContext) -> Question:
    """Return the question that stays in the inbox when a failed run has been unwound."""
    steps = ctx.journal.steps()
    undone: list[Mapping[str, Any]] = []
    left: list[Mapping[str, Any]] = []
    for step in in_order(steps):
        done = ctx.journal.recorded(COMPENSATE + step.key)
        value = decode((done.value if done else None) or "null", types=ctx.services.types)
        if isinstance(value, Refused):
            left.append({"step": step.key, "reason": value.reason, "by": value.by})
        else:
            undone.append({"step": step.key, "by": COMPENSATE + step.key})
    payload = {
        "question": "This run failed, and what it had done was undone as far as it could be. Look "
        "whether all is well. approve or respond: seen; the run has ended and stays so.",
        "error": dict(ctx.run.error or {}),
        "compensated": undone,
        "not_compensated": left,
        "unknown": _unknown(steps),
    }
    return Question(
        id=str(ctx.services.chance.uuid()),
        key="review",
        kind="review",
        payload=payload,
        digest=fingerprint(payload, types=ctx.services.types, where="question 'review'"),
        allowed=("approve", "respond"),
    )


def _unknown(steps: Sequence[Step]) -> list[str]:
    """Return the calls without a compensation of which nobody knows whether they happened."""
    return [s.key for s in steps if s.state is StepState.INTENT and s.compensation is None]
