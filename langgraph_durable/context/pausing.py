"""Wait without a worker: for a time, or for an event that somebody outside signals.

A wait for an event is one step. While it waits its row says so, and keeps when the time is
over; then either the signal that it takes or the end of its time is recorded, once, and every
replay sees the same. The signal is taken by the commit of that record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from langgraph_durable.context.calls import Call, begin_alone, check_same, perform, replay
from langgraph_durable.context.revealing import record
from langgraph_durable.errors import BadInput, Parked, WaitTimedOut
from langgraph_durable.runs import Signal, Step, StepState, check_name
from langgraph_durable.values import decode, encode

if TYPE_CHECKING:
    from langgraph_durable.context import RunContext
    from langgraph_durable.context.places import Here

MAX_SECONDS = 100 * 366 * 86_400.0


def check_seconds(key: str, what: str, seconds: float) -> None:
    """Refuse a time that no timer can be set to.

    Raises:
        BadInput: it is no number, negative, not finite, or longer than a century.
    """
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not math.isfinite(seconds) or not 0 <= seconds <= MAX_SECONDS:
        raise BadInput(
            f"step {key!r}: {what} is a number of seconds from 0 to {MAX_SECONDS:.0f}, "
            f"not {seconds!r}"
        )


def _refuse_unwinding(ctx: RunContext, key: str) -> None:
    """Refuse to pause a run that is unwound: it takes no signals, and only people hold it up.

    Raises:
        BadInput: a compensation's tool wants to wait; a person is asked what is to be done.
    """
    if ctx.state.unwinding:
        raise BadInput(
            f"step {key!r}: a compensation can't sleep or wait for an event. Let its tool raise an "
            "error that is tried again, or ask a person."
        )


async def sleep(ctx: RunContext, key: str, seconds: float) -> None:
    """See `RunContext.sleep`."""
    _refuse_unwinding(ctx, key)
    check_seconds(key, "the time to sleep", seconds)
    clock = ctx.services.clock

    async def end() -> datetime:
        return clock.now() + timedelta(seconds=seconds)

    until: datetime = await perform(ctx, Call(key=key, kind="sleep", make=end))
    remaining = (until - clock.now()).total_seconds()
    if remaining > 0:
        ctx.state.wake_in(remaining)
        raise ctx.state.end(ctx.here(), Parked(f"the run sleeps until {until.isoformat()}"))


async def wait_for(ctx: RunContext, key: str, event: str, timeout_seconds: float | None) -> Any:
    """See `RunContext.wait_for`."""
    _refuse_unwinding(ctx, key)
    check_name(f"the event that step {key!r} waits for", event)
    if timeout_seconds is not None:
        check_seconds(key, "timeout_seconds", timeout_seconds)
    at = await begin_alone(ctx, key)
    known = ctx.journal.recorded(key)
    if known is not None:
        check_same(ctx, Call(key=key, kind="wait", name=event, make=_no_call), known, at)
        if known.state is StepState.RECORDED:
            return replay(ctx, known)["payload"]
        if known.state is not StepState.WAITING or known.name != event:
            known = None  # an operator had the run try again, or it waits for something else now
    return await ctx.state.fly(_wait(ctx, key, event, timeout_seconds, known, at), key)


async def _wait(
    ctx: RunContext, key: str, event: str, seconds: float | None, known: Step | None, at: Here
) -> Any:
    step = Step(
        key=key, kind="wait", name=event, request=event, place=at.path, state=StepState.WAITING
    )
    types, now = ctx.services.types, ctx.services.clock.now()
    until = _end(ctx, known) if known is not None else None
    if known is None and seconds is not None:
        until = now + timedelta(seconds=seconds)
    signal = await _next(ctx, event)
    if signal is not None:
        told = {"signal": signal.id, "payload": signal.payload}
        text = encode(told, types=types, where=f"step {key!r}")
        taken = replace(step, state=StepState.RECORDED, value=text, takes=signal.number)
        # what was recorded, so that the first time and every replay see the same
        return decode((await record(ctx, taken)).value or "null", types=types)["payload"]
    if until is not None and until <= now:
        over = WaitTimedOut(key, event)
        await record(ctx, replace(step, state=StepState.RECORDED, error=str(over)))
        raise over
    if known is None:
        text = encode(until, types=types, where=f"step {key!r}")
        await record(ctx, replace(step, value=text))
    if until is not None:
        ctx.state.wake_in((until - now).total_seconds())
    ctx.state.awaited.add(event)
    raise ctx.state.end(ctx.here(), Parked(f"step {key!r} waits for the event {event!r}"))


def _end(ctx: RunContext, known: Step) -> datetime | None:
    until: datetime | None = decode(known.value or "null", types=ctx.services.types)
    return until


async def _next(ctx: RunContext, event: str) -> Signal | None:
    """Return the oldest signal of an event that nobody took; two branches never get the same."""
    sent: Sequence[Signal] = await ctx.journal.signals(event, len(ctx.state.taken) + 1)
    for signal in sent:  # no await from here on
        if signal.number not in ctx.state.taken:
            ctx.state.taken.add(signal.number)
            return signal
    return None


def _no_call() -> None:
    """A wait calls nothing."""
