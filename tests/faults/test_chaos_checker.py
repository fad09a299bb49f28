"""The checker of the chaos campaign counts what is planted: one that can't fail proves nothing."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos import witness
from tests.chaos.checker import COUNTED, Findings
from tests.chaos.orders import AMOUNT, KINDS, VERBS, order, parts
from tests.chaos.records import Call
from tests.faults.processes import ROOT

TABLES = """
CREATE TABLE runs (id TEXT, idempotency_key TEXT, agent TEXT, mode TEXT, thread TEXT, status TEXT,
    epoch INTEGER, output TEXT, error TEXT);
CREATE TABLE steps (run_id TEXT, key TEXT, kind TEXT, name TEXT, state TEXT, value TEXT,
    approval_id TEXT, epoch INTEGER);
CREATE TABLE questions (id TEXT, run_id TEXT, key TEXT, kind TEXT, payload TEXT, digest TEXT,
    state TEXT, decision TEXT, decided_by TEXT, approval_id TEXT, asked_at TEXT);
CREATE TABLE outbox (id INTEGER PRIMARY KEY, run_id TEXT, key TEXT, state TEXT);
CREATE TABLE events (id INTEGER PRIMARY KEY, run_id TEXT, type TEXT, data TEXT);
CREATE TABLE signals (run_id TEXT, id TEXT, taken_by TEXT);
CREATE TABLE checkpoints (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT,
    parent_checkpoint_id TEXT);
