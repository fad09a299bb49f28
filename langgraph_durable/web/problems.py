"""Errors become problem details (RFC 9457); nothing of the inside leaves.

The route class does it, so that it also holds in an application of someone else that the
router is included in.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Message, Receive

from langgraph_durable.errors import (
    AlreadyDecided,
    BadInput,
    BadKey,
    Conflict,
    DurableError,
    Forbidden,
    IllegalMove,
    NotFound,
    NotWaiting,
    StoreError,
    TooLarge,
    UnknownAgent,
)
from langgraph_durable.values import strict_json
from langgraph_durable.web.plain import text

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1_100_000  # an input of 1,000,000 bytes and what is around it
MEDIA_TYPE = "application/problem+json"


class Invalid(BaseModel):
    """One thing that is wrong with a request."""

    where: str = Field(description="A JSON pointer, after `body`, `query`, `path` or `header`.")
    message: str


class Problem(BaseModel):
    """What went wrong (RFC 9457). Programs branch on `type` or `status`."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:langgraph-durable:not-found"])
    title: str
    status: int
    detail: str
    state: str | None = Field(
        default=None, description="409: the state that refuses, of the run or question."
    )
    errors: list[Invalid] | None = Field(default=None, description="422: each thing that is wrong.")


_TITLES: Mapping[int, tuple[str, str]] = {
    400: ("bad-request", "The request can't be carried out"),
    401: ("unauthorized", "No live API key"),
    403: ("forbidden", "The key's role doesn't allow this"),
    404: ("not-found", "Not found"),
    405: ("method-not-allowed", "This address doesn't take that method"),
    409: ("conflict", "The state refuses it"),
    413: ("too-large", "The request is too large"),
    422: ("invalid", "The request doesn't have the right shape"),
    500: ("internal", "Something broke at the server"),
    503: ("unavailable", "The database can't be used now"),
}

# the first class that fits
_STATUS: Sequence[tuple[type[DurableError], int]] = (
    (UnknownAgent, 400),
    (TooLarge, 413),
    (BadInput, 422),
    (BadKey, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (Conflict, 409),
    (StoreError, 503),
)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of a route's problems."""
    said: dict[int | str, dict[str, Any]] = {
        status: {
            "description": _TITLES[status][1],
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted({*statuses, 401, 422, 500, 503})
    }
    said[500]["model"] = Problem  # names the schema; FastAPI documents models as plain JSON only
    return said


def answer(status: int, detail: str, **more: Any) -> JSONResponse:
    """Build the response of a problem."""
    name, title = _TITLES.get(status, ("error", "The request was refused"))
    body = {
        "type": f"urn:langgraph-durable:{name}",
        "title": title,
        "status": status,
        "detail": text(detail),
        **more,
    }
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(body, status, headers, media_type=MEDIA_TYPE)


def answer_to(error: Exception, request: Request) -> Response:
    """Turn any error into a problem; an unknown one is logged and says nothing of the inside."""
    if isinstance(error, RequestValidationError):
        invalid = [_invalid(one) for one in error.errors()]
        return answer(422, "; ".join(f"{e['where']}: {e['message']}" for e in invalid)[:1000],
                      errors=invalid)  # fmt: skip
    if isinstance(error, StarletteHTTPException):
        return answer(error.status_code, str(error.detail))
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    if status >= 500:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        said = "Try again later." if status == 503 else "The error is in the server's log."
        return answer(status, said)
    return answer(status, str(error), **_more(error))


def _more(error: Exception) -> dict[str, Any]:
    if isinstance(error, NotWaiting):
        return {"state": error.state}
    if isinstance(error, AlreadyDecided):
        return {"state": "decided", "decided": error.decided, "decided_by": text(error.by)}
    if isinstance(error, IllegalMove):
        return {"state": error.status}
    return {}


def _invalid(error: Mapping[str, Any]) -> dict[str, str]:
    where = "/".join(str(part) for part in error.get("loc", ()))
    return {"where": text(where)[:200], "message": text(str(error.get("msg", "")))[:300]}


# --- the route class -------------------------------------------------------------------


class BodyTooLarge(HTTPException):
    """More bytes came than a body may have."""

    def __init__(self) -> None:
        super().__init__(413, f"a request body has at most {MAX_BODY_BYTES:,} bytes")


class _StrictRequest(Request):
    """A request whose JSON is JSON: Python's reader would also take NaN and Infinity."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            return strict_json(body)
        except json.JSONDecodeError:
            raise
        except RecursionError:
            raise HTTPException(422, "the body is nested too deep") from None
        except ValueError as error:
            raise HTTPException(422, f"the body can't be read as JSON: {error}") from None


def _limited(request: Request) -> Receive:
    """Count what is read; a Content-Length may be absent, or lie."""
    receive, read = request.receive, 0

    async def counted() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > MAX_BODY_BYTES:
            raise BodyTooLarge
        return message

    return counted


def _declares_too_much(request: Request) -> bool:
    declared = request.headers.get("content-length", "").lstrip("0")
    if not (declared.isascii() and declared.isdigit()):
        return False
    return len(declared) > len(str(MAX_BODY_BYTES)) or int(declared) > MAX_BODY_BYTES


class GuardedRoute(APIRoute):
    """A route with a limit on bodies and strict JSON, whose errors are all answered."""

    def answer_to(self, error: Exception, request: Request) -> Response:
        """Return what an error looks like outside."""
        raise NotImplementedError

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler, dependencies and validation included."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                if _declares_too_much(request):
                    raise BodyTooLarge
                return await handle(_StrictRequest(request.scope, _limited(request)))
            except Exception as error:
                return self.answer_to(error, request)

        return handled


class ProblemRoute(GuardedRoute):
    """A route of the API: its errors are problem details."""

    def answer_to(self, error: Exception, request: Request) -> Response:
        """Return the problem details of an error."""
        return answer_to(error, request)
