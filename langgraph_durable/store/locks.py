"""The lock on a run's row: the first of all locks, so that no two orders meet."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from langgraph_durable.errors import NotFound
from langgraph_durable.store.schema import runs


def lock(tx: sa.Connection, run_id: str, tenant: str | None) -> sa.Row[Any]:
    """Lock a run's row, first of all locks.

    Raises:
        NotFound: there is no such run for this tenant.
    """
    query = sa.select(runs).where(runs.c.id == run_id).with_for_update()
    if tenant is not None:
        query = query.where(runs.c.tenant == tenant)
    row = tx.execute(query).one_or_none()
    if row is None:
        raise NotFound("run", run_id)
    return row
