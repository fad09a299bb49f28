"""Keys of an encrypted database: make one, and encrypt what is stored with the first."""

from __future__ import annotations

import typer

from langgraph_durable.cli.options import AppOption, DbOption, open_durable
from langgraph_durable.cli.printing import say
from langgraph_durable.encryption import KEYS_VARIABLE, new_key

commands = typer.Typer(
    help=f"Encryption at rest; the keys are in {KEYS_VARIABLE}, or the app's.", no_args_is_help=True
)


@commands.command()
def key() -> None:
    """Print a new key. It is kept nowhere: put it where your secrets are."""
    typer.echo(new_key())


@commands.command()
def rotate(app_path: AppOption = None, db: DbOption = None) -> None:
    """Encrypt all that is stored with the first key, also what is plain; workers may run on."""
    count = open_durable(app_path, db).store.reseal()
    say(f"{count} rows encrypted with the first key; the other keys can go")
