"""Start the billing system: python -m supportpilot.billing --db billing.db --port 8765."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from supportpilot.billing.server import billing_server
from supportpilot.billing.store import BillingStore

HOST = "127.0.0.1"
BACKLOG = 128


def main(
    db: Annotated[Path, typer.Option(help="The SQLite file; made and seeded when missing.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8765,
    hold_dir: Annotated[
        Path | None, typer.Option(help="While a file DIR/<tool> exists, hold its answers back.")
    ] = None,
) -> None:
    """Serve the billing tools over streamable HTTP on this machine until stopped.

    The address is printed as one JSON line as soon as calls are accepted.
    """
    store = BillingStore(db)
    store.create()
    app = billing_server(store, hold_dir).streamable_http_app(
        json_response=True, stateless_http=True, host=HOST
    )
    listener = socket.create_server((HOST, port), backlog=BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted ones inherit it
    chosen = listener.getsockname()[1]
    print(json.dumps({"url": f"http://{HOST}:{chosen}/mcp"}), flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    typer.run(main)
