"""Routes of runs: submit, list, read, follow, wait, cancel, retry, approve."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request, Response
from pydantic import Discriminator, Tag

from langgraph_durable.errors import UnknownAgent
from langgraph_durable.keys import AGENT, OPERATOR
from langgraph_durable.runs import Decision, Run
from langgraph_durable.web import streams
from langgraph_durable.web.answers import (
    ApprovedOut,
    Listed,
    QuestionOut,
    RunDetail,
    RunOut,
    SignalOut,
    StatusOut,
    WaitOut,
)
from langgraph_durable.web.auth import Caller, Known
from langgraph_durable.web.bodies import (
    ApproveBody,
    ConfirmBody,
    RunsQuery,
    SignalBody,
    SubmitBody,
    WaitQuery,
)
from langgraph_durable.web.problems import ProblemRoute, responses

routes = APIRouter(prefix="/runs", tags=["runs"], route_class=ProblemRoute)


def _kind_of_body(body: Any) -> str:
    type_ = body.get("type") if isinstance(body, dict) else getattr(body, "type", None)
    return "submit" if type_ is None else "confirm"


Submitted = Annotated[
    Annotated[SubmitBody, Tag("submit")] | Annotated[ConfirmBody, Tag("confirm")],
    Discriminator(_kind_of_body),
    Body(),
]


@routes.post(
    "",
    status_code=201,
    responses={
        **responses(400, 403, 404, 409, 413),
        200: {
            "model": RunDetail,
            "description": "The Idempotency-Key had made this run already, or a confirmation was taken.",
        },
    },
)
def submit(
    caller: Known,
    body: Submitted,
    response: Response,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> RunDetail:
    """Submit a run.

    With an `Idempotency-Key` a repeat answers 200 with the first run. AgentScope's
    `USER_CONFIRM_RESULT` is taken here as well, as one more message to the run it names.
    """
    if isinstance(body, ConfirmBody):
        response.status_code = 200
        return _confirm(caller, body)
    caller.need(AGENT, "submitting a run")
    if not caller.sees(body.agent):
        raise UnknownAgent(body.agent, sorted(caller.key.agents or ()))
    run, is_new = caller.durable.submit_or_find(
        body.agent,
        body.input,
        tenant=caller.tenant,
        idempotency_key=idempotency_key,
        priority=body.priority,
        thread=body.thread,
        max_attempts=body.max_attempts,
        version=body.version,
        by=caller.name,
    )
    if not is_new:
        response.status_code = 200
    response.headers["Location"] = f"runs/{run.id}"
    return _detail(caller, run)


@routes.get("", responses=responses(404))
def list_runs(caller: Known, query: Annotated[RunsQuery, Query()]) -> Listed[RunOut]:
    """List the tenant's runs, newest first."""
    before = None if query.cursor is None else caller.run(query.cursor)
    found = caller.durable.runs(
        tenant=caller.tenant,
        status=query.status,
        agent=query.agent,
        agents=caller.key.agents,
        thread=query.thread,
        before=before,
        limit=query.limit + 1,
    )
    shown = found[: query.limit]
    more = shown[-1].id if len(found) > len(shown) else None
    return Listed[RunOut](items=[_shown(caller, run) for run in shown], next=more)


@routes.get("/{run_id}", responses=responses(404))
def read_run(caller: Known, run_id: str) -> RunDetail:
    """Read a run with its steps and its open questions."""
    return _detail(caller, caller.run(run_id))


_SSE = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "id": {"type": "string", "description": "Send it back as Last-Event-ID."},
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}


@routes.get(
    "/{run_id}/events",
    response_class=Response,
    responses={
        **responses(404),
        200: {
            "description": "Each event has an `id`, its type as `event`, and EventOut as `data`. "
            "The last one is `end`; then the stream closes.",
            "content": {"text/event-stream": {"schema": _SSE}},
        },
        204: {"description": "The run has ended and Last-Event-ID was its last event."},
    },
)
async def follow_run(
    request: Request,
    caller: Known,
    run_id: str,
    last_event_id: Annotated[
        str | None, Header(description="Go on behind this event, after a broken connection.")
    ] = None,
) -> Response:
    """Follow a run: its events so far and as they happen, until it ends."""
    after = streams.last_seen(last_event_id)
    return await streams.stream(request.state.langgraph_watch, caller, run_id, after)


