"""One ticket from submit to reply, with or without kills on the way."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from langgraph_durable import Decision, Durable, Run, Status
from supportpilot.billing.records import Call, LedgerRow
from supportpilot.build import GRAPH_MODE, STEPS_MODE, make
from supportpilot.demo.processes import Billing, WorkerProcess, billing, until
from supportpilot.settings import Settings

Mode = Literal["graph", "steps"]
AGENTS: Mapping[Mode, str] = {"graph": GRAPH_MODE, "steps": STEPS_MODE}
TENANT = "t_acme"
TICKET = {"ticket": "上个月年付扣了两次,退一笔", "customer_id": "c_42"}
SUPERVISOR = "mei"


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker that was killed, and what ended it according to the kernel."""

    worker: str
    at: datetime
    signal: int
    moment: str


@dataclass(frozen=True, slots=True)
class Story:
    """What is left of a story once it has ended: all of it read back, nothing assumed."""

    mode: Mode
    run: Run
    events: Sequence[Any]
    journal: Sequence[Any]
    model_calls: Sequence[Mapping[str, Any]]
    billing_calls: Sequence[Call]
    ledger: Sequence[LedgerRow]
    kills: Sequence[Kill]
    workers: Mapping[int, str]  # pid -> name
    clicks: Sequence[datetime]  # when the supervisor clicked approve

    @property
    def ignored_clicks(self) -> Sequence[datetime]:
        """The clicks that came when the question was decided already."""
        decided = sum(event.type == "question_decided" for event in self.events)
        return self.clicks[decided:]


@dataclass(slots=True)
class _Stage:
    """What a story needs while it runs."""

    durable: Durable
    billing: Billing
    folder: Path
    environment: Mapping[str, str]
    kills: list[Kill] = field(default_factory=list)
    workers: list[WorkerProcess] = field(default_factory=list)
    clicks: list[datetime] = field(default_factory=list)

    def start_worker(self) -> WorkerProcess:
        worker = WorkerProcess(f"worker-{len(self.workers) + 1}", self.folder, self.environment)
        self.workers.append(worker)
        return worker

    def kill(self, worker: WorkerProcess, moment: str) -> None:
        signalled = worker.kill()
        self.kills.append(Kill(worker.name, datetime.now(UTC), signalled, moment))

    def approve(self, question_id: str) -> None:
        self.durable.decide(question_id, Decision.approve(by=SUPERVISOR))
        self.clicks.append(datetime.now(UTC))

    def called(self, tool: str) -> int:
        return sum(call.tool == tool for call in self.billing.store.calls())


def without_kills(mode: Mode, database_url: str, folder: Path) -> Story:
    """The control: the same ticket, one worker from beginning to end."""
    with _stage(database_url, folder) as stage:
        run_id = _submit(stage, mode)
        worker = stage.start_worker()
        stage.approve(_question(stage, run_id, worker))
        _ended(stage, run_id, worker)
        return _read_back(stage, mode, run_id)


def with_kills(mode: Mode, database_url: str, folder: Path) -> Story:
    """The experiment: three workers die, each at another moment; a fourth ends the run."""
    with _stage(database_url, folder) as stage:
        run_id = _submit(stage, mode)

        # The billing system has answered, and the worker doesn't know it yet.
        stage.billing.hold("list_invoices")
        worker = stage.start_worker()
        until("the invoices are listed", lambda: stage.called("list_invoices") == 1, worker)
        stage.kill(worker, "after the classification, while it waits for the invoices")
        stage.billing.release("list_invoices")

        worker = stage.start_worker()
        question_id = _question(stage, run_id, worker)
        stage.kill(worker, "while the run is parked and waits for a person")

        # The ledger has its row, and the worker doesn't know it yet.
        stage.approve(question_id)
        stage.billing.hold("create_refund")
        worker = stage.start_worker()
        until("the refund is in the ledger", lambda: bool(stage.billing.store.refunds()), worker)
        stage.kill(worker, "after the refund's effect, before its record")
        stage.approve(question_id)  # the supervisor sees nothing happen, and clicks again
        stage.billing.release("create_refund")

        worker = stage.start_worker()
        _ended(stage, run_id, worker)
        return _read_back(stage, mode, run_id)


@contextmanager
def _stage(database_url: str, folder: Path) -> Iterator[_Stage]:
    folder.mkdir(parents=True)
    with billing(folder) as running:
        settings = Settings(
            database_url=database_url, billing_url=running.url, calls=folder / "model_calls"
        )
        environment = {
            "SUPPORTPILOT_DATABASE_URL": settings.database_url,
            "SUPPORTPILOT_BILLING_URL": settings.billing_url,
            "SUPPORTPILOT_CALLS": str(settings.calls),
        }
        stage = _Stage(make(settings), running, folder, environment)
        try:
            yield stage
        finally:
            for worker in stage.workers:
                worker.stop()


def _submit(stage: _Stage, mode: Mode) -> str:
    return stage.durable.submit(
        AGENTS[mode], TICKET, tenant=TENANT, idempotency_key=f"ticket-42-{mode}"
    )


def _question(stage: _Stage, run_id: str, worker: WorkerProcess) -> str:
    def is_parked() -> bool:
        return stage.durable.get(run_id, tenant=TENANT).status is Status.WAITING_HUMAN

    until("the run asks for approval", is_parked, worker)
    return stage.durable.get(run_id, tenant=TENANT).questions[0].id


def _ended(stage: _Stage, run_id: str, worker: WorkerProcess) -> None:
    until("the run has ended", lambda: stage.durable.get(run_id).status.is_final, worker)


def _read_back(stage: _Stage, mode: Mode, run_id: str) -> Story:
    calls = stage.folder / "model_calls"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return Story(
        mode=mode,
        run=stage.durable.get(run_id, tenant=TENANT),
        events=stage.durable.events(run_id),
        journal=stage.durable.journal(run_id),
        model_calls=[json.loads(line) for line in lines],
        billing_calls=stage.billing.store.calls(),
        ledger=stage.billing.store.refunds(),
        kills=[kill for kill in stage.kills if kill.signal == signal.SIGKILL],
        workers={worker.pid: worker.name for worker in stage.workers},
        clicks=stage.clicks,
    )
