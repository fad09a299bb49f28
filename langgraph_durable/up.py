"""API, page and one worker in one process: the embedded default.

The worker runs in a thread; the web server has the main thread and its signals. Both stop
in good order: first the server, then the worker hands its runs over.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from langgraph_durable.app import Durable
from langgraph_durable.errors import DurableError
from langgraph_durable.keys import AGENT, OPERATOR, PEPPER_VARIABLE, SUPERVISOR
from langgraph_durable.worker import Worker

log = logging.getLogger(__name__)

#: The keys that are made at a start, by name, and what each may do.
KEYS: Mapping[str, Collection[str]] = {
    "agent": (AGENT,),
    "supervisor": (SUPERVISOR,),
    "operator": (OPERATOR, SUPERVISOR, AGENT),
}


@dataclass(frozen=True, slots=True)
class Listening:
    """Where it is served, and with which keys."""

    url: str
    tenant: str
    keys: Mapping[str, str]  # name -> secret
    stays: bool  # whether the keys work after this process, too


def set_pepper() -> bool:
    """Make a pepper for this process if none is set; returns whether one was set."""
    if os.environ.get(PEPPER_VARIABLE):
        return True
    os.environ[PEPPER_VARIABLE] = secrets.token_urlsafe(32)
    return False


def fresh_keys(durable: Durable, tenant: str) -> Mapping[str, str]:
    """Make the keys of this start; those of the last one end."""
    old = [k for k in durable.keys.list(tenant) if k.is_live and k.created_by == "up"]
    for key in old:
        durable.keys.revoke(key.id, tenant=tenant, by="up")
    return {
        name: durable.keys.create(tenant=tenant, name=f"up-{name}", roles=roles, by="up").secret
        for name, roles in KEYS.items()
    }


def listen(host: str, port: int) -> socket.socket:
    """Take the port; 0 takes a free one.

    Raises:
        DurableError: it is taken, or the host is none of this machine.
    """
    try:
        listener = socket.create_server((host, port), backlog=128)
    except OSError as error:
        raise DurableError(f"can't listen on {host}:{port}: {error}") from error
    # asyncio sets it only where it made the socket; without it each answer waits 40 ms for the
    # client's delayed acknowledgement. Accepted connections inherit it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve(durable: Durable, listener: socket.socket, worker: Worker) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        DurableError: the web server's packages are not installed.
    """
    try:
        import uvicorn

        from langgraph_durable.web import create_app
    except ImportError as error:
        raise DurableError(
            f"{error}. The API and the page need: pip install 'langgraph-durable[api]'"
        ) from error
    config = uvicorn.Config(
        create_app(durable), log_level="warning", timeout_graceful_shutdown=3, lifespan="off"
    )
    # uvicorn raises the signal once more when it has stopped: the worker still has to
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    with _working(worker):
        uvicorn.Server(config).run(sockets=[listener])


@contextmanager
def _working(worker: Worker) -> Iterator[None]:
    thread = threading.Thread(target=worker.serve, name="durable-worker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(worker.drain_seconds + 5)
