"""The pattern of every step: look up, call, record.

Think of a death on each line: before the call, nothing happened; after the call and before
the record, the call is made again under the same key (a write left an intent row, so the
repeat is visible); after the record, the journal answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

from langgraph.errors import GraphBubbleUp
from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt, wait_random_exponential

from langgraph_durable import calls
from langgraph_durable.context.allowances import check_allowances
from langgraph_durable.context.compensating import Undo, undo_of
from langgraph_durable.context.questioning import did_it_happen
from langgraph_durable.context.revealing import record
from langgraph_durable.errors import (
    BadInput,
    CodeChanged,
    DuplicateKey,
    LeaseLost,
    NonDeterminismError,
    SecretMissing,
    StepConflict,
    StepTimeout,
    StoreError,
    ToolDenied,
    ToolError,
    WaitTimedOut,
)
from langgraph_durable.runs import (
    COMPENSATE,
    Compensation,
    Effect,
    Emitted,
    Retry,
    Step,
    StepKind,
    StepState,
)
from langgraph_durable.tools import found
from langgraph_durable.values import clean_text, decode, encode, message_of

if TYPE_CHECKING:
    from langgraph_durable.context import RunContext
    from langgraph_durable.context.places import Here

MAX_KEY_CHARACTERS = 200
#: Errors that another try of the same call can't cure.
HOPELESS = (
    GraphBubbleUp,
    BadInput,
    NonDeterminismError,
    DuplicateKey,
    SecretMissing,
    ToolDenied,
)


@dataclass(slots=True)  # not frozen: that takes three times as long, at every step
class Call:
    """A step that is to be made, unless the journal has it."""

    key: str
    kind: StepKind
    make: Callable[[], Any]
    name: str = ""
    fingerprint: str = ""
    request: str = ""
    strict: bool = True  # another fingerprint on replay is an error, not a warning
    effect: Effect = Effect.READ
    tokens: Callable[[Any], tuple[int, int]] | None = None
    approval_id: str | None = None
    retry: Retry | None = None
    timeout_seconds: float | None = None
    emits: Callable[[Any], tuple[Emitted, ...]] | None = None
    probe: Callable[[], Any] | None = None  # looks whether an earlier try of ONCE happened
    compensate: Compensation | None = None
    asked: Any = None  # what the call is made with, for its compensation
    undo: Undo | None = None


async def perform(ctx: RunContext, call: Call) -> Any:
    """Answer a step from the journal, or make it and record it."""
    at = await begin_alone(ctx, call.key)
    known = ctx.journal.recorded(call.key)
    if known is not None:
        check_same(ctx, call, known, at)
        if known.state is StepState.RECORDED:
            return replay(ctx, known)
    return await ctx.state.fly(_see_through(ctx, call, known, at), call.key)


async def _see_through(ctx: RunContext, call: Call, known: Step | None, at: Here) -> Any:
    if call.kind == "llm":
        check_allowances(ctx, "llm")
    if call.compensate is not None:
        undo = await undo_of(ctx, call.key, call.compensate, call.effect, call.asked)
        call = replace(call, undo=undo)
    if is_unsure(known, call.effect):
        happened, value = await _outcome(ctx, call, known)
        if happened:
            call = _only_recorded(call, value)
    return await make_and_record(ctx, call, known, at)


async def _outcome(ctx: RunContext, call: Call, known: Step) -> tuple[bool, Any]:
    """Find out whether the earlier try happened: by looking, else by asking."""
    if call.probe is not None:
        return found(await calls.call(call.probe))
    return did_it_happen(ctx, known, {"call": call.name or call.key, "request": call.request})


def is_unsure(known: Step | None, effect: Effect) -> TypeGuard[Step]:
    """Whether an earlier try of a call that can't be repeated may have happened."""
    return effect is Effect.ONCE and known is not None and known.state is StepState.INTENT


def _only_recorded(call: Call, value: Any) -> Call:
    async def make() -> Any:
        return value

    return replace(call, make=make, effect=Effect.READ, approval_id=None)


async def begin_alone(ctx: RunContext, key: str) -> Here:
    """Begin when no earlier call under this key is in flight: it would be made twice at once."""
    at = begin(ctx, key)
    if ctx.state.is_in_flight(key):
        try:
            await ctx.state.landed(key)
        except asyncio.CancelledError:  # given up as well: the next try may have the key
            ctx.state.release(key)
            raise
    return at


