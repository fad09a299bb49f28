"""python -m supportpilot.up: billing, API, page and a worker, with tickets to look at.

Everything it keeps is in one folder. Address and keys are printed; Ctrl-C stops it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from supportpilot.build import GRAPH_MODE, STEPS_MODE, make
from supportpilot.demo.processes import billing
from supportpilot.settings import Settings

TENANT = "t_acme"
#: One that asks, in each mode; one under the limit; one without any refund.
TICKETS = (
    (STEPS_MODE, "c_42", "上个月年付扣了两次,退一笔"),
    (GRAPH_MODE, "c_42", "I was charged twice for the yearly plan, please refund one."),
    (STEPS_MODE, "c_43", "The monthly add-on: please refund me $5."),
    (STEPS_MODE, "c_43", "How do I change the address on my invoice?"),
)


def main(
    folder: Annotated[Path, typer.Option(help="Where databases and logs are kept.")] = Path("var"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line, for programs.")] = False,
) -> None:
    """Start everything; the tickets are the same at every start, and are submitted once."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # nothing outlives it
    folder.mkdir(parents=True, exist_ok=True)
    with billing(folder) as system:
        environment = {
            "SUPPORTPILOT_DATABASE_URL": f"sqlite:///{(folder / 'supportpilot.db').resolve()}",
            "SUPPORTPILOT_BILLING_URL": system.url,
        }
        submit(environment)
        command = [sys.executable, "-m", "langgraph_durable.cli", "up"]
        command += ["--app", "supportpilot.app:durable", "--tenant", TENANT, "--port", str(port)]
        command += ["--json"] if as_json else []
        with subprocess.Popen(command, env={**os.environ, **environment}) as child:
            try:
                code = child.wait()
            except KeyboardInterrupt:
                code = child.wait()  # it got the same signal, and hands its runs over
            finally:
                child.terminate()
    raise typer.Exit(code)


def submit(environment: dict[str, str]) -> None:
    """Submit the tickets; the same key again is the same run."""
    durable = make(
        Settings(
            database_url=environment["SUPPORTPILOT_DATABASE_URL"],
            billing_url=environment["SUPPORTPILOT_BILLING_URL"],
        )
    )
    for number, (agent, customer, ticket) in enumerate(TICKETS, start=1):
        state = {"ticket": ticket, "customer_id": customer}
        durable.submit(agent, state, tenant=TENANT, idempotency_key=f"demo-{number}", by="demo")
    durable.close()


if __name__ == "__main__":
    typer.run(main)
