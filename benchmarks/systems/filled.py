"""A database with many runs in it: finished ones, and ones that are parked."""

from __future__ import annotations

import statistics
import time
from typing import Any

import sqlalchemy as sa

from benchmarks.systems.durable import SERVED, Steps
from benchmarks.workload import check_count, given
from langgraph_durable.runs import Done
from langgraph_durable.store import Served

_SERIES = {
    "postgresql": "generate_series(CAST(:low AS bigint), CAST(:high AS bigint)) AS n(i)",
    "sqlite": "(WITH RECURSIVE n(i) AS (SELECT :low UNION ALL SELECT i + 1 FROM n WHERE i < :high) "
    "SELECT i FROM n) AS n",
}
_TIMES = {
    "postgresql": "timestamptz '2026-01-01 00:00:00+00' + i * interval '1 second'",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%S.000000', 1767225600 + i, 'unixepoch')",
}
_RUNS = """
    INSERT INTO runs (id, tenant, agent, version, mode, thread, holds_thread, status, input, output,
                      epoch, worker, claimed_from, run_after, created_at, started_at, finished_at, asked)
    SELECT 'old-' || i, 't_' || (i % {tenants}), 'chain', '1', 'steps', 'old-' || i, {holds}, '{status}',
           '{{"seed": 1}}', {output}, 1, NULL, 'queued', {at}, {at}, {at}, {ended}, {asked}
    FROM {series}
"""
_STEPS = """
    INSERT INTO steps (run_id, key, seq, kind, name, state, fingerprint, request, value, place,
                       attempts, epoch, recorded_at)
    SELECT 'old-' || i, 'n0', 1, 'once', 'model', 'recorded', '', '', :value, 'n0@1', 1, 1, {at}
    FROM {series}
"""
_EVENTS = """
    INSERT INTO events (run_id, tenant, type, at, actor, data)
    SELECT 'old-' || i, 't_' || (i % {tenants}), 'run_submitted', {at}, 'client', '{{}}' FROM {series}
"""
_QUESTIONS = """
    INSERT INTO questions (id, run_id, tenant, key, kind, tool, payload, digest, allowed, on_expiry,
                           state, asked_at)
    SELECT 'q-' || i, 'old-' || i, 't_' || (i % {tenants}), 'ask', 'ask', '', '"?"', 'd', '["respond"]',
           'fail', 'open', {at}
    FROM {series}
"""


class Filled(Steps):
    """Fills the database by SQL, and times claims and batches in it."""

    def __init__(self, url: str, tenants: int = 100) -> None:
        super().__init__(url)
        self._filled, self._tenants = 0, tenants

    def fill(self, finished: int, parked: int) -> dict[str, Any]:
        """Add runs: finished ones with a step and an event, parked ones with a question too."""
        started = time.perf_counter()
        low = self._filled + 1
        self._filled += finished + parked
        with self.client.store.engine.begin() as tx:
            self._insert(tx, low, low + finished - 1, "succeeded")
            if parked:
                self._insert(tx, low + finished, self._filled, "waiting_human")
        self._tidy()
        return {"seconds": time.perf_counter() - started}

    def _insert(self, tx: sa.Connection, low: int, high: int, status: str) -> None:
        name = tx.dialect.name
        is_parked = status == "waiting_human"
        words = {
            "series": _SERIES[name],
            "tenants": str(self._tenants),
            "at": _TIMES[name],
            "status": status,
            "holds": "true" if is_parked else "false",
            "asked": "1" if is_parked else "0",
            "output": "NULL" if is_parked else "'{\"count\": 1}'",
            "ended": "NULL" if is_parked else _TIMES[name],
        }
        bounds: dict[str, Any] = {"low": low, "high": high}
        tx.execute(sa.text(_RUNS.format(**words).replace('": 1', '"\\: 1')), bounds)
        tx.execute(sa.text(_STEPS.format(**words)), {**bounds, "value": '"' + "x" * 100 + '"'})
        tx.execute(sa.text(_EVENTS.format(**words)), bounds)
        if is_parked:
            tx.execute(sa.text(_QUESTIONS.format(**words)), bounds)

    def _tidy(self) -> None:
        """Do what autovacuum would soon do."""
        engine = self.client.store.engine
        if engine.dialect.name == "postgresql":
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(sa.text("VACUUM (ANALYZE) runs, steps, events, questions"))
                connection.execute(sa.text("CHECKPOINT"))

    def claims(self, times: int) -> dict[str, Any]:
        """Time `times` claims, one run queued for each."""
        self.rest()
        store = self.client.store
        for seed in range(times):
            self.client.submit("chain", given(seed), version=SERVED)
        served = Served([("chain", SERVED), ("long", SERVED), ("one", SERVED)])
        seconds, claimed = [], []
        for _ in range(times):
            started = time.perf_counter()
            claim = store.claim("bench", 60.0, served)
            seconds.append(time.perf_counter() - started)
            if claim is not None:
                claimed.append(claim)
        check_count("claims", len({claim.run.id for claim in claimed}), times)
        for claim in claimed:
            store.settle(claim.lease, Done("null"))
        return {"seconds": statistics.median(seconds)}
