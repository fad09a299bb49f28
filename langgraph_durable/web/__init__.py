"""The task API, and a page for people. Both speak to the store; no worker runs here.

    app.include_router(langgraph_durable.web.router(durable))      # into an application of yours
    app = langgraph_durable.web.create_app(durable)                # or a whole one, with the page

Every request carries an API key (`durable.keys.create(...)`), and the key alone says the
tenant: what belongs to another tenant is not found, wherever its id is put.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.staticfiles import StaticFiles

from langgraph_durable.app import Durable
from langgraph_durable.web import keys, page, problems, questions, rules, runs
from langgraph_durable.web.watch import Watch

__all__ = ["create_app", "router"]

try:
    __version__ = version("langgraph-durable")
except PackageNotFoundError:  # running from a source tree that isn't installed
    __version__ = "0"


def router(durable: Durable, *, prefix: str = "/v1") -> APIRouter:
    """Return the task API, to include into a FastAPI application.

    Raises:
        MissingPepper: keys can't be checked, because no pepper is set.
    """
    return _bound(durable, Watch(durable.store.newest_event), prefix, _API)


def create_app(durable: Durable) -> FastAPI:
    """Return an application of the task API under /v1 and the page at /.

    Raises:
        MissingPepper: keys can't be checked, because no pepper is set.
    """
    app = _App(
        title="langgraph_durable",
        version=__version__,
        description=__doc__,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # FastAPI's page of the document loads scripts from elsewhere
        redoc_url=None,
        exception_handlers={
            StarletteHTTPException: _answer,
            RequestValidationError: _answer,
            Exception: _answer,
        },
    )
    watch = Watch(durable.store.newest_event)
    app.include_router(_bound(durable, watch, "/v1", _API))
    app.include_router(_bound(durable, watch, "", (page.routes.routes,)))
    app.mount("/static", StaticFiles(packages=[("langgraph_durable.web.page", "static")]))
    return app


class _App(FastAPI):
    """FastAPI documents every model as plain JSON; a problem is `application/problem+json` only."""

    def openapi(self) -> dict[str, Any]:
        """Return the document of the API."""
        document = super().openapi()
        for methods in document["paths"].values():
            for operation in methods.values():
                for answer in operation["responses"].values():
                    content = answer.get("content", {})
                    if problems.MEDIA_TYPE in content:
                        content.pop("application/json", None)
        return document


_API = (runs.routes, questions.routes, rules.routes, keys.routes)


def _bound(durable: Durable, watch: Watch, prefix: str, parts: Sequence[APIRouter]) -> APIRouter:
    """Return a router whose routes know their Durable; its requests carry it."""
    durable.keys.derive("check")  # a missing pepper is told now, not to the first caller

    def bind(request: Request) -> None:
        request.state.langgraph_durable = durable
        request.state.langgraph_watch = watch

    whole = APIRouter(prefix=prefix, dependencies=[Depends(bind)])
    for part in parts:
        whole.include_router(part)
    return whole


async def _answer(request: Request, error: Exception) -> Response:
    return problems.answer_to(error, request)
