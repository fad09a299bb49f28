"""The task API, and a page for people. Both speak to the store; no worker runs here.

    app.include_router(langgraph_durable.web.router(durable))      # into an application of yours
    app = langgraph_durable.web.create_app(durable)                # or a whole one, with the page

Every request carries an API key (`durable.keys.create(...)`), and the key alone says the
tenant: what belongs to another tenant is not found, wherever its id is put.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from langgraph_durable.app import Durable
from langgraph_durable.web import keys, problems, questions, runs
from langgraph_durable.web.auth import binding
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
    durable.keys.derive("check")
    watch = Watch(durable.store.newest_event)

    def watching(request: Request) -> None:
        request.state.langgraph_watch = watch

    api = APIRouter(prefix=prefix, dependencies=[Depends(binding(durable)), Depends(watching)])
    for part in (runs.routes, questions.routes, keys.routes):
        api.include_router(part)
    return api


def create_app(durable: Durable) -> FastAPI:
    """Return an application of the task API under /v1 and the page at /.

    Raises:
        MissingPepper: keys can't be checked, because no pepper is set.
    """
    app = FastAPI(
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
    app.include_router(router(durable))
    return app


async def _answer(request: Request, error: Exception) -> Response:
    return problems.answer_to(error, request)