"""
YES = {"choice": "approve", "by": "mei", "reason": "", "arguments": None, "value": None}


class World:
    """A database, a ledger and answers, written by hand: two orders that went well."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.db.executescript(TABLES)
        self.db.executescript(witness.sqlite())
        self.calls: list[Call] = []
        self.told: list[dict[str, Any]] = []
        self._ask_and_pay()
        self._tell()

    def do(self, *statements: str) -> None:
        for statement in statements:
            self.db.execute(statement)

    def _run(self, id_: str, kind: str, lines: list[str]) -> None:
        output = json.dumps({"order": f"o-{id_}", "results": lines})
        self.db.execute(
            "INSERT INTO runs VALUES (?, ?, ?, 'graph', ?, 'queued', 0, ?, NULL)",
            (id_, f"o-{id_}", f"{kind}.graph", id_, output),
        )
        self._event(id_, "run_submitted")
        self.told.append(
            {"op": "submit", "status": 201, "order": f"o-{id_}", "kind": kind, "run_id": id_}
        )

    def move(self, id_: str, status: str, event: str, epochs: int = 0) -> None:
        self.db.execute(
            "UPDATE runs SET status = ?, epoch = epoch + ? WHERE id = ?", (status, epochs, id_)
        )
        self._event(id_, event)

    def _event(self, id_: str, type_: str, **data: Any) -> None:
        self.db.execute(
            "INSERT INTO events (run_id, type, data) VALUES (?, ?, ?)",
            (id_, type_, json.dumps(data)),
        )

    def step(self, id_: str, key: str, name: str, epoch: int, approval: str | None = None) -> None:
        self.db.execute(
            "INSERT INTO steps VALUES (?, ?, 'tool', ?, 'recorded', ?, ?, ?)",
            (id_, key, name, str(AMOUNT), approval, epoch),
        )

    def paid(self, id_: str, part: str, token: int) -> None:
        key = f"{id_}:{part}"
        self.calls.append(Call("pay", id_, key, token, f"o-{id_}", part, AMOUNT, "applied"))

    def _ask_and_pay(self) -> None:
        """Kind "ask": a charge that a person approves, then a payment; a takeover between."""
        self._run("r1", "ask", [f"a={AMOUNT}", f"b={AMOUNT}"])
        self.move("r1", "running", "run_claimed", 1)
        asked = json.dumps({"order": "o-r1", "part": "a", "amount": AMOUNT})
        self.db.execute(
            "INSERT INTO questions VALUES ('q1', 'r1', 'a', 'tool', ?, 'd1', 'open', NULL, NULL,"
            " NULL, '1')",
            (asked,),
        )
        self.move("r1", "waiting_human", "run_parked")
        self.db.execute(
            "UPDATE questions SET state = 'decided', decision = ?, decided_by = 'mei',"
            " approval_id = 'y1' WHERE id = 'q1'",
            (json.dumps(YES),),
        )
        self._event("r1", "question_decided", question_id="q1")
        said = {"op": "decide", "question": "q1", "run_id": "r1", "by": "mei", "detail": None}
        self.told.append({**said, "status": 200, "said": {"choice": "approve"}})
        self.told.append({**said, "status": 409, "said": {"choice": "reject"}, "by": "tom"})
        self.move("r1", "queued", "run_resumed")
        self.move("r1", "running", "run_claimed", 1)
        self.paid("r1", "a", 2)
        self.step("r1", "a", "local.charge", 2, "y1")
        self.move("r1", "running", "run_taken_over", 1)
        self.paid("r1", "b", 3)
        self.step("r1", "b", "local.pay", 3)
        self.do(
            "INSERT INTO checkpoints VALUES ('r1', '', 'c1', NULL)",
            "INSERT INTO checkpoints VALUES ('r1', '', 'c2', 'c1')",
        )
        self.move("r1", "succeeded", "run_succeeded")

    def _tell(self) -> None:
        """Kind "tell": three messages, the second with a payment."""
        self._run("r2", "tell", [f"b={AMOUNT}"])
        self.move("r2", "running", "run_claimed", 1)
        self.paid("r2", "b", 1)
        self.step("r2", "b", "local.pay", 1)
        for part in "abc":
            self.do(f"INSERT INTO outbox (run_id, key, state) VALUES ('r2', '{part}', 'delivered')")
            self.calls.append(Call("message", "r2", f"r2:{part}", None, "o-r2", part, 0, "applied"))
        self.move("r2", "succeeded", "run_succeeded")

    def cancel(self, status: str, answer: int) -> None:
        """Let a third order be cancelled by a client."""
        self._run("r3", "pay", [])
        self.move("r3", status, f"run_{status}")
        self.told.append({"op": "cancel", "status": answer, "run_id": "r3", "now": None})

    def hear(self, *kept: str) -> None:
        """Let a fifth order hear two signals, one after the other; these are the rows left."""
        self._run("r6", "hear", ["a=a", f"b={AMOUNT}", "c=c"])
        self.move("r6", "running", "run_claimed", 1)
        self.paid("r6", "b", 1)
        self.step("r6", "b", "local.pay", 1)
        self.move("r6", "succeeded", "run_succeeded")
        for part in "ac":
            self.told.append({"op": "signal", "status": 200, "run_id": "r6", "part": part})
        for part in kept:
            self.do(f"INSERT INTO signals VALUES ('r6', '{part}', '{part}')")

    def broken(self, undone: str) -> None:
        """Let a fourth order fail, and these parts of it be undone, in this order."""
        self._run("r4", "broken", [])
        self.move("r4", "running", "run_claimed", 1)
        for part in "abc":
            self.paid("r4", part, 1)
            self.step("r4", part, "local.book", 1)
        self.move("r4", "queued", "run_compensating")
        self.move("r4", "running", "run_claimed", 1)
        for part in undone:
            key = f"r4:compensate:{part}"
            self.calls.append(Call("undo", "r4", key, 2, "o-r4", part, AMOUNT, "applied"))
        self.move("r4", "failed", "run_failed")

    def counts(self) -> dict[str, int]:
        found = Findings(lambda query: self.db.execute(query).fetchall(), self.calls, self.told)
        return {kind: times for kind, times in found.counts().items() if times}


def _again(world: World, op: str, /, **changed: Any) -> None:
    call = next(call for call in world.calls if call.op == op)
    world.calls.append(replace(call, **changed))


def _first(world: World, op: str, /, **changed: Any) -> None:
    at = next(i for i, call in enumerate(world.calls) if call.op == op)
    world.calls[at] = replace(world.calls[at], **changed)


