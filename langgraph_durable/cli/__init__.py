"""The command line: run workers, look at runs, answer questions.

One module a noun; `options` and `printing` are what they share.

Exit codes: 0 done · 1 refused or failed · 2 wrong use · 3 not found · 4 conflict ·
5 the database can't be used.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from langgraph_durable import __version__
from langgraph_durable.cli import (
    agents,
    decisions,
    encryption,
    keys,
    operators,
    outbox,
    questions,
    rules,
    runs,
    serving,
)
from langgraph_durable.cli.printing import complain, say
from langgraph_durable.errors import Conflict, DurableError, NotFound, StoreError

__all__ = ["app", "main"]

app = typer.Typer(
    name="langgraph-durable",
    help="Durable runs of LangGraph agents: workers, runs, questions.",
    epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong use, 3 not found, 4 conflict, "
    "5 the database can't be used.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for part in (serving, agents, operators, decisions):
    app.add_typer(part.commands)
app.add_typer(runs.commands, name="runs")
app.add_typer(questions.commands, name="questions")
app.add_typer(rules.commands, name="rules")
app.add_typer(outbox.commands, name="outbox")
app.add_typer(keys.commands, name="keys")
app.add_typer(operators.database, name="db")
app.add_typer(encryption.commands, name="encryption")

EXIT_CODES: Mapping[type[DurableError], int] = {NotFound: 3, Conflict: 4, StoreError: 5}


def main() -> None:
    """Run the command line; an error is a sentence, not a traceback."""
    try:
        app()
    except DurableError as error:
        complain(f"error: {error}", style="red")
        kind = next((k for k in EXIT_CODES if isinstance(error, k)), DurableError)
        sys.exit(EXIT_CODES.get(kind, 1))


def _tell_version(wanted: bool) -> None:
    if wanted:
        say(f"langgraph-durable {__version__}")
        raise typer.Exit


@app.callback()
def _whole(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Print it and exit."),
    ] = False,
) -> None:
    """Durable runs of LangGraph agents: workers, runs, questions."""