def begin(ctx: RunContext, key: str) -> Here:
    """Check a key and take note of its use here."""
    if not ctx.state.unwinding:
        check_key(key)
    at = ctx.here()
    ctx.state.gate(at)
    ctx.state.use(key, at)
    return at


def check_key(key: str) -> None:
    """Refuse a key that people could not read.

    Raises:
        BadInput: it is empty, too long, not text or not printable.
    """
    if (
        not isinstance(key, str)
        or not key
        or len(key) > MAX_KEY_CHARACTERS
        or not key.isprintable()
    ):
        raise BadInput(
            f"step key {key!r} must be printable text of 1 to {MAX_KEY_CHARACTERS} characters"
        )
    if key.startswith(COMPENSATE):
        raise BadInput(
            f"step key {key!r}: keys that begin with {COMPENSATE!r} are those of the steps that "
            "undo others. Give this step another name."
        )


def check_same(ctx: RunContext, call: Call, known: Step, at: Here) -> None:
    """Refuse to answer a call with what another call recorded.

    In graph mode a node that was finished before is not run again, so a key that a later
    loop pass reuses would meet the earlier pass's answer: there the place is compared too.
    An `except` can't hide it (a ToolNode may tell it to the model as a failed call): the run
    ends by it.
    """
    try:
        _check_same(ctx, call, known, at)
    except (NonDeterminismError, DuplicateKey) as broken:
        ctx.state.broken = ctx.state.broken or broken
        raise


def _check_same(ctx: RunContext, call: Call, known: Step, at: Here) -> None:
    if known.state in (StepState.ASKING, StepState.WAITING):
        return  # nothing was called yet: another request is simply another question
    if ctx.run.mode == "graph" and known.place and known.place != at.path:
        raise DuplicateKey(call.key, known.place, at.path)
    same_call = (known.kind, known.name) == (call.kind, call.name) or call.kind in ("llm", "once")
    if known.kind != call.kind or not same_call:
        raise NonDeterminismError(
            call.key, _shown(known.kind, known.name), _shown(call.kind, call.name)
        )
    if known.fingerprint == call.fingerprint:
        return
    if call.strict:
        raise NonDeterminismError(
            call.key,
            f"{_shown(known.kind, known.name)} {known.request}",
            f"{_shown(call.kind, call.name)} {call.request}",
        )
    data = {"key": call.key, "recorded": known.request, "requested": call.request}
    ctx.services.note("request_changed", data)


def replay(ctx: RunContext, known: Step) -> Any:
    """Return a recorded answer."""
    ctx.state.answered(known.input_tokens + known.output_tokens)
    if known.value is None and known.error is not None:
        if known.kind == "wait":
            raise WaitTimedOut(known.key, known.name)
        raise ToolError(known.error, tool=known.name, key=known.key)
    try:
        return decode(known.value or "null", types=ctx.services.types)
    except StoreError as error:  # its class is not registered any more
        raise CodeChanged(ctx.agent, f"class for step {known.key!r}", f"{error}.") from error


def make_and_record(
    ctx: RunContext, call: Call, known: Step | None, at: Here
) -> Coroutine[Any, Any, Any]:
    """Make the call, by policy more than once, and record what came of it; to be awaited."""
    made = partial(
        Step,
        key=call.key,
        kind=call.kind,
        name=call.name,
        fingerprint=call.fingerprint,
        request=clean_text(call.request),
        place=at.path,
        approval_id=call.approval_id,
    )
    before = known.attempts if known is not None else 0
    retry = call.retry or ctx.services.retry
    if retry.attempts == 1:
        return _one_try(ctx, call, partial(made, attempts=before + 1), answers=True)
    return _tries(ctx, call, made, retry, before, at)


async def _tries(
    ctx: RunContext, call: Call, made: Callable[..., Step], retry: Retry, before: int, at: Here
) -> Any:
    """Make the call until it succeeds, or its policy ends."""
    trying = AsyncRetrying(
        stop=stop_after_attempt(retry.attempts),
        wait=wait_random_exponential(
            multiplier=retry.first_seconds, exp_base=retry.factor, max=retry.limit_seconds
        ),
        retry=lambda state: _is_worth_another(call, retry, state),
        sleep=ctx.services.sleep,
        reraise=True,
    )
    async for attempt in trying:
        with attempt:
            number = attempt.retry_state.attempt_number
            if number > 1:
                ctx.state.gate(at)  # between tries the lease may have gone
            answers = number >= retry.attempts or not _retries_answers(retry)
            this = partial(made, attempts=before + number)
            return await _one_try(ctx, call, this, answers=answers)
    raise AssertionError("unreachable: tenacity returns or raises")


