"""The world outside: a server of its own, which writes down every call before it answers.

It keeps the promises of a good receiver, and no others: a call with an idempotency key has
its effect once and a repeat gets the first answer; a token older than one that was seen for
the run is refused, also for a call without a key. A probe shows its token too: from then on
an older worker's late call is refused, or the answer "it did not happen" would be worth
nothing.

It is written with the standard library alone. One line of JSON comes, one goes; each call is
a row, committed with fsync.
"""

from __future__ import annotations

import json
import random
import socket
import socketserver
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 5.0
DAWDLE_SECONDS = 0.03  # at most, before a call, before its effect and after it: there kills hit

SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    id INTEGER PRIMARY KEY, at REAL, op TEXT, run_id TEXT, key TEXT, token INTEGER,
    order_id TEXT, part TEXT, amount INTEGER, verdict TEXT, who TEXT
)
"""


class Refused(RuntimeError):
    """The ledger has seen a later claim of this run."""


class Book:
    """The calls: applied, repeat (absorbed by its key), stale (refused), seen (changes nothing)."""

    def __init__(self, path: Path) -> None:
        self._guard = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(SCHEMA)
        self._db.execute("CREATE INDEX IF NOT EXISTS by_key ON calls (key)")
        self._db.execute("CREATE INDEX IF NOT EXISTS by_run ON calls (run_id, token)")
        self._db.execute("CREATE INDEX IF NOT EXISTS by_order ON calls (order_id, part)")

    def enter(self, call: dict[str, Any]) -> dict[str, Any]:
        """Judge a call, write it down, answer."""
        with self._guard:
            self._db.execute("BEGIN IMMEDIATE")
            verdict, amount = self._judge(call)
            self._db.execute(
                "INSERT INTO calls (at, op, run_id, key, token, order_id, part, amount, verdict, who)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    time.time(), call["op"], call.get("run_id"), call.get("key"), call.get("token"),
                    call.get("order"), call.get("part"), call.get("amount"), verdict, call.get("who"),
                ),
            )  # fmt: skip
            self._db.execute("COMMIT")
        return {"verdict": verdict, "amount": amount}

    def _judge(self, call: dict[str, Any]) -> tuple[str, int | None]:
        token = call.get("token")
        if token is not None:
            newest = self._one("SELECT max(token) FROM calls WHERE run_id = ?", call["run_id"])
            if newest is not None and token < newest:
                return "stale", None
        if call["op"] == "look":
            where = (
                "SELECT amount FROM calls WHERE order_id = ? AND part = ?"
                " AND verdict = 'applied' AND op <> 'undo'"
            )
            return "seen", self._one(where, call["order"], call["part"])
        if call["op"] == "read":
            return "seen", None
        if call.get("key") is not None:
            first = "SELECT amount FROM calls WHERE key = ? AND op = ? AND verdict = 'applied'"
            amount = self._one(first, call["key"], call["op"])
            if amount is not None:
                return "repeat", amount
        return "applied", call["amount"]

    def _one(self, query: str, *given: Any) -> Any:
        row = self._db.execute(query, given).fetchone()
        return row[0] if row else None


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


def serve(port: int, path: Path) -> None:
    """Answer until killed."""
    book = Book(path)

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            if not line.endswith(b"\n"):
                return  # the caller died while it spoke
            time.sleep(random.random() * DAWDLE_SECONDS)
            answer = book.enter(json.loads(line))
            time.sleep(random.random() * DAWDLE_SECONDS)
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    with _Server(("127.0.0.1", port), Answer) as server:
        server.serve_forever(poll_interval=0.05)


class Client:
    """Calls the ledger; a connection for each call, and no second try."""

    def __init__(self, port: int, who: str) -> None:
        self._address, self._who = ("127.0.0.1", port), who

    def call(self, op: str, **given: Any) -> dict[str, Any]:
        """Make one call.

        Raises:
            OSError: no answer came; whether it had an effect is not known.
            Refused: the token is stale.
        """
        line = json.dumps({"op": op, "who": self._who, **given}).encode() + b"\n"
        time.sleep(random.random() * DAWDLE_SECONDS)  # who is frozen here sends a stale call
        with socket.create_connection(self._address, PATIENCE_SECONDS) as connection:
            connection.sendall(line)
            with connection.makefile("rb") as answers:
                said = answers.readline()
        if not said.endswith(b"\n"):
            raise ConnectionError("the ledger went away before it answered")
        answer: dict[str, Any] = json.loads(said)
        if answer["verdict"] == "stale":
            raise Refused(f"{op} of run {given.get('run_id')}: token {given.get('token')} is stale")
        return answer


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
