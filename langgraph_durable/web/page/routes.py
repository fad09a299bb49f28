"""The routes of the page: server-rendered; scripts only keep what is shown fresh."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException as StarletteHTTPException

from langgraph_durable.errors import BadInput, BadKey, Conflict, DurableError, Forbidden, NotFound
from langgraph_durable.keys import OPERATOR
from langgraph_durable.runs import Choice, Decision, Question, Status
from langgraph_durable.values import strict_json
from langgraph_durable.web.auth import Caller
from langgraph_durable.web.page import render
from langgraph_durable.web.page.session import (
    COOKIE,
    LANGUAGE_COOKIE,
    LoggedOut,
    Sending,
    Visiting,
    Visitor,
    language_of,
    open_session,
    same_site,
    set_cookie,
)
from langgraph_durable.web.page.texts import LANGUAGES, say
from langgraph_durable.web.page.views import card, ruling, timeline
from langgraph_durable.web.problems import GuardedRoute
from langgraph_durable.web.streams import PING_SECONDS

log = logging.getLogger(__name__)

PAGE_SIZE = 50
LOOK_ANYWAY_SECONDS = 10.0
AT_MOST_EVERY_SECONDS = 0.5
YEAR_SECONDS = 365 * 86_400


class PageRoute(GuardedRoute):
    """A route of the page: its errors are pages, or lines for the script."""

    def answer_to(self, error: Exception, request: Request) -> Response:
        """Return the page of an error; nothing of the inside is on it."""
        wants_part = render.wants_part(request)
        if isinstance(error, LoggedOut):
            if wants_part:
                return render.secured(Response(status_code=401))
            return render.secured(RedirectResponse("/login", 303))
        status, said = _status(error, language_of(request))
        if status >= 500:
            log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        if wants_part:
            return render.secured(Response(said, status, media_type="text/plain; charset=utf-8"))
        return render.page(request, "error.html", status=status, said=said)


def _status(error: Exception, language: str) -> tuple[int, str]:
    if isinstance(error, StarletteHTTPException):
        return error.status_code, str(error.detail)
    if isinstance(error, RequestValidationError):
        return 422, say(language, "problem")
    for kind, status in ((NotFound, 404), (Forbidden, 403), (Conflict, 409), (BadInput, 422)):
        if isinstance(error, kind):
            return status, say(language, "not_found") if status == 404 else str(error)
    return 500, say(language, "problem")


routes = APIRouter(route_class=PageRoute, include_in_schema=False)


# --- coming and going ------------------------------------------------------------------


@routes.get("/login")
def show_login(request: Request) -> HTMLResponse:
    """Show the login."""
    return render.page(request, "login.html", problem="")


@routes.post("/login", dependencies=[Depends(same_site)])
def log_in(request: Request, secret: Annotated[str, Form(max_length=300)] = "") -> Response:
    """Open a session by an API key."""
    durable = request.state.langgraph_durable
    try:
        key = durable.keys.verify(secret.strip())
    except BadKey:
        problem = say(language_of(request), "login_failed")
        return render.page(request, "login.html", status=401, problem=problem)
    response = RedirectResponse("/", 303)
    open_session(durable, key, request, response)
    return render.secured(response)


@routes.post("/logout")
def log_out(_: Sending) -> Response:
    """End the session."""
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/")
    return render.secured(response)


@routes.get("/language")
def set_language(request: Request, to: str, back: str = "/") -> Response:
    """Keep the visitor's choice of a language."""
    # a path of ours: "//host" and "/\host" lead elsewhere
    safe = back if back.startswith("/") and back[1:2] not in ("/", "\\") else "/"
    response = RedirectResponse(safe, 303)
    if to in LANGUAGES:
        set_cookie(request, response, LANGUAGE_COOKIE, to, YEAR_SECONDS)
    return render.secured(response)


# --- looking ---------------------------------------------------------------------------


@routes.get("/")
def inbox(request: Request, visitor: Visiting, cursor: str | None = None) -> HTMLResponse:
    """Show the questions that wait, oldest first."""
    caller = visitor.caller
    after = None if cursor is None else caller.question(cursor)
    found = _open_questions(caller, after, PAGE_SIZE + 1)
    return render.page(
        request,
        "inbox.html",
        visitor,
        cards=[card(question, visitor) for question in found[:PAGE_SIZE]],
        more=found[PAGE_SIZE - 1].id if len(found) > PAGE_SIZE else None,
        cursor=cursor,
    )


