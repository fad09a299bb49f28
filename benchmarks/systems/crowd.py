"""Several worker processes on one database, and runs whose steps wait 50 ms.

`python -m benchmarks.systems.crowd URL` is one of the workers.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from typing import Any

import sqlalchemy as sa

from benchmarks.systems.durable import HELD, Durably
from benchmarks.workload import given, model
from langgraph_durable import Worker, current_run

WAIT_SECONDS = 0.05
RUNS_AT_ONCE = 8


async def _slow(seed: int, node: int) -> str:
    await asyncio.sleep(WAIT_SECONDS)
    return await model(seed, node)


class Crowd(Durably):
    """Starts workers, gives them runs, and watches locks and the CPU meanwhile."""

    async def step(self, seed: int, node: int) -> str:
        """Wait as a model's answer would be waited for."""

        async def make() -> str:
            return await _slow(seed, node)

        said: str = await current_run().once(f"n{node}", make)
        return said

    def crowd(self, workers: int, runs: int) -> dict[str, Any]:
        """Have `workers` processes do `runs` runs each."""
        started = [
            subprocess.Popen([sys.executable, "-m", "benchmarks.systems.crowd", self.url])
            for _ in range(workers)
        ]
        try:
            self._until_announced(workers)
            return self._timed(workers * runs)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)

    def _until_announced(self, workers: int) -> None:
        until = time.monotonic() + 60
        with self.client.store.engine.connect() as connection:
            while time.monotonic() < until:
                if (
                    connection.execute(sa.text("SELECT count(*) FROM workers")).scalar_one()
                    >= workers
                ):
                    time.sleep(1.5)  # they listen by now
                    return
                connection.rollback()
                time.sleep(0.1)
        raise TimeoutError("the workers did not start in 60 s")

    def _timed(self, runs: int) -> dict[str, Any]:
        seeds = list(range(runs))
        ids = [self.client.submit("chain", given(seed), version=HELD) for seed in seeds]
        watch = _Watch(self.client.store.engine)
        cpu = _busy_seconds()
        watch.start()
        started = time.perf_counter()
        self._release()
        self._until_done(ids)
        seconds = time.perf_counter() - started
        watch.stop()
        self.check(ids, seeds)
        return {
            "seconds": seconds,
            "busy": (_busy_seconds() - cpu) / seconds / (os.cpu_count() or 1),
            "lock_waits": watch.share,
        }


class _Watch(threading.Thread):
    """Looks every 20 ms how many of the active backends wait for a lock."""

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(daemon=True)
        self._engine = engine
        self._ended = threading.Event()
        self._active = self._waiting = 0

    def run(self) -> None:
        """Look until stopped."""
        if self._engine.dialect.name != "postgresql":
            return
        looking = sa.text(
            "SELECT count(*), count(*) FILTER (WHERE wait_event_type = 'Lock') FROM pg_stat_activity "
            "WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()"
        )
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not self._ended.wait(0.02):
                active, waiting = connection.execute(looking).one()
                self._active += active
                self._waiting += waiting

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self.join()

    @property
    def share(self) -> float:
        """The part of the active backends that waited for a lock."""
        return self._waiting / self._active if self._active else 0.0


def _busy_seconds() -> float:
    """Return for how many seconds the CPUs of the machine have worked."""
    with open("/proc/stat") as stat:
        ticks = [int(part) for part in stat.readline().split()[1:]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    Worker(Crowd(sys.argv[1]).durable, concurrency=RUNS_AT_ONCE).serve()
