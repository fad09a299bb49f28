"""An API process of the tests: `python -m tests.web.serve <database url>`; prints its port."""

from __future__ import annotations

import sys

import uvicorn

from langgraph_durable.up import listen
from langgraph_durable.web import create_app
from tests.web.web_shop import shop


def main() -> None:
    listening = listen("127.0.0.1", 0)
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(create_app(shop(sys.argv[1])), log_level="warning")
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
