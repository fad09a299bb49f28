"""What the outside world saw: a ledger of effects, and tools that write into it."""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from langgraph_durable.errors import ToolError
from langgraph_durable.runs import Effect
from langgraph_durable.testing.points import acting
from langgraph_durable.tools import CallInfo, ToolHub, ToolSpec

LedgerOutcome = Literal["read", "applied", "repeated", "failed", "stale"]

_TABLE = """
CREATE TABLE IF NOT EXISTS lines (
    id INTEGER PRIMARY KEY, what TEXT NOT NULL, arguments TEXT NOT NULL, key TEXT, token INTEGER,
    place TEXT NOT NULL, outcome TEXT NOT NULL, result TEXT
)"""
_HERE = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One call that arrived, and what came of it.

    `key` and `token` are what the other side was given; `place` is the step that called, or
    for `Ledger.act` the line of code.
    """

    id: int
    what: str
    arguments: Any
    key: str | None
    token: int | None
    place: str
    outcome: LedgerOutcome
    result: Any


class Ledger:
    """Every call that arrived. Like a good server it remembers keys and refuses stale tokens.

    With a path it is a file, and outlives processes that are killed.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._path = None if path is None else str(path)
        self._lock = threading.Lock()
        self._memory = None if path is not None else sqlite3.connect(":memory:", **_OPTIONS)
        with self._open() as db:
            db.execute(_TABLE)

    def act(
        self,
        what: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        token: int | None = None,
        result: Any = None,
    ) -> Any:
        """Have an effect, as a server would: a known key is answered with its first result.

        For code that calls no tool of a hub, such as a node in graph mode.

        Raises:
            ToolError: the key was used for other arguments, or the token is stale.
        """
        with acting(f"effect {what!r}"):
            line = self.enter(what, arguments or {}, key=key, token=token, place=_caller())
            if line.outcome == "repeated":
                return line.result
            self.leave(line, "applied", result)
            return result

    def enter(
        self,
        what: str,
        arguments: Mapping[str, Any],
        *,
        key: str | None,
        token: int | None,
        place: str,
    ) -> LedgerLine:
        """Take note of a call; its outcome is "repeated" if the key is known, else "failed" yet.

        Raises:
            ToolError: the key was used for other arguments, or the token is stale.
        """
        text = json.dumps(arguments, sort_keys=True, default=str)
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            known = _known(db, key)
            stale = _is_stale(db, key, token)
            repeated = known is not None and known[0] == text and not stale
            outcome = "stale" if stale else "repeated" if repeated else "failed"
            result = known[1] if known is not None and repeated else None
            number = db.execute(
                "INSERT INTO lines (what, arguments, key, token, place, outcome, result)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (what, text, key, token, place, outcome, result),
            ).lastrowid
            db.execute("COMMIT")
        if stale:
            raise ToolError(f"{what}: stale fencing token {token}; another worker has the run now")
        if known is not None and not repeated:
            raise ToolError(f"{what}: the key {key!r} was used for other arguments: {known[0]}")
        return _line((number, what, text, key, token, place, outcome, result))

    def leave(self, line: LedgerLine, outcome: LedgerOutcome, result: Any) -> None:
        """Write what came of a call."""
        text = json.dumps(result, default=str)
        with self._open() as db:
            db.execute(
                "UPDATE lines SET outcome = ?, result = ? WHERE id = ?", (outcome, text, line.id)
            )

    def lines(self) -> list[LedgerLine]:
        """Return every call that arrived, in order."""
        with self._open() as db:
            return [_line(row) for row in db.execute("SELECT * FROM lines ORDER BY id")]

    def effects(self) -> list[LedgerLine]:
        """Return the calls that changed something."""
        return [line for line in self.lines() if line.outcome == "applied"]

    def clear(self) -> None:
        """Forget everything."""
        with self._open() as db:
            db.execute("DELETE FROM lines")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            db = self._memory or sqlite3.connect(str(self._path), **_OPTIONS)
            try:
                yield db
            finally:
                if db is not self._memory:
                    db.close()

    def __del__(self) -> None:
        """Close what is open."""
        if getattr(self, "_memory", None) is not None:
            self._memory.close()  # type: ignore[union-attr]  # just looked


_OPTIONS: dict[str, Any] = {"check_same_thread": False, "isolation_level": None, "timeout": 30.0}


def _known(db: sqlite3.Connection, key: str | None) -> tuple[str, str] | None:
    if key is None:
        return None
    found: tuple[str, str] | None = db.execute(
        "SELECT arguments, result FROM lines WHERE key = ? AND outcome = 'applied'", (key,)
    ).fetchone()
    return found


def _is_stale(db: sqlite3.Connection, key: str | None, token: int | None) -> bool:
    if key is None or token is None:
        return False
    run_id = key.partition(":")[0]
    newest = db.execute(
        "SELECT max(token) FROM lines WHERE substr(key, 1, ?) = ?", (len(run_id) + 1, f"{run_id}:")
    ).fetchone()[0]
    return newest is not None and token < newest


def _line(row: Any) -> LedgerLine:
    id_, what, arguments, key, token, place, outcome, result = row
    decoded = None if result is None else json.loads(result)
    return LedgerLine(id_, what, json.loads(arguments), key, token, place, outcome, decoded)


def _caller() -> str:
    """Return file and line of the code that is not ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


class RecordingTools(ToolHub):
    """A hub whose tools leave a line in a ledger, and answer a known key with its first result.

    Tools of mounted servers are not recorded: those servers have ledgers of their own.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        super().__init__()
        self.ledger = ledger or Ledger()

    def _put(self, spec: ToolSpec, how: Any, takes: Any) -> ToolSpec:
        async def recorded(spec: ToolSpec, arguments: dict[str, Any], info: CallInfo) -> Any:
            return await self._recorded(how, spec, arguments, info)

        return super()._put(spec, recorded, takes)

    async def _recorded(
        self, how: Any, spec: ToolSpec, arguments: dict[str, Any], info: CallInfo
    ) -> Any:
        line = self.ledger.enter(
            spec.full_name,
            arguments,
            key=info.key_for_tool if spec.key_argument else None,
            token=info.fencing_token if spec.token_argument else None,
            place=f"step {info.key!r}",
        )
        if line.outcome == "repeated":
            return line.result
        result = await how(spec, arguments, info)
        self.ledger.leave(line, "read" if spec.effect is Effect.READ else "applied", result)
        return result
