"""The options that commands share, and the Durable that they name."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Annotated

import typer

from langgraph_durable.app import Durable
from langgraph_durable.errors import BadInput, DurableError

AppOption = Annotated[
    str | None, typer.Option("--app", help="Where the Durable is: package.module:name.")
]
NeededAppOption = Annotated[
    str, typer.Option("--app", help="Where the Durable is: package.module:name.")
]
DbOption = Annotated[
    str | None,
    typer.Option("--db", envvar="LANGGRAPH_DURABLE_DB", help="Database URL, if no --app is given."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TenantOption = Annotated[str | None, typer.Option(help="Only this tenant.")]
ByOption = Annotated[str, typer.Option(help="Who decides, for the audit.")]


def load(path: str) -> Durable:
    """Import the Durable that `package.module:name` names.

    Raises:
        BadInput: there is none.
    """
    found = imported(path, "--app ")
    if not isinstance(found, Durable):
        module_name, _, name = path.partition(":")
        raise BadInput(f"--app {path}: {module_name} has no Durable called {name!r}")
    return found


def imported(path: str, option: str = "") -> object:
    """Import what `package.module:name` names.

    Raises:
        BadInput: there is nothing of that name, or the module can't be imported.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise BadInput(
            f"{option or 'say '}package.module:name, such as supportpilot.app:durable, not {path!r}"
        )
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BadInput(
            f"{option}{path}: {error}. Run it where the package can be imported."
        ) from error
    except DurableError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise BadInput(
            f"{option}{path}: {module_name} can't be imported: {type(error).__name__}: {error} "
            f"({at.filename}, line {at.lineno})"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        raise BadInput(f"{option}{path}: {module_name} has nothing called {name!r}")
    return found


def open_durable(app_path: str | None, db: str | None) -> Durable:
    """Return the Durable of --app, or one without agents on the database of --db.

    Raises:
        BadInput: neither is given.
    """
    if app_path:
        return load(app_path)
    if db:
        return Durable(db, create=False)
    raise BadInput(
        "say which database: --app package.module:name, --db URL, or LANGGRAPH_DURABLE_DB"
    )
