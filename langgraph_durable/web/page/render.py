"""Templates and the headers that every page carries."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from langgraph_durable.web.page.session import Visitor, language_of
from langgraph_durable.web.page.texts import LANGUAGES, say
from langgraph_durable.web.page.views import pretty
from langgraph_durable.web.plain import text

R = TypeVar("R", bound=Response)

PART_HEADER = "x-part"

# no inline script or style, nothing from elsewhere, no frames
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Vary": "Cookie, Accept-Language",
}

_templates = Environment(
    loader=PackageLoader("langgraph_durable.web.page"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters["pretty"] = pretty
_templates.filters["clean"] = text


def secured(response: R) -> R:
    """Add the headers that every answer of the page carries."""
    response.headers.update(_HEADERS)
    return response


def wants_part(request: Request) -> bool:
    """Tell whether the script asks for the changing part of a page only."""
    return PART_HEADER in request.headers


def page(
    request: Request, name: str, visitor: Visitor | None = None, status: int = 200, **shown: Any
) -> HTMLResponse:
    """Render a page, or the part of it that changes."""
    language = visitor.language if visitor else language_of(request)
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    html = _templates.get_template(name).render(
        t=lambda key: say(language, key),
        language=language,
        languages=LANGUAGES,
        visitor=visitor,
        token=visitor.token if visitor else "",
        here=here if request.method == "GET" else "/",
        path=request.url.path,
        layout="part.html" if wants_part(request) else "base.html",
        **shown,
    )
    return secured(HTMLResponse(html, status))
