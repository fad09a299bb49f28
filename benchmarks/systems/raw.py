"""One-row commits on one connection: what the database itself takes for a durable step."""

from __future__ import annotations

import sqlite3
import time
import uuid
from typing import Any

import psycopg

from benchmarks.databases import is_postgres, path_of
from benchmarks.workload import answer, check_count
from langgraph_durable.store import RunStore, open_engine

_COLUMNS = (
    "run_id, key, seq, kind, name, state, fingerprint, request, value, place, epoch, recorded_at"
)


class Raw:
    """Inserts a step with the plain driver, in a table like ours, and commits."""

    def __init__(self, url: str) -> None:
        self._is_postgres = is_postgres(url)
        store = RunStore(open_engine(url))
        store.upgrade()  # the table, with its types and its index
        store.engine.dispose()
        self._connection: Any
        if self._is_postgres:
            self._connection = psycopg.connect(url, autocommit=True)
        else:
            self._connection = sqlite3.connect(path_of(url), isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
        mark = "%s" if self._is_postgres else "?"
        self._insert = f"INSERT INTO steps ({_COLUMNS}) VALUES ({', '.join([mark] * 12)})"

    def commits(self, steps: int) -> dict[str, Any]:
        """Commit `steps` rows one after another."""
        run_id = uuid.uuid4().hex
        rows = [
            (run_id, f"n{i}", i, "once", "model", "recorded", "", "", answer(1, i), f"n{i}@{i}", 1,
             "2026-01-01 00:00:00+00")
            for i in range(steps)
        ]  # fmt: skip
        execute, insert = self._connection.execute, self._insert
        started = time.perf_counter()
        for row in rows:
            execute(insert, row)
        seconds = time.perf_counter() - started
        counting = "SELECT count(*) FROM steps WHERE run_id = " + (
            "%s" if self._is_postgres else "?"
        )
        found = execute(counting, (run_id,)).fetchone()[0]
        check_count("rows", found, steps)
        return {"seconds": seconds}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
