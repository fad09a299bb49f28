"""Statements of the hot path: any number of rows as one parameter, one text for all calls.

All rows travel as one JSON text, which the client writes and the database reads in C. The
statements go to the driver as they are, without being built or compiled again: they run for
every step and every end of every run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from langgraph_durable.encryption import Keyring
from langgraph_durable.store.schema import sqlite_time
from langgraph_durable.store.sealed import Sealed, keyring_of
from langgraph_durable.store.timeline import Timeline


class Bulk:
    """A statement over rows that are given as JSON.

    Args:
        columns: the names of a row's fields, with their PostgreSQL types.
        statement: SQL that both databases understand. In it `{rows}` is the rows as a table,
            `{now}` the time, and `{until}` the time some seconds later.
        one: the same for a single row, on PostgreSQL, which plans it in half the time. In it
            `{fields}` is the row's fields, and `%(name)s` one of them.
        into: the table that is written; fields with the name of a sealed column are sealed,
            because the driver is told no types.
    """

    def __init__(
        self,
        columns: Mapping[str, str],
        statement: str,
        *,
        one: str | None = None,
        into: sa.Table | None = None,
    ) -> None:
        written = () if into is None else into.columns
        self._sealed = [
            (c.name, c.type) for c in written if c.name in columns and isinstance(c.type, Sealed)
        ]
        typed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        table = f"(SELECT * FROM json_to_recordset(CAST(%(rows)s AS json)) AS a ({typed}))"  # noqa: S608  # our own names
        later = "clock_timestamp() + make_interval(secs => CAST(%(later_)s AS double precision))"
        self._by_server = statement.format(rows=table, now="clock_timestamp()", until=later)
        fields = ", ".join(f"CAST(%({name})s AS {kind})" for name, kind in columns.items())
        self._one = one and one.format(fields=fields, now="clock_timestamp()", until=later)
        self._by_clock = statement.format(
            rows=table, now="CAST(%(now)s AS timestamptz)", until="CAST(%(until)s AS timestamptz)"
        )
        fields = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in columns)
        table = f"(SELECT {fields} FROM json_each(:rows))"  # noqa: S608  # our own names
        self._sqlite = statement.format(rows=table, now=":now", until=":until")

    def execute(
        self, tx: sa.Connection, time: Timeline, rows: Sequence[Mapping[str, Any]], seconds: float
    ) -> Sequence[sa.Row[Any]]:
        """Execute it over these rows; return the rows that it returns, if it does."""
        keyring = keyring_of(tx.dialect)
        if keyring is not None:
            rows = [{**row, **self._closed(row, keyring)} for row in rows]
        moments = time.moments(seconds)
        if moments is None and self._one is not None and len(rows) == 1:
            statement, given = self._one, {**rows[0], "later_": seconds}
        elif moments is None:
            statement, given = self._by_server, {"rows": _text(rows), "later_": seconds}
        elif tx.dialect.name == "sqlite":
            now, until = (sqlite_time(at) for at in moments)
            statement, given = self._sqlite, {"rows": _text(rows), "now": now, "until": until}
        else:
            times = dict(zip(("now", "until"), moments, strict=True))
            statement, given = self._by_clock, {"rows": _text(rows), **times}
        found = tx.exec_driver_sql(statement, given)
        return found.all() if found.returns_rows else []

    def _closed(self, row: Mapping[str, Any], keyring: Keyring) -> dict[str, str]:
        return {
            name: kind.close(keyring, row[name])
            for name, kind in self._sealed
            if row[name] is not None
        }


def _text(rows: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