def _drop(world: World, op: str) -> None:
    world.calls.remove(next(call for call in world.calls if call.op == op))


PLANTED: dict[str, tuple[str, Any]] = {
    "paid twice under two keys": ("duplicated effect", lambda w: _again(w, "pay", key="r1:other")),
    "paid twice under one key": ("duplicated effect", lambda w: _again(w, "pay")),
    "posted twice, without a key": (
        "duplicated effect", lambda w: [_again(w, "pay", op="post", key=None, part="z") for _ in "12"],
    ),
    "an effect whose step is gone": (
        "effect without a record", lambda w: w.do("DELETE FROM steps WHERE key = 'b'"),
    ),
    "an effect whose step is an intent": (
        "effect without a record", lambda w: w.do("UPDATE steps SET state = 'intent'"),
    ),
    "a record and nothing in the ledger": ("record without an effect", lambda w: _drop(w, "pay")),
    "less than was approved": ("wrong effect", lambda w: _first(w, "pay", amount=1)),
    "paid though a person refused": (
        "wrong effect",
        lambda w: w.do("UPDATE questions SET decision = json_set(decision, '$.choice', 'reject')"),
    ),
    "of no run": ("wrong effect", lambda w: _again(w, "pay", run_id="r9", key="k", order="o-9")),
    "nothing was paid": ("missing effect", lambda w: _drop(w, "pay")),
    "a signal that is gone": ("lost signal", lambda w: w.hear("a")),
    "a signal, twice": ("lost signal", lambda w: w.hear("a", "a", "c")),
    "a signal that nobody took": (
        "lost signal", lambda w: [w.hear("a", "c"), w.do("UPDATE signals SET taken_by = NULL")],
    ),
    "a booking that stands": ("effect not undone", lambda w: w.broken("cb")),
    "the first undone first": ("undone out of order", lambda w: w.broken("abc")),
    "undone twice": ("duplicated effect", lambda w: w.broken("cbaa")),
    "undone, and never done": (
        "wrong effect", lambda w: [w.broken("cba"), w.calls.remove(w.calls[-6])],
    ),
    "an order that can't succeed": ("failed run", lambda w: w._run("r5", "broken", []) or [
        w.move("r5", "running", "run_claimed", 1), w.move("r5", "succeeded", "run_succeeded"),
    ]),
    "a run that is gone": (
        "lost run", lambda w: w.do("DELETE FROM runs WHERE id = 'r2'"),
    ),
    "a run that never ends": ("lost run", lambda w: w.move("r1", "sleeping", "run_slept")),
    "one order, two runs": (
        "doubled run", lambda w: w.do(
            "INSERT INTO runs SELECT 'r8', idempotency_key, agent, mode, thread, status, epoch, output,"
            " error FROM runs WHERE id = 'r1'"
        ),
    ),
    "two runs were told": (
        "doubled run", lambda w: w.told.append({**w.told[0], "run_id": "r7"}),
    ),
    "a run that failed": ("failed run", lambda w: w.do("UPDATE runs SET status = 'failed'")),
    "a line too many": (
        "wrong result", lambda w: w.do("UPDATE runs SET output = '{\"results\": [\"a=1\"]}'"),
    ),
    "an accepted decision that isn't there": (
        "lost decision", lambda w: w.do("UPDATE questions SET state = 'open', decision = NULL"),
    ),
    "another decision stands": (
        "lost decision",
        lambda w: w.do("UPDATE questions SET decision = json_set(decision, '$.choice', 'edit')"),
    ),
    "a question that is gone": ("lost decision", lambda w: w.do("DELETE FROM questions")),
    "a yes that did nothing": (
        "lost decision", lambda w: w.do("UPDATE steps SET approval_id = NULL"),
    ),
    "decided twice": (
        "doubled decision", lambda w: w._event("r1", "question_decided", question_id="q1"),
    ),
    "an answer that changed": (
        "doubled decision",
        lambda w: w.do("UPDATE questions SET decision = json_set(decision, '$.by', 'tom')"),
    ),
    "refused, and nothing stood in the way": (
        "unfounded refusal",
        lambda w: w.told.append({**w.told[1], "status": 409}),
    ),
    "a cancel that was accepted": ("lost cancel", lambda w: w.cancel("succeeded", 200)),
    "a cancel that was refused": ("unfounded refusal", lambda w: w.cancel("cancelled", 409)),
    "back from the end": (
        "forbidden transition", lambda w: w.move("r1", "running", "run_claimed", 1),
    ),
    "queued to succeeded": ("forbidden transition", lambda w: w.cancel("succeeded", 409)),
    "a move that the audit lacks": (
        "gap in the audit", lambda w: w.do("DELETE FROM events WHERE type = 'run_parked'"),
    ),
    "a decision that the audit lacks": (
        "gap in the audit", lambda w: w.do("DELETE FROM events WHERE type = 'question_decided'"),
    ),
    "a step of an old epoch": ("write by a stale epoch", lambda w: w.step("r1", "x", "read", 1)),
    "a step after the end": ("write by a stale epoch", lambda w: w.step("r1", "x", "read", 3)),
    "an epoch that went back": (
        "write by a stale epoch", lambda w: w.do("UPDATE runs SET epoch = 1 WHERE id = 'r1'"),
    ),
    "an old token that was let through": (
        "write by a stale epoch", lambda w: _again(w, "pay", token=1, part="z", key="r1:z"),
    ),
    "a recorded step written again": (
        "recorded step rewritten", lambda w: w.do("UPDATE steps SET value = '7' WHERE key = 'b'"),
    ),
    "the same question again": (
        "question asked twice",
        lambda w: w.do(
            "INSERT INTO questions SELECT 'q2', run_id, key, kind, payload, digest, 'closed', NULL,"
            " NULL, NULL, '2' FROM questions"
        ),
    ),
    "one approval, two steps": (
        "approval used twice", lambda w: w.do("UPDATE steps SET approval_id = 'y1'"),
    ),
    "an approval of nobody": (
        "approval used twice", lambda w: w.do("UPDATE steps SET approval_id = 'y9' WHERE key = 'b'"),
    ),
    "a message that waits": (
        "lost message", lambda w: w.do("UPDATE outbox SET state = 'pending' WHERE key = 'c'"),
    ),
    "delivered, they say": ("lost message", lambda w: _drop(w, "message")),
    "never sent": (
        "lost message", lambda w: w.do("DELETE FROM outbox WHERE key = 'a'"),
    ),
    "a message from nowhere": (
        "message without a row", lambda w: _again(w, "message", key="r2:x"),
    ),
    "the second before the first": (
        "message out of order", lambda w: w.calls.insert(0, w.calls.pop(-1)),
    ),
    "two checkpoints behind one": (
        "forked checkpoint", lambda w: w.do("INSERT INTO checkpoints VALUES ('r1', '', 'c3', 'c1')"),
    ),
}  # fmt: skip


def test_what_went_well_counts_nothing() -> None:
    world = World()
    assert world.counts() == {}
    world.hear("a", "c")
    world.broken("bca")  # b and c were made side by side
    assert world.counts() == {}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_counted(planted: str) -> None:
    kind, plant = PLANTED[planted]
    world = World()
    plant(world)
    assert world.counts().get(kind, 0) >= 1


def test_each_count_has_a_planted_violation() -> None:
    assert {kind for kind, _ in PLANTED.values()} == set(COUNTED)


def test_the_checker_knows_nothing_of_the_product() -> None:
    look = "import sys, tests.chaos.checker, tests.chaos.ledger; print(*sys.modules, sep='\\n')"
    modules = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "tests.chaos.records" in modules
    assert not [name for name in modules if name.startswith(("langgraph", "sqlalchemy"))]


def test_orders_are_the_same_for_a_seed() -> None:
    assert [order(1, n) for n in range(50)] == [order(1, n) for n in range(50)]
    assert {order(1, n).kind for n in range(200)} == set(KINDS)


def test_each_act_is_of_a_known_verb() -> None:
    assert {verb for kind in KINDS for verb, _ in parts(kind)} <= set(VERBS)
