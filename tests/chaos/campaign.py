"""One campaign on one database: set up, let things go wrong, let all end, count."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import checker, faults, ledger, records, report
from tests.chaos.clients import FINAL, Api, Customers, Deciders, Told
from tests.chaos.databases import Database, Sqlite, open_database
from tests.chaos.town import Town
from tests.faults.processes import Zygote

TABLES = (
    "runs", "steps", "questions", "events", "outbox", "chaos_moves", "chaos_writes", "chaos_answers",
)  # fmt: skip
MODULES = ("tests.chaos.agents", "tests.chaos.serve")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign is made of; the same again brings the same orders and faults."""

    db: str
    seed: int
    seconds: float  # of faults
    kills: int | None = None  # after so many it is over, even if it was not that long
    every: float = 0.5  # seconds between faults, on average
    workers: int = 3
    lease: float = 2.5
    backlog: int = 24  # orders under way
    patience: float = 240.0  # until everything has ended, after the faults


@dataclass(slots=True)
class Result:
    """What came of it."""

    plan: Plan
    versions: str
    counts: dict[str, int]
    violations: list[checker.Violation]
    shown: dict[str, Any]
    faults: dict[str, int]
    kills: int  # processes that were ended by SIGKILL
    landed: list[faults.Landed] = field(default_factory=list)
    absorbed: list[float] = field(default_factory=list)  # when a repeat met its key
    seconds_to_end: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether every count is zero."""
        return not self.violations

    def line(self) -> str:
        """Return one line of JSON."""
        said = {
            "db": self.plan.db, "seed": self.plan.seed, "seconds": self.plan.seconds,
            "kills": self.kills, "runs": self.shown["runs"], "violations": len(self.violations),
            "counts": self.counts, "shown": self.shown, "faults": self.faults,
        }  # fmt: skip
        return json.dumps(said)

    def data(self) -> dict[str, Any]:
        """Return everything, for the report."""
        return asdict(self)


def run(plan: Plan, folder: Path, zygote: Zygote) -> Result:
    """Carry one campaign out; processes and database are gone afterwards, the files stay."""
    database = open_database(plan.db, folder)
    try:
        town = Town(database, folder, zygote, plan.lease)
        try:
            return _carry_out(plan, database, town, folder)
        finally:
            town.close()
    finally:
        database.close()


def _carry_out(plan: Plan, database: Database, town: Town, folder: Path) -> Result:
    told = Told(folder / "told.jsonl")
    api = Api(town.api_port, town.keys)
    books = ledger.Client(town.ledger_port, "mei")
    customers = Customers(api, told, database, plan.seed, plan.backlog)
    deciders = Deciders(api, told, database, books, plan.seed)
    can_fill = isinstance(database, Sqlite) and database.can_fill
    chance = random.Random(f"{plan.seed}/skew")
    doing = faults.Faults(
        town,
        faults.plan(plan.db, plan.seed, plan.every, plan.lease, can_fill),
        plan.workers,
        (chance.choice(faults.SKEWS[plan.db]) for _ in itertools.count()),
    )
    began = time.time()
    customers.start()
    deciders.start()
    doing.run(plan.seconds, plan.kills)
    calm = time.monotonic()
    customers.stop()
    _until_all_ended(customers, deciders, doing, database, plan.patience)
    deciders.stop()
    deciders.join()
    told.close()
    calls = records.read_calls(town.ledger_path)
    found = checker.Findings(database.rows, calls, records.read_told(told.path))
    result = Result(
        plan=plan,
        versions=report.versions(),
        counts=found.counts(),
        violations=found.violations(),
        shown=_shown(found, customers, doing, database),
        faults=dict(doing.counts()),
        kills=doing.kills,
        landed=doing.landed,
        absorbed=_absorbed(town.ledger_path, began),
        seconds_to_end=round(time.monotonic() - calm, 1),
    )
    (folder / "result.json").write_text(json.dumps(result.data(), indent=1))
    if not result.is_clean:
        _keep(database, folder)
    return result


def _keep(database: Database, folder: Path) -> None:
    """Keep the rows that a violation is told by: the database itself goes."""
    for table in TABLES:
        rows = database.rows(f"SELECT * FROM {table}")
        (folder / f"{table}.jsonl").write_text(
            "".join(json.dumps(row, default=str) + "\n" for row in rows)
        )


def _until_all_ended(
    customers: Customers,
    deciders: Deciders,
    doing: faults.Faults,
    database: Database,
    patience: float,
) -> None:
    """Wait for customers, runs and messages; what has not ended then, the checker counts as lost."""
    until = time.monotonic() + patience
    runs = f"SELECT count(*) FROM runs WHERE status NOT IN {FINAL}"
    messages = "SELECT count(*) FROM outbox WHERE state = 'pending'"
    open_ = "SELECT count(*) FROM questions WHERE state = 'open'"  # reviews, after the end
    while time.monotonic() < until:
        doing.calm()
        customers.join(0.2)
        customers.check()
        deciders.check()
        if customers.is_alive():
            continue
        if not any(database.rows(query)[0][0] for query in (runs, messages, open_)):
            return


def _shown(
    found: checker.Findings, customers: Customers, doing: faults.Faults, database: Database
) -> dict[str, Any]:
    """Return what is worth knowing beside the counts: what was absorbed, refused, taken over."""
    statuses = Counter(run.status for run in found.runs.values())
    verdicts = Counter(f"{call.op} {call.verdict}" for call in found.calls)
    events = dict(database.rows("SELECT type, count(*) FROM events GROUP BY type"))
    told = Counter((said["op"], _sort(said["status"])) for said in found.told)
    asked = [question for run in found.runs.values() for question in run.questions]
    return {
        "orders": customers.ordered,
        "runs": len(found.runs),
        "in graph mode": sum(run.mode == "graph" for run in found.runs.values()),
        **{f"runs {status}": times for status, times in sorted(statuses.items())},
        "worker lives": len(doing.lives),
        "with a wrong clock": sum(skew != 0 for skew in doing.lives),
        "claims": events.get("run_claimed", 0) + events.get("run_taken_over", 0),
        "takeovers from a dead or frozen worker": events.get("run_taken_over", 0),
        "effects applied": len(found.effects),
        "effects undone": verdicts["undo applied"],
        "repeats absorbed by their key": verdicts["pay repeat"] + verdicts["undo repeat"],
        "stale calls refused": sum(n for what, n in verdicts.items() if what.endswith(" stale")),
        "probes and looks": verdicts["look seen"],
        "messages applied": verdicts["message applied"],
        "message repeats absorbed": verdicts["message repeat"],
        "questions": len(asked),
        "asked whether it happened": sum(question.kind == "outcome" for question in asked),
        "questions expired": sum(question.state == "expired" for question in asked),
        "decisions sent": sum(n for (op, _), n in told.items() if op == "decide"),
        "decisions refused, another stands": told["decide", "4xx"],
        "calls of the API without an answer": sum(
            n for (_, s), n in told.items() if s == "unknown"
        ),
    }


def _sort(status: int) -> str:
    if status == 0 or status >= 500:
        return "unknown"
    return "4xx" if status >= 400 else "2xx"


def _absorbed(path: Path, began: float) -> list[float]:
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT at FROM calls WHERE verdict = 'repeat' ORDER BY id")
        return [round(at - began, 2) for (at,) in rows]
