"""Sessions of people: opened by an API key, kept in a signed cookie, ended with the key.

The cookie holds the key's public id and a token against forged forms. On every request the
key is looked up again, so that a revoked key ends its sessions at once.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Form, Header, HTTPException, Request, Response
from itsdangerous import BadData, URLSafeTimedSerializer

from langgraph_durable.app import Durable
from langgraph_durable.errors import BadKey
from langgraph_durable.keys import ApiKey
from langgraph_durable.web.auth import Caller
from langgraph_durable.web.page.texts import choose

COOKIE = "langgraph_durable_session"
LANGUAGE_COOKIE = "langgraph_durable_language"
MAX_AGE_SECONDS = 12 * 3600


class LoggedOut(Exception):
    """There is no session: the visitor is sent to the login."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks at the page."""

    caller: Caller
    token: str
    language: str


def language_of(request: Request) -> str:
    """Return the language to answer in."""
    return choose(request.cookies.get(LANGUAGE_COOKIE), request.headers.get("accept-language"))


def _signer(durable: Durable) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(durable.keys.derive("page sessions"), salt="langgraph_durable")


def open_session(durable: Durable, key: ApiKey, request: Request, response: Response) -> None:
    """Let a browser in."""
    value = _signer(durable).dumps({"key": key.id, "token": secrets.token_urlsafe(24)})
    set_cookie(request, response, COOKIE, value, MAX_AGE_SECONDS)


def set_cookie(request: Request, response: Response, name: str, value: str, max_age: int) -> None:
    """Set a cookie that no script reads and no other site sends."""
    response.set_cookie(
        name, value, max_age=max_age, path="/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip


def visitor(request: Request) -> Visitor:
    """Return who looks.

    Raises:
        LoggedOut: no session, or its key is no longer live.
    """
    durable: Durable = request.state.langgraph_durable
    try:
        kept = _signer(durable).loads(request.cookies.get(COOKIE, ""), max_age=MAX_AGE_SECONDS)
        key = durable.keys.find(kept["key"])
    except (BadData, BadKey) as error:
        raise LoggedOut from error
    return Visitor(Caller(durable, key), kept["token"], language_of(request))


Visiting = Annotated[Visitor, Depends(visitor)]


def same_site(sec_fetch_site: Annotated[str | None, Header()] = None) -> None:
    """Refuse a form that another site sends; browsers say so themselves."""
    if sec_fetch_site not in (None, "same-origin", "none"):
        raise HTTPException(403, "this form was sent by another site")


def sender(
    visitor: Visiting,
    _: Annotated[None, Depends(same_site)],
    token: Annotated[str, Form(max_length=200)] = "",
) -> Visitor:
    """Return who sends a form of ours.

    Raises:
        HTTPException: the form doesn't carry the session's token.
    """
    if not hmac.compare_digest(token.encode(), visitor.token.encode()):
        raise HTTPException(403, "this form is not of this session; load the page again")
    return visitor


Sending = Annotated[Visitor, Depends(sender)]