def _open_questions(caller: Caller, after: Question | None, limit: int) -> list[Question]:
    return caller.durable.questions(
        tenant=caller.tenant, agents=caller.key.agents, after=after, limit=limit
    )


@routes.get("/questions/{question_id}")
def one_question(request: Request, visitor: Visiting, question_id: str) -> HTMLResponse:
    """Show one question, open or not."""
    shown = card(visitor.caller.question(question_id), visitor)
    return render.page(request, "question.html", visitor, card=shown)


@routes.get("/runs")
def list_runs(
    request: Request,
    visitor: Visiting,
    status: Annotated[Status | None, Query()] = None,
    agent: Annotated[str, Query(max_length=200)] = "",
    cursor: str | None = None,
) -> HTMLResponse:
    """Show the runs, newest first."""
    caller = visitor.caller
    found = caller.durable.runs(
        tenant=caller.tenant,
        status=status,
        agent=agent or None,
        agents=caller.key.agents,
        before=None if cursor is None else caller.run(cursor),
        limit=PAGE_SIZE + 1,
    )
    return render.page(
        request,
        "runs.html",
        visitor,
        runs=found[:PAGE_SIZE],
        costs={run.id: caller.durable.cost(run) for run in found},
        more=found[PAGE_SIZE - 1].id if len(found) > PAGE_SIZE else None,
        cursor=cursor,
        statuses=list(Status),
        status_wanted=status,
        agent_wanted=agent,
    )


@routes.get("/runs/{run_id}")
def one_run(request: Request, visitor: Visiting, run_id: str) -> HTMLResponse:
    """Show a run: what it asks, and its timeline."""
    caller = visitor.caller
    run = caller.run(run_id)
    cards = [card(question, visitor) for question in run.questions]
    steps = caller.steps(run)
    return render.page(
        request,
        "run.html",
        visitor,
        run=run,
        cost=caller.durable.cost(run),
        cards=cards,
        approvable=[one for one in cards if "approve" in one.choices],
        timeline=timeline(steps, caller.events(run), caller.durable.undone(steps)),
        is_operator=OPERATOR in caller.key.roles,
    )


@routes.get("/rules")
def list_rules(request: Request, visitor: Visiting) -> HTMLResponse:
    """Show the rules that decisions carried: those in force first, the newest on top."""
    caller = visitor.caller
    newest = sorted(caller.rules(), key=lambda rule: (rule.is_live, rule.made_at), reverse=True)
    rulings = [ruling(rule, caller) for rule in newest]
    return render.page(request, "rules.html", visitor, rulings=rulings)


# --- acting ----------------------------------------------------------------------------


@routes.post("/questions/{question_id}")
def decide(
    request: Request,
    visitor: Sending,
    question_id: str,
    choice: Annotated[Choice, Form()],
    reason: Annotated[str, Form(max_length=2_000)] = "",
    arguments: Annotated[str, Form()] = "",
    value: Annotated[str, Form()] = "",
    as_json: Annotated[bool, Form()] = False,
) -> Response:
    """Decide a question; what doesn't fit is shown beside it, and it stays open."""
    caller = visitor.caller
    question = caller.question(question_id)
    status = 200
    try:
        decision = Decision(
            choice,
            caller.name,
            reason,
            arguments=_arguments(arguments) if choice == "edit" else None,
            value=_value(value, as_json) if choice == "respond" else None,
        )
        caller.durable.decide(question.id, decision, tenant=caller.tenant, roles=caller.key.roles)
        shown = card(caller.question(question.id), visitor)
    except (BadInput, Conflict) as error:
        status = 409 if isinstance(error, Conflict) else 422
        draft = arguments if choice == "edit" else ""
        shown = card(caller.question(question.id), visitor, problem=str(error), draft=draft)
    if status == 200 and not render.wants_part(request):
        return render.secured(RedirectResponse("/", 303))
    return render.page(request, "question.html", visitor, status=status, card=shown)


@routes.post("/questions/{question_id}/delegate")
def delegate(
    request: Request,
    visitor: Sending,
    question_id: str,
    kind: Annotated[Literal["role", "person"], Form()],
    to: Annotated[str, Form(max_length=200)],
) -> Response:
    """Hand a question to another role, or to a person."""
    caller = visitor.caller
    question = caller.question(question_id)
    status, problem = 200, ""
    try:
        caller.durable.delegate(
            question.id,
            by=caller.name,
            role=to.strip() if kind == "role" else None,
            person=to.strip() if kind == "person" else None,
            tenant=caller.tenant,
            roles=caller.key.roles,
        )
    except (BadInput, Conflict) as error:
        status, problem = (409 if isinstance(error, Conflict) else 422), str(error)
    if status == 200 and not render.wants_part(request):
        return render.secured(RedirectResponse("/", 303))
    shown = card(caller.question(question.id), visitor, problem=problem)
    return render.page(request, "question.html", visitor, status=status, card=shown)


