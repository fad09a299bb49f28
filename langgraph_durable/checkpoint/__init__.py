"""LangGraph's savers, which refuse a writer that has lost its run.

    savers = Savers.for_url("postgresql+psycopg://…", types=types)      one per worker
    await savers.open()
    async with savers.fenced(lease) as saver:                           one per pass
        await graph.copy(update={"checkpointer": saver}).ainvoke(..., durability="sync")

Promised, on SQLite and PostgreSQL alike:

- A write under a stale lease changes nothing and raises `LeaseLost`. The check and the
  write are one transaction. Reads are not fenced. LangGraph swallows what a background
  write raises when it is control flow, as `LeaseLost` is; so a pass in which any write
  was refused leaves `fenced()` with `LeaseLost`, whatever the graph returned.
- The first write of a pass that gets the graph further (a checkpoint, or the results of a
  node; not an error, a question or an answer) sets `runs.progress_epoch`, in the same
  transaction.
- A dropped connection or a locked file is waited out, within bounds; every write may be
  repeated.
- State comes back as it went in: see `state`. What can't is the same on both databases.

The databases' tables are LangGraph's own, and other tools can read them.
"""

from .fenced import FencedSaver
from .savers import Savers

__all__ = ["FencedSaver", "Savers"]