async def _one_try(ctx: RunContext, call: Call, made: Callable[..., Step], *, answers: bool) -> Any:
    """Make the call once; `made` makes the step of this try, in the state that is given."""
    if call.effect.is_write:
        unknown = call.undo.unknown() if call.undo else None
        await record(ctx, made(state=StepState.INTENT, compensation=unknown))
    started = time.monotonic()
    try:
        value = await _called(call)
        text = encode(value, types=ctx.services.types, where=f"step {call.key!r}")
    except Exception as error:
        seconds = time.monotonic() - started
        # a compensation has no code behind it that could make something of a failure
        if answers and _is_answer(error) and not ctx.state.unwinding:
            said = clean_text(str(error))
            await record(ctx, made(state=StepState.RECORDED, error=said, seconds=seconds))
        elif not isinstance(error, GraphBubbleUp):
            await _record_failure(ctx, call, made, error, seconds)
        elif call.effect is Effect.ONCE and not isinstance(error, LeaseLost | StepConflict):
            # The tool itself asks or waits. By the rule of `interrupt()` it runs again from
            # its start, so its intent is withdrawn: nobody need say whether it happened.
            await record(ctx, made(state=StepState.ASKING))
        raise
    tokens = call.tokens(value) if call.tokens else (0, 0)
    step = await record(
        ctx,
        made(
            state=StepState.RECORDED,
            value=text,
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            seconds=time.monotonic() - started,
            emits=call.emits(value) if call.emits else (),
            compensation=_undo_of(ctx, call, text),
        ),
    )
    # what was recorded, so that the first time and every replay see the same
    return decode(step.value or "null", types=ctx.services.types)


def _undo_of(ctx: RunContext, call: Call, text: str) -> str | None:
    """Return the compensation of a call, which is made of the result as replays see it."""
    return call.undo.of(decode(text, types=ctx.services.types)) if call.undo else None


async def _called(call: Call) -> Any:
    if call.timeout_seconds is None:
        return await calls.call(call.make)
    limit = asyncio.timeout(call.timeout_seconds)
    try:
        async with limit:
            return await calls.call(call.make)
    except TimeoutError as error:
        if not limit.expired():
            raise  # the call's own
        raise StepTimeout(call.key, call.timeout_seconds) from error


async def _record_failure(
    ctx: RunContext, call: Call, made: Callable[..., Step], error: Exception, seconds: float
) -> None:
    """Journal a failed call as an attempt: never an answer.

    The intent of a `once` call stays, unless the tool itself says that it failed: the
    effect may have happened all the same, and must not be repeated blindly.
    """
    if _may_have_happened(call, error):
        return
    said = f"{type(error).__name__}: {message_of(error)}"[:2000]
    step = made(state=StepState.FAILED, error=said, seconds=seconds)
    if call.undo and not _never_was(call, step, error):
        step = replace(step, compensation=call.undo.unknown())
    await record(ctx, step)


def _never_was(call: Call, step: Step, error: Exception) -> bool:
    """Whether a failed write certainly had no effect, in this try or an earlier one."""
    is_first = step.attempts == 1 or call.effect is Effect.ONCE
    return is_first and not getattr(error, "outcome_unknown", True)


def _may_have_happened(call: Call, error: Exception) -> bool:
    unknown = getattr(error, "outcome_unknown", not isinstance(error, ToolError))
    return call.effect is Effect.ONCE and bool(unknown)


def _is_answer(error: Exception) -> bool:
    """Whether a tool meant its failure as an answer, which every replay must see again."""
    return isinstance(error, ToolError) and not error.outcome_unknown


def _retries_answers(retry: Retry) -> bool:
    """Whether a policy names ToolError itself: `Exception` does not mean answers."""
    return any(issubclass(kind, ToolError) for kind in retry.on)


def _is_worth_another(call: Call, retry: Retry, state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome is not None else None
    if error is None or isinstance(error, HOPELESS) or not isinstance(error, Exception):
        return False
    if _is_answer(error) and not _retries_answers(retry):
        return False
    return isinstance(error, retry.on) and not _may_have_happened(call, error)


def _shown(kind: str, name: str) -> str:
    return f"{kind} {name!r}" if name else kind
