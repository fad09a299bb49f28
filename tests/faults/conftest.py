"""Real worker processes, and the world that they act on."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from langgraph_durable import Durable, Run, Status
from tests.faults.app import build
from tests.faults.ledger import World
from tests.faults.processes import WorkerProcess, Zygote, eventually

__all__ = ["Town", "WorkerProcess", "Zygote", "eventually"]


class Town:
    """A database, the world, the client, and the workers of one test."""

    def __init__(self, url: str, folder: Path, zygote: Zygote) -> None:
        self.url, self.folder, self._zygote = url, folder, zygote
        self.world = World(folder)
        self.ledger, self.gates = self.world.ledger, self.world.gates
        self.durable: Durable = build(url, self.world)
        self.workers: list[WorkerProcess] = []

    @property
    def env(self) -> dict[str, str]:
        return {"DURABLE_URL": self.url, "DURABLE_WORLD": str(self.folder)}

    def worker(
        self, *, lease: float = 1.0, name: str | None = None, concurrency: int = 8, **options: Any
    ) -> WorkerProcess:
        number = len(self.workers)
        argv = ["langgraph-durable", "worker", "--app", "tests.faults.app:durable"]
        argv += ["--lease-seconds", str(lease), "--concurrency", str(concurrency)]
        argv += ["--name", name or f"w{number}"]
        for option, value in options.items():
            argv += [f"--{option.replace('_', '-')}", str(value)]
        log = self.folder / f"worker{number}.log"
        started = WorkerProcess(self._zygote, argv, self.env, log)
        self.workers.append(started)
        return started

    def submit(self, agent: str, input: Any = None, **options: Any) -> str:
        return self.durable.submit(agent, {} if input is None else input, **options)

    def reached(self, gate: str, count: int = 1) -> int:
        """Wait until somebody stands at a gate; returns the process id of the last."""
        arrivals = eventually(
            lambda: self.gates.arrivals(gate)[count - 1 :], f"gate {gate}", context=self.logs
        )
        return arrivals[0]

    def status(self, run_id: str) -> Status:
        return self.durable.get(run_id).status

    def until(self, run_id: str, *statuses: Status | str, seconds: float = 30.0) -> Run:
        wanted = {Status(status) for status in statuses}
        eventually(
            lambda: self.status(run_id) in wanted,
            f"run {run_id} {' or '.join(wanted)}",
            seconds,
            lambda: f"{self.durable.get(run_id)}\n{self.events(run_id)}\n{self.logs()}",
        )
        return self.durable.get(run_id)

    def succeeded(self, run_id: str, seconds: float = 30.0) -> Run:
        run = self.until(run_id, "succeeded", "failed", "cancelled", seconds=seconds)
        assert run.status is Status.SUCCEEDED, f"{run.error}\n{self.logs()}"
        return run

    def events(self, run_id: str) -> list[str]:
        return [event.type for event in self.durable.events(run_id)]

    def claims(self, run_id: str) -> list[str]:
        """Return the workers that claimed a run, in order."""
        found = self.durable.events(run_id)
        return [e.actor for e in found if e.type in ("run_claimed", "run_taken_over")]

    def step(self, run_id: str, key: str) -> Any:
        return {step.key: step for step in self.durable.journal(run_id)}[key]

    def logs(self) -> str:
        """Return what the workers said, and where those that live are now."""
        alive = [worker for worker in self.workers if worker.is_alive]
        for worker in alive:
            worker.send(signal.SIGCONT)
            worker.send(signal.SIGUSR1)
        time.sleep(0.5 if alive else 0.0)
        return "\n".join(f"--- worker {w.pid}\n{w.log()[-6000:]}" for w in self.workers)

    def freeze(self, worker: WorkerProcess) -> None:
        """SIGSTOP a worker, but not while it holds the lock on a SQLite file."""
        while True:
            worker.send(signal.SIGSTOP)
            eventually(worker.is_stopped, "a worker that is stopped")
            if not self.url.startswith("sqlite") or self._is_free():
                return
            worker.send(signal.SIGCONT)
            time.sleep(0.02)

    def _is_free(self) -> bool:
        db = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=0.2, isolation_level=None)
        try:
            db.execute("BEGIN IMMEDIATE")
            db.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        finally:
            db.close()
        return True

    def admin(self, sql: str) -> list[Any]:
        """Run a statement on the database beside the product."""
        engine = sa.create_engine(self.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            found = connection.exec_driver_sql(sql)
            rows = list(found) if found.returns_rows else []
        engine.dispose()
        return rows

    def close(self) -> None:
        for worker in self.workers:
            if worker.is_alive:
                worker.send(signal.SIGKILL)
                worker.wait()
        self.durable.store.engine.dispose()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """What forks workers."""
    started = Zygote()
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def town(database_url: str, tmp_path: Path, zygote: Zygote) -> Iterator[Town]:
    """A town on each kind of database."""
    yield from _town(database_url, tmp_path, zygote)


@pytest.fixture
def sqlite_town(sqlite_url: str, tmp_path: Path, zygote: Zygote) -> Iterator[Town]:
    """A town on SQLite."""
    yield from _town(sqlite_url, tmp_path, zygote)


@pytest.fixture
def postgres_town(postgres_url: str, tmp_path: Path, zygote: Zygote) -> Iterator[Town]:
    """A town on PostgreSQL."""
    yield from _town(postgres_url, tmp_path, zygote)


def _town(url: str, folder: Path, zygote: Zygote) -> Iterator[Town]:
    made = Town(url, folder, zygote)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=["steps", "graph"])
def mode(request: pytest.FixtureRequest) -> str:
    """Each of the two modes."""
    return str(request.param)
