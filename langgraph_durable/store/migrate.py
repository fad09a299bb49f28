"""Schema versions: upgrade by one process at a time, refuse what this code doesn't know."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DatabaseError, OperationalError

from langgraph_durable.errors import SchemaMismatch, StoreError

VERSION_TABLE = "langgraph_durable_version"
_LOCK = 0x1A6C_D02A  # any constant: one advisory lock for all who upgrade


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


@cache
def _scripts() -> ScriptDirectory:
    # read once: every process that starts, and every worker now and then, checks the schema
    return ScriptDirectory.from_config(_config())


def upgrade(engine: sa.Engine) -> None:
    """Bring the schema up to this code's.

    One transaction, under a lock: of eight processes that call it at once on an empty
    database one builds the schema and seven find it built.

    Raises:
        StoreError: the database can't be opened.
        SchemaMismatch: the schema is newer than this code.
    """
    config = _config()
    try:
        with engine.begin() as tx:
            if tx.dialect.name == "postgresql":
                tx.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            current = _revision(tx)
            _refuse_newer(engine, current)
            if current == head():
                return
            config.attributes["connection"] = tx
            command.upgrade(config, "head")
    except (OperationalError, DatabaseError) as error:
        raise _cannot_open(engine, error) from error


def check_schema(engine: sa.Engine, *, create: bool) -> None:
    """Refuse a schema that isn't this code's; with `create`, fill an empty database.

    Raises:
        StoreError: the database can't be opened.
        SchemaMismatch: the schema is older or newer than this code.
    """
    if not create:
        _require_file(engine)
    try:
        with engine.connect().execution_options(reads_only=True) as connection, connection.begin():
            current = _revision(connection)
    except (OperationalError, DatabaseError) as error:
        raise _cannot_open(engine, error) from error
    if current is None and create:
        upgrade(engine)
        return
    _refuse_newer(engine, current)
    if current != head():
        have = (
            "no schema yet"
            if current is None
            else f"schema {current}, older than this code's {head()}"
        )
        raise SchemaMismatch(
            f"database {_shown(engine)} has {have}. Run: langgraph-durable db upgrade"
        )


def _require_file(engine: sa.Engine) -> None:
    """Opening a SQLite file that isn't there would make one: a typing error would look empty."""
    name = engine.url.database
    if engine.dialect.name == "sqlite" and name and not Path(name).is_file():
        raise StoreError(f"database {_shown(engine)} can't be opened: there is no file {name}")


def head() -> str:
    """Return the newest revision that this code knows."""
    found = _scripts().get_current_head()
    if found is None:
        raise SchemaMismatch("this installation has no migrations; reinstall langgraph-durable")
    return found


def _revision(connection: sa.Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _refuse_newer(engine: sa.Engine, current: str | None) -> None:
    known = {script.revision for script in _scripts().walk_revisions()}
    if current is not None and current not in known:
        raise SchemaMismatch(
            f"database {_shown(engine)} has schema {current}, which is newer than this code's {head()}. "
            "Deploy the newer version of langgraph-durable; this one claims nothing."
        )


def _shown(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


def _cannot_open(engine: sa.Engine, error: Exception) -> StoreError:
    if isinstance(error, SchemaMismatch):
        return error
    cause = getattr(error, "orig", None) or error
    return StoreError(f"database {_shown(engine)} can't be opened: {str(cause).strip()}")