@routes.post("/rules/{rule_id}/revoke")
def revoke_rule(visitor: Sending, rule_id: str) -> Response:
    """End a rule that a decision carried."""
    visitor.caller.revoke(visitor.caller.rule(rule_id))
    return render.secured(RedirectResponse("/rules", 303))


def _arguments(typed: str) -> dict[str, Any]:
    found = _json(typed)
    if not isinstance(found, dict):
        raise BadInput("the arguments must be a JSON object")
    return found


def _value(typed: str, as_json: bool) -> Any:
    return _json(typed) if as_json else typed


def _json(typed: str) -> Any:
    try:
        return strict_json(typed)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"this can't be read as JSON: {error}") from error


@routes.post("/runs/{run_id}/approve")
def approve_shown(
    visitor: Sending, run_id: str, question: Annotated[list[str], Form(max_length=100)]
) -> Response:
    """Approve the questions of a run that the visitor was shown, all of them or none."""
    caller = visitor.caller
    run = caller.run(run_id)
    decisions = dict.fromkeys(question, Decision.approve(caller.name))
    caller.durable.decide_all(run.id, decisions, tenant=caller.tenant, roles=caller.key.roles)
    return render.secured(RedirectResponse(f"/runs/{run.id}", 303))


@routes.post("/runs/{run_id}/cancel")
def cancel_run(visitor: Sending, run_id: str) -> Response:
    """Cancel a run."""
    caller = visitor.caller
    run = caller.run(run_id)
    caller.need(OPERATOR, "cancelling a run")
    caller.durable.cancel(run.id, by=caller.name, tenant=caller.tenant)
    return render.secured(RedirectResponse(f"/runs/{run.id}", 303))


@routes.post("/runs/{run_id}/retry")
def retry_run(visitor: Sending, run_id: str) -> Response:
    """Queue a failed run again."""
    caller = visitor.caller
    run = caller.run(run_id)
    caller.need(OPERATOR, "retrying a run")
    caller.durable.retry(run.id, by=caller.name, tenant=caller.tenant)
    return render.secured(RedirectResponse(f"/runs/{run.id}", 303))


# --- keeping fresh ---------------------------------------------------------------------


@routes.get("/live")
async def live(
    request: Request, visitor: Visiting, run_id: Annotated[str | None, Query()] = None
) -> Response:
    """Say `changed` whenever what this visitor sees has changed; the script then asks for it."""
    if run_id is not None:
        await asyncio.to_thread(visitor.caller.run, run_id)
    return render.secured(
        EventSourceResponse(_changes(request, visitor, run_id), ping=PING_SECONDS)
    )


async def _changes(
    request: Request, visitor: Visitor, run_id: str | None
) -> AsyncIterator[ServerSentEvent]:
    watch = request.state.langgraph_watch
    seen: Any = None
    yield ServerSentEvent("", event="hello", retry=2_000)
    while True:
        ticket = watch.ticket()
        try:
            await asyncio.to_thread(visitor.caller.durable.keys.find, visitor.caller.key.id)
            now = await asyncio.to_thread(_sight, visitor.caller, run_id)
        except DurableError as error:
            log.info("a page's stream ends: %s", error)
            return
        if seen is not None and now != seen:
            yield ServerSentEvent("", event="changed")
        seen = now
        await asyncio.sleep(AT_MOST_EVERY_SECONDS)
        await watch.change(ticket, LOOK_ANYWAY_SECONDS)


def _sight(caller: Caller, run_id: str | None) -> Any:
    """Return what decides whether a visitor's view has changed."""
    if run_id is not None:
        run = caller.run(run_id)
        events = caller.events(run)
        return run.status, events[-1].id if events else 0, len(caller.steps(run))
    runs = caller.durable.runs(tenant=caller.tenant, agents=caller.key.agents, limit=PAGE_SIZE)
    asked = _open_questions(caller, None, PAGE_SIZE + 1)
    return [(run.id, run.status, run.usage) for run in runs], [one.id for one in asked]
