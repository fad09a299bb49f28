"""python -m supportpilot.verdicts: park, kill, resume, click again; five verdicts.

Each verdict is read from the runtime's database and the billing system's ledger. What could
not be carried out is reported as that, and never as a verdict.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from langgraph_durable import Decision, Status
from supportpilot.build import STEPS_MODE, make
from supportpilot.demo.processes import Billing, DemoFailed, WorkerProcess, billing, until
from supportpilot.settings import Settings

TENANT = "t_acme"
CUSTOMER = "c_42"
AMOUNT = 4_200
TICKET = "上个月年付扣了两次,退一笔"
OTHER_TICKET = "Please refund invoice inv_42_02 as well."
FIRST_WORKER, SECOND_WORKER = "w1", "w2"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence, and whether it is true."""

    sentence: str
    holds: bool
    seen: str


class Check:
    """A run on its way, with real workers, and what can be seen of it from outside."""

    def __init__(self, folder: Path, system: Billing, agent: str) -> None:
        self.folder, self.system, self.agent = folder, system, agent
        self.url = f"sqlite:///{folder / 'durable.db'}"
        self.durable = make(Settings(database_url=self.url, billing_url=system.url))
        self.run_id = ""

    def seen_elsewhere(self) -> list[str]:
        """Return what waits for a person, as another process reads it: run and key."""
        command = [sys.executable, "-m", "langgraph_durable.cli", "questions", "list", "--json"]
        command += ["--db", self.url, "--tenant", TENANT]
        told = subprocess.run(command, capture_output=True, text=True)
        if told.returncode != 0:
            raise DemoFailed(f"the second process could not look: {told.stderr}")
        found = json.loads(told.stdout)
        return [q["key"] for q in found if q["run_id"] == self.run_id and q["state"] == "open"]

    def worker(self, name: str) -> WorkerProcess:
        environment = {
            "SUPPORTPILOT_DATABASE_URL": self.url,
            "SUPPORTPILOT_BILLING_URL": self.system.url,
        }
        return WorkerProcess(name, self.folder, environment)

    def submit(self, ticket: str) -> None:
        state = {"ticket": ticket, "customer_id": CUSTOMER}
        self.run_id = self.durable.submit(self.agent, state, tenant=TENANT)

    def until(self, status: Status, worker: WorkerProcess) -> None:
        until(f"the run is {status.value}", lambda: self.status is status, worker)

    @property
    def status(self) -> Status:
        return self.durable.get(self.run_id, TENANT).status

    @property
    def asks(self) -> list[str]:
        """The calls that wait for a person, by their keys."""
        calls = self.durable.parked(TENANT)
        return [c.tool_call_id for c in calls if c.reply_id == self.run_id and c.state == "asking"]

    @property
    def ledger(self) -> list[int]:
        return [row.amount_cents for row in self.system.store.refunds()]

    def seen(self) -> str:
        return f"run {self.status.value}, asking {self.asks}, ledger {self.ledger}"

    def question_id(self) -> str:
        (question,) = self.durable.questions(run_id=self.run_id, tenant=TENANT)
        return question.id


def verdicts(check: Check) -> Iterator[Verdict]:
    """Carry the check out; each verdict comes when what it is about has happened.

    Raises:
        DemoFailed: a process did not do what the next verdict needs.
    """
    check.submit(TICKET)
    first = check.worker(FIRST_WORKER)
    try:
        check.until(Status.WAITING_HUMAN, first)
        holds = len(check.asks) == 1 and check.ledger == []
        yield Verdict("asks, with an empty ledger", holds, check.seen())
    finally:
        first.kill()
    elsewhere = check.seen_elsewhere()
    holds = check.status is Status.WAITING_HUMAN and len(elsewhere) == 1 and check.ledger == []
    seen = f"a second process reads {elsewhere}, ledger {check.ledger}"
    yield Verdict("still asks after the kill, read by a second process", holds, seen)
    question_id = check.question_id()
    check.durable.decide(question_id, Decision.approve("mei"), tenant=TENANT)
    second = check.worker(SECOND_WORKER)
    try:
        check.until(Status.SUCCEEDED, second)
        paid = check.ledger == [AMOUNT]
        yield Verdict(f"one row of {AMOUNT:,} cents after the approval", paid, check.seen())
        for _ in range(2):
            check.durable.decide(question_id, Decision.approve("mei"), tenant=TENANT)
        still = check.ledger == [AMOUNT] and check.status is Status.SUCCEEDED
        yield Verdict("two more clicks, still one row", still, check.seen())
        yield _refusal(check, second)
    finally:
        second.stop()


def _refusal(check: Check, worker: WorkerProcess) -> Verdict:
    """Refuse another ticket of the same customer."""
    check.submit(OTHER_TICKET)
    check.until(Status.WAITING_HUMAN, worker)
    refused = check.question_id()
    check.durable.decide(refused, Decision.reject("mei", "credited already"), tenant=TENANT)
    check.until(Status.SUCCEEDED, worker)
    output = check.durable.get(check.run_id, TENANT).output
    told = isinstance(output, dict) and "credited already" in str(output.get("reply"))
    holds = check.ledger == [AMOUNT] and check.asks == [] and told
    return Verdict("a refusal is final, and still one row", holds, check.seen())


def main(
    agent: Annotated[str, typer.Option(help="support.v1 or support.v2.")] = STEPS_MODE,
    folder: Annotated[Path | None, typer.Option(help="Keep files and logs here.")] = None,
) -> None:
    """Print five verdicts; exit with 1 if one is false, with 2 if not all could be reached."""
    false = 0
    with tempfile.TemporaryDirectory(prefix="langgraph-durable-verdicts-") as temporary:
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        try:
            with billing(place) as system:
                for number, verdict in enumerate(verdicts(Check(place, system, agent)), start=1):
                    false += not verdict.holds
                    word = "holds" if verdict.holds else "FALSE"
                    print(f"{number}. {word}: {verdict.sentence} ({verdict.seen})", flush=True)
        except DemoFailed as failure:
            print(f"The check stopped, and says nothing of the rest: {failure}", file=sys.stderr)
            raise typer.Exit(2) from failure
    if false:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
