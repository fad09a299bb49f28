"""What is left after a campaign, as it was written: rows of the database, of the ledger, of clients."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.orders import KINDS

Rows = Callable[[str], list[tuple[Any, ...]]]
EFFECTS = ("pay", "post")  # the operations of the ledger that change the world


@dataclass(slots=True)
class Run:
    """A row of runs, with what belongs to it."""

    id: str
    order: str
    kind: str
    mode: str
    thread: str
    status: str
    epoch: int
    output: Any
    error: str
    steps: dict[str, Step] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)

    def act_of(self, part: str) -> int:
        """Return the number of the act that made a part."""
        acts = KINDS[self.kind]
        return next(i for i, act in enumerate(acts) if part in act.partition(":")[2].split(","))


@dataclass(frozen=True, slots=True)
class Step:
    """A row of steps."""

    key: str
    kind: str
    name: str
    state: str
    refused: bool
    approval: str | None


@dataclass(frozen=True, slots=True)
class Question:
    """A row of questions."""

    id: str
    run_id: str
    key: str
    kind: str
    payload: Any
    digest: str
    state: str
    decision: Any
    by: str | None
    approval: str | None

    @property
    def part(self) -> str:
        """The part of the order that it is about."""
        asked = self.payload.get("arguments", self.payload)
        return str(asked.get("part", "?"))


@dataclass(frozen=True, slots=True)
class Call:
    """A row of the ledger."""

    op: str
    run_id: str
    key: str | None
    token: int | None
    order: str
    part: str
    amount: int | None
    verdict: str

    @property
    def is_effect(self) -> bool:
        """Whether it changed the world."""
        return self.op in EFFECTS and self.verdict == "applied"


def read_runs(rows: Rows) -> list[Run]:
    found: dict[str, Run] = {}
    query = (
        "SELECT id, idempotency_key, agent, mode, thread, status, epoch, output, error FROM runs"
    )
    for id_, order, agent, mode, thread, status, epoch, output, error in rows(query):
        kind = agent.partition(".")[0]
        assert kind in KINDS, f"run {id_} is of {agent}, which is no kind of order"
        found[id_] = Run(
            id_, order, kind, mode, thread, status, epoch,
            json.loads(output) if output else None, error or "",
        )  # fmt: skip
    query = "SELECT run_id, key, kind, name, state, value, approval_id FROM steps"
    for run_id, key, kind, name, state, value, approval in rows(query):
        refused = bool(value) and '"Refused"' in value
        if run_id in found:  # if not, the run is lost, and is counted as that
            found[run_id].steps[key] = Step(key, kind, name, state, refused, approval)
    query = (
        "SELECT id, run_id, key, kind, payload, digest, state, decision, decided_by, approval_id"
        " FROM questions ORDER BY asked_at"
    )
    for id_, run_id, key, kind, payload, digest, state, decision, by, approval in rows(query):
        decided = json.loads(decision) if decision else None
        question = Question(
            id_, run_id, key, kind, json.loads(payload), digest, state, decided, by, approval
        )
        if run_id in found:
            found[run_id].questions.append(question)
    return list(found.values())


def read_lineage(rows: Rows) -> list[tuple[str, str, str]]:
    """Return (thread, namespace, parent) of each checkpoint that has a parent."""
    return [
        (thread, ns, parent)
        for thread, ns, parent in rows(
            "SELECT thread_id, checkpoint_ns, parent_checkpoint_id FROM checkpoints"
            " WHERE parent_checkpoint_id IS NOT NULL"
        )
    ]


def read_calls(ledger: Path) -> list[Call]:
    """Return what the ledger wrote down, in order."""
    with sqlite3.connect(ledger) as db:
        return [
            Call(*row)
            for row in db.execute(
                "SELECT op, run_id, key, token, order_id, part, amount, verdict FROM calls ORDER BY id"
            )
        ]


def read_told(path: Path) -> list[dict[str, Any]]:
    """Return what clients were told, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()]
