"""Processes that stay: a worker, and API, page and worker in one."""

from __future__ import annotations

import json
import logging
import os
import sys
from enum import StrEnum
from typing import Annotated

import typer

from langgraph_durable import up as embedded
from langgraph_durable.cli.options import JsonOption, NeededAppOption, load
from langgraph_durable.cli.printing import complain, say
from langgraph_durable.worker import Worker

commands = typer.Typer()


class LogLevel(StrEnum):
    """How much a worker says."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@commands.command()
def worker(
    app_path: NeededAppOption,
    name: Annotated[
        str | None, typer.Option(help="Its name; by default host, process and a unique part.")
    ] = None,
    lease_seconds: Annotated[
        float, typer.Option(min=0.1, help="How long a claim holds without a sign of life.")
    ] = 60.0,
    concurrency: Annotated[int, typer.Option(min=1, help="How many runs at once.")] = 8,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long calls in flight may take to end after a stop.")
    ] = 30.0,
    tenant_limit: Annotated[
        int | None,
        typer.Option(min=1, help="How many runs of one tenant at once, on all workers together."),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="How much to say.")] = LogLevel.INFO,
) -> None:
    """Run what was submitted, until SIGTERM; then hand over and exit with 0."""
    logging.basicConfig(
        level=log_level.value.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    serving = Worker(
        load(app_path),
        name,
        lease_seconds=lease_seconds,
        concurrency=concurrency,
        drain_seconds=drain_seconds,
        tenant_limit=tenant_limit,
    )
    complain(f"worker {serving.name} serves {app_path}")
    if not serving.serve():
        logging.shutdown()
        os._exit(0)  # a thread of a run still works: nothing but the process's end stops it


@commands.command()
def up(
    app_path: NeededAppOption,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    tenant: Annotated[str, typer.Option(help="Whose keys are made.")] = "default",
    lease_seconds: Annotated[float, typer.Option(min=0.1)] = 60.0,
    concurrency: Annotated[int, typer.Option(min=1, help="How many runs at once.")] = 8,
    as_json: JsonOption = False,
) -> None:
    """Serve API and page, and work, in one process; prints address and keys."""
    logging.basicConfig(level=logging.WARNING)
    stays = embedded.set_pepper()
    durable = load(app_path)
    listener = embedded.listen(host, port)
    keys = embedded.fresh_keys(durable, tenant)
    url = f"http://{host}:{listener.getsockname()[1]}"
    if as_json:
        line = json.dumps({"url": url, "tenant": tenant, "keys": keys, "keys_stay": stays})
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    else:
        say(f"page {url}/   API {url}/v1   tenant {tenant}")
        for name, secret in keys.items():
            sys.stdout.write(f"{name:<11} {secret}\n")
        if not stays:
            say("the keys end with this process: no LANGGRAPH_DURABLE_PEPPER is set")
        sys.stdout.flush()
    serving = Worker(durable, lease_seconds=lease_seconds, concurrency=concurrency)
    embedded.serve(durable, listener, serving)
