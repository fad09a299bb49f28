# ruff: noqa: S608 - the queries are built from constants of the store
"""The SQL by which LangGraph's savers are fenced, and where a database URL leads them.

The savers write on connections of their own, through psycopg and aiosqlite; the fence
rides in their transactions. A lease holds while `runs` has its id and epoch in a status
that a worker owns.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from langgraph_durable.errors import StoreError
from langgraph_durable.store.schema import LEASED

# --- PostgreSQL ------------------------------------------------------------------------

#: LangGraph's prune asks for this level, which is refused where the transaction has another.
BEGIN_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ"

# Without a row to count, the division fails, and the transaction with it: writes, check and
# commit can be one message, with nothing to be decided by the client in between. The row's
# lock makes a claim by another worker wait until the commit.

CHECK_LEASE = f"""
SELECT 1 / count(*) FROM (
    SELECT 1 FROM runs WHERE id = %s AND epoch = %s AND {LEASED} FOR SHARE
) AS held"""

#: The same for several runs: how many leases, the runs' ids, and each lease as `named`. It
#: doesn't wait for a lock. To plan a join of ids and epochs would take as long again.
CHECK_LEASES = f"""
SELECT 1 / (count(*) = %s)::int FROM (
    SELECT 1 FROM runs WHERE id = ANY(%s::text[]) AND id || '/' || epoch = ANY(%s::text[])
    AND {LEASED} FOR SHARE NOWAIT
) AS held"""


def named(run_id: str, epoch: int) -> str:
    """Return a lease as `CHECK_LEASES` compares it."""
    return f"{run_id}/{epoch}"


#: The same for one, and notes that this pass got somewhere.
MARK_PROGRESS = f"""
WITH held AS (
    UPDATE runs SET progress_epoch = epoch WHERE id = %s AND epoch = %s AND {LEASED} RETURNING 1
) SELECT 1 / count(*) FROM held"""

#: Taken while LangGraph's tables are created. It is tried, not waited for: a waiting
#: statement holds a snapshot, and CREATE INDEX CONCURRENTLY waits for snapshots, a deadlock.
#: It belongs to a transaction, because a session has no meaning behind a pooler.
TRY_SETUP_LOCK = "SELECT pg_try_advisory_xact_lock(hashtext('langgraph_durable.checkpoint'))"

# --- SQLite ----------------------------------------------------------------------------

LEASE_LOST = "langgraph_durable: the lease is lost"

_LEASE_IS_GONE = f"""
NOT EXISTS (
    SELECT 1 FROM main.runs AS run JOIN temp.leased_pass AS pass
    ON run.id = pass.run_id AND run.epoch = pass.epoch WHERE run.{LEASED}
)"""


def _refuse(table: str, write: str) -> str:
    # ROLLBACK, not ABORT: ABORT would leave the write transaction open, and the file locked
    return f"""
CREATE TEMP TRIGGER fence_{table}_{write.lower()} BEFORE {write} ON main.{table}
WHEN {_LEASE_IS_GONE}
BEGIN SELECT RAISE(ROLLBACK, '{LEASE_LOST}'); END;"""


def _mark_progress(table: str, ordinary: str) -> str:
    return f"""
CREATE TEMP TRIGGER progress_{table} AFTER INSERT ON main.{table}
WHEN {ordinary} EXISTS (
    SELECT 1 FROM main.runs AS run JOIN temp.leased_pass AS pass ON run.id = pass.run_id
    WHERE run.progress_epoch <> pass.epoch
)
BEGIN UPDATE runs SET progress_epoch = epoch
      WHERE id = (SELECT run_id FROM temp.leased_pass); END;"""


#: For a connection that writes under a lease. Temporary triggers are seen by this
#: connection only, and run inside LangGraph's own statements. LangGraph gives special
#: writes (errors, interrupts, answers) a negative idx: they are no progress.
SQLITE_FENCE = "\n".join(
    [
        "PRAGMA temp_store = MEMORY;",
        "CREATE TEMP TABLE leased_pass (run_id TEXT NOT NULL, epoch INTEGER NOT NULL);",
        *(
            _refuse(table, write)
            for table in ("checkpoints", "writes")
            for write in ("INSERT", "UPDATE", "DELETE")
        ),
        _mark_progress("checkpoints", ""),
        _mark_progress("writes", "NEW.idx >= 0 AND"),
    ]
)

SQLITE_LEASE = "INSERT INTO temp.leased_pass (run_id, epoch) VALUES (?, ?)"

BUSY_SECONDS = 30

SQLITE_PRAGMAS = f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}; PRAGMA synchronous = NORMAL;"

# --- where a URL leads -------------------------------------------------------------------


def target(url: str) -> tuple[str, str]:
    """Return ("sqlite", path of the file) or ("postgresql", a libpq URI).

    Raises:
        StoreError: the URL can't be read, or names no database that the savers can share.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(f"database URL {url!r} can't be read") from error
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        uri = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
        where, mark, options = uri.partition("?")
        # SQLAlchemy writes a space in the options as a plus, which libpq takes for a plus
        return backend, where + mark + options.replace("+", "%20")
    if backend == "sqlite":
        return backend, _file(parsed)
    raise StoreError(f"database {backend!r} is not supported: use SQLite or PostgreSQL")


def _file(parsed: URL) -> str:
    if parsed.database in (None, "", ":memory:"):
        raise StoreError(
            "a SQLite database in memory has one connection, and checkpoints need their own: "
            "give a file, sqlite:////path/of/it.db"
        )
    return str(Path(str(parsed.database)).absolute())
