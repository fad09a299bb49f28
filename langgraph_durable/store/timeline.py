"""Whose clock a statement asks: the database's on PostgreSQL, unless a clock was given."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from langgraph_durable.clock import Clock, SystemClock
from langgraph_durable.store.schema import UtcTime

_FOREVER = 100 * 366 * 86_400.0  # no database has to add more to a date


class Timeline:
    """SQL expressions for the time.

    The clocks of workers differ, so on PostgreSQL leases are measured by the server's
    clock; SQLite has no server, so there (and wherever tests pass a clock) it is the clock
    that was given.

    The server's is the statement's: constant within one, so that an index can be searched
    by it, and later than any lock that an earlier statement of the transaction waited for.
    """

    def __init__(self, dialect: str, clock: Clock | None) -> None:
        self._server = dialect == "postgresql" and clock is None
        self._clock = clock or SystemClock()

    def now(self) -> sa.ColumnElement[Any]:
        """Return the time as an expression."""
        if self._server:
            return sa.func.statement_timestamp(type_=UtcTime())
        return self._asked(timedelta())

    def later(self, seconds: float) -> sa.ColumnElement[Any]:
        """Return the time `seconds` from now as an expression; at most a century away."""
        seconds = max(-_FOREVER, min(_FOREVER, seconds))
        if self._server:
            span = sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)
            return sa.type_coerce(sa.func.statement_timestamp() + span, UtcTime())
        return self._asked(timedelta(seconds=seconds))

    def moments(self, seconds: float) -> tuple[datetime, datetime] | None:
        """Return the time, and the time `seconds` from now; None where the server's goes."""
        if self._server:
            return None
        now = self._clock.now()
        return now, now + timedelta(seconds=max(-_FOREVER, min(_FOREVER, seconds)))

    def _asked(self, away: timedelta) -> sa.BindParameter[Any]:
        """The clock is asked at each execution, so that a statement can be built once."""
        clock = self._clock
        return sa.bindparam(
            None, callable_=lambda: clock.now() + away, type_=UtcTime(), unique=True
        )