@routes.get("/{run_id}/wait", responses=responses(404))
async def wait_for_run(
    request: Request, caller: Known, run_id: str, query: Annotated[WaitQuery, Query()]
) -> WaitOut:
    """Wait until a run has ended or waits for a person, at most for the timeout."""
    watch = request.state.langgraph_watch
    run = await streams.wait(watch, caller, run_id, query.timeout_seconds)
    shown = await asyncio.to_thread(_detail, caller, run)
    return WaitOut(outcome=streams.outcome(run), run=shown)


@routes.post("/{run_id}/signals", responses=responses(403, 404, 409, 413))
def signal_run(caller: Known, run_id: str, body: SignalBody) -> SignalOut:
    """Signal an event to a run, which takes it when it waits for it, now or later."""
    run = caller.run(run_id)
    caller.need(AGENT, "signalling an event to a run")
    sent = caller.durable.send(
        run.id, body.event, body.payload, tenant=caller.tenant, id=body.id, by=caller.name
    )
    return SignalOut.of(sent, caller.durable.redaction)


@routes.get("/{run_id}/signals", responses=responses(404))
def list_signals(caller: Known, run_id: str) -> Listed[SignalOut]:
    """List the signals of a run in the order of arrival, and which step took each."""
    run = caller.run(run_id)
    found = caller.durable.signals(run.id, caller.tenant)
    redaction = caller.durable.redaction
    shown = [SignalOut.of(signal, redaction) for signal in found]
    return Listed[SignalOut](items=shown, next=None)


@routes.post("/{run_id}/cancel", responses=responses(403, 404, 409))
def cancel_run(caller: Known, run_id: str) -> StatusOut:
    """Cancel a run: `cancelling` while a call that can't be interrupted ends."""
    run = caller.run(run_id)
    caller.need(OPERATOR, "cancelling a run")
    status = caller.durable.cancel(run.id, by=caller.name, tenant=caller.tenant)
    return StatusOut(id=run.id, status=status)


@routes.post("/{run_id}/retry", responses=responses(403, 404, 409))
def retry_run(caller: Known, run_id: str) -> RunOut:
    """Queue a failed run again: its journal and decisions are kept."""
    run = caller.run(run_id)
    caller.need(OPERATOR, "retrying a run")
    return _shown(caller, caller.durable.retry(run.id, by=caller.name, tenant=caller.tenant))


@routes.post("/{run_id}/approve", responses=responses(403, 404, 409, 413))
def approve_run(
    caller: Known, run_id: str, body: Annotated[ApproveBody | None, Body()] = None
) -> ApprovedOut:
    """Approve all open questions of a run, or those that are named: all of them or none."""
    run, given = caller.run(run_id), body or ApproveBody()
    decision = Decision.approve(caller.name, given.reason)
    named = None if given.questions is None else dict.fromkeys(given.questions, decision)
    decided = caller.durable.decide_all(
        run.id, named or decision, tenant=caller.tenant, roles=caller.key.roles
    )
    return ApprovedOut(
        run=_shown(caller, caller.run(run.id)),
        approved_steps=[question.key for question in decided],
        questions=[QuestionOut.of(question) for question in decided],
    )


def _detail(caller: Caller, run: Run) -> RunDetail:
    steps, durable = caller.steps(run), caller.durable
    return RunDetail.whole(run, steps, durable.undone(steps), durable.cost(run))


def _shown(caller: Caller, run: Run) -> RunOut:
    return RunOut.of(run, caller.durable.cost(run))


# --- AgentScope's confirmation ---------------------------------------------------------


def _confirm(caller: Caller, body: ConfirmBody) -> RunDetail:
    run = caller.run(body.reply_id)
    caller.durable.confirm(
        body.model_dump(), by=caller.name, tenant=caller.tenant, roles=caller.key.roles
    )
    return _detail(caller, caller.run(run.id))
