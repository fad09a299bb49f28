"""A run's events as they happen (SSE), and waiting for a run's end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from langgraph_durable.errors import BadInput, DurableError
from langgraph_durable.runs import Event, Run, Status
from langgraph_durable.web.answers import EventOut
from langgraph_durable.web.auth import Caller
from langgraph_durable.web.watch import Watch

log = logging.getLogger(__name__)

LOOK_ANYWAY_SECONDS = 5.0
PING_SECONDS = 15
RETRY_MILLISECONDS = 2_000
_MAX_ID = 2**63 - 1


def last_seen(header: str | None) -> int:
    """Return the event id that a client saw last; 0 is the start.

    Raises:
        BadInput: it is no id.
    """
    if header is None or header == "":
        return 0
    if not (header.isascii() and header.isdigit() and len(header) <= 19 and int(header) <= _MAX_ID):
        raise BadInput("Last-Event-ID is the id of an event of this stream, a whole number")
    return int(header)


def rejoin(caller: Caller, run_id: str, after: int) -> tuple[Run, bool]:
    """Return the run, and whether its stream has nothing more to say.

    Raises:
        NotFound: the caller knows no such run.
        BadInput: `after` is no event of this run. Going on from an id from nowhere could
            leave out what happened.
    """
    run = caller.run(run_id)
    events = caller.events(run, max(after - 1, 0))
    if after and (not events or events[0].id != after):
        raise BadInput("Last-Event-ID names no event of this run; leave it out to start afresh")
    return run, bool(after) and run.status.is_final and len(events) == 1


async def stream(watch: Watch, caller: Caller, run_id: str, after: int) -> Response:
    """Answer with the events of a run from `after` on, to its end.

    204 when it has ended and the client has seen all: a browser then stops to reconnect.
    """
    _, is_over = await asyncio.to_thread(rejoin, caller, run_id, after)
    if is_over:
        return Response(status_code=204)
    return EventSourceResponse(
        _events(watch, caller, run_id, after),
        ping=PING_SECONDS,
        headers={"Cache-Control": "no-store"},
    )


async def _events(
    watch: Watch, caller: Caller, run_id: str, after: int
) -> AsyncIterator[ServerSentEvent]:
    loop = asyncio.get_running_loop()
    checked_at = loop.time()
    yield ServerSentEvent(comment="events of the run follow", retry=RETRY_MILLISECONDS)
    while True:
        ticket = watch.ticket()
        try:
            if loop.time() - checked_at > LOOK_ANYWAY_SECONDS:
                await asyncio.to_thread(caller.durable.keys.find, caller.key.id)
                checked_at = loop.time()
            status, events = await asyncio.to_thread(_read, caller, run_id, after)
        except DurableError as error:  # the key was revoked, or the database is away: come again
            log.info("a stream of run %s ends: %s", run_id, error)
            return
        for event in events:
            after = event.id
            yield ServerSentEvent(_data(event), event=event.type, id=str(event.id))
        if status.is_final:
            yield ServerSentEvent(json.dumps({"status": status.value}), event="end")
            return
        await watch.change(ticket, LOOK_ANYWAY_SECONDS)


def _read(caller: Caller, run_id: str, after: int) -> tuple[Status, Sequence[Event]]:
    # the status first: when it is final, every event that led to it can be read after it
    run = caller.run(run_id)
    return run.status, caller.events(run, after)


def _data(event: Event) -> str:
    return EventOut.of(event).model_dump_json()


async def wait(watch: Watch, caller: Caller, run_id: str, timeout_seconds: float) -> Run:
    """Return the run when it has ended or waits for a person, or as it is at the timeout."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_seconds
    while True:
        ticket = watch.ticket()
        run = await asyncio.to_thread(caller.run, run_id)
        left = until - loop.time()
        if run.status.is_final or run.status is Status.WAITING_HUMAN or left <= 0:
            return run
        await watch.change(ticket, min(left, LOOK_ANYWAY_SECONDS))


def outcome(run: Run) -> Any:
    """Say in a word whether to wait on."""
    if run.status.is_final:
        return "ended"
    return "waiting_for_person" if run.status is Status.WAITING_HUMAN else "still_running"
