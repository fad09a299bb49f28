"""The outside world of the crash tests: a ledger that remembers calls, keys and tokens, and gates.

Both are files, so that any process may be killed at any point of them. A gate holds a node
or a tool at an exact point until the test opens it: no test here sleeps and hopes.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PAUSE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Entry:
    """One call as the ledger saw it. `verdict`: done, repeat, stale, or plain (it has no key)."""

    tool: str
    run_id: str
    key: str | None
    token: int
    pid: int
    verdict: str


class StaleToken(RuntimeError):
    """The ledger has seen a later claim of this run."""


class Ledger:
    """Records every call; makes an effect once for each key; refuses stale tokens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            db.execute(
                "CREATE TABLE IF NOT EXISTS calls (id INTEGER PRIMARY KEY, tool TEXT, run_id TEXT,"
                " key TEXT, token INTEGER, pid INTEGER, verdict TEXT)"
            )
            db.execute("COMMIT")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        try:
            yield db
        finally:
            db.close()

    def note(self, tool: str, run_id: str) -> None:
        """Record a call that has neither key nor token."""
        self._put(tool, run_id, None, 0)

    def effect(self, tool: str, run_id: str, key: str, token: int) -> str:
        """Record a keyed call; returns "done", or "repeat" for a key that was seen.

        Raises:
            StaleToken: a later claim of the run has been here.
        """
        verdict = self._put(tool, run_id, key, token)
        if verdict == "stale":
            raise StaleToken(f"{key}: token {token} is stale")
        return verdict

    def _put(self, tool: str, run_id: str, key: str | None, token: int) -> str:
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            verdict = "plain" if key is None else self._judge(db, run_id, key, token)
            db.execute(
                "INSERT INTO calls (tool, run_id, key, token, pid, verdict) VALUES (?,?,?,?,?,?)",
                (tool, run_id, key, token, os.getpid(), verdict),
            )
            db.execute("COMMIT")
        return verdict

    @staticmethod
    def _judge(db: sqlite3.Connection, run_id: str, key: str, token: int) -> str:
        (latest,) = db.execute(
            "SELECT max(token) FROM calls WHERE run_id = ?", (run_id,)
        ).fetchone()
        if latest is not None and token < latest:
            return "stale"
        seen = db.execute("SELECT 1 FROM calls WHERE key = ? AND verdict = 'done'", (key,))
        return "repeat" if seen.fetchone() else "done"

    def calls(self, tool: str | None = None, run_id: str | None = None) -> list[Entry]:
        """Return what was called, in order."""
        with self._open() as db:
            rows = db.execute(
                "SELECT tool, run_id, key, token, pid, verdict FROM calls ORDER BY id"
            )
            found = [Entry(*row) for row in rows]
        return [e for e in found if tool in (None, e.tool) and run_id in (None, e.run_id)]

    def effects(self, run_id: str | None = None) -> list[Entry]:
        """Return what really changed the world."""
        return [e for e in self.calls(run_id=run_id) if e.verdict == "done"]


class Gates:
    """Named points where whoever comes waits, while they are armed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def arm(self, *names: str) -> None:
        """Close gates."""
        for name in names:
            (self._folder / f"{name}.armed").touch()

    def open(self, *names: str) -> None:
        """Let everybody through, now and from now on."""
        for name in names:
            (self._folder / f"{name}.armed").unlink(missing_ok=True)

    def is_armed(self, name: str) -> bool:
        """Whether a gate is closed."""
        return (self._folder / f"{name}.armed").exists()

    def arrivals(self, name: str) -> list[int]:
        """Return the process ids of those who came to a gate, in order."""
        try:
            return [int(line) for line in (self._folder / f"{name}.log").read_text().split()]
        except FileNotFoundError:
            return []

    def _arrive(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("a") as log:
            log.write(f"{os.getpid()}\n")

    def hold(self, name: str) -> None:
        """Wait in a thread until the gate is open."""
        if self.is_armed(name):
            self._arrive(name)
            while self.is_armed(name):
                time.sleep(PAUSE_SECONDS)

    async def wait(self, name: str) -> None:
        """Wait in a coroutine until the gate is open."""
        if self.is_armed(name):
            self._arrive(name)
            while self.is_armed(name):  # noqa: ASYNC110 - another process opens it
                await asyncio.sleep(PAUSE_SECONDS)


class World:
    """Ledger and gates below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = Ledger(folder / "ledger.db")
        self.gates = Gates(folder / "gates")
