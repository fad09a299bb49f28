"""The API process: the product's own application."""

from __future__ import annotations

import os

import uvicorn

from langgraph_durable.web import create_app


def main() -> None:
    """Serve until killed."""
    from tests.chaos.app import durable

    uvicorn.run(
        create_app(durable),
        host="127.0.0.1",
        port=int(os.environ["CHAOS_API"]),
        log_level="warning",
    )
