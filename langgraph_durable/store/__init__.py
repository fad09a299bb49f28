"""RunStore: each public method is one transaction, and keeps one promise.

All state of the runtime is here. A method that meets a dropped connection, a locked
SQLite file or a deadlock tries again for a bounded time; each is written so that a second
try after a commit whose answer was lost changes nothing more.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from langgraph_durable.clock import Clock
from langgraph_durable.errors import (
    BadInput,
    Conflict,
    DurableError,
    IllegalMove,
    LeaseLost,
    NotFound,
    StoreError,
)
from langgraph_durable.redaction import Redaction
from langgraph_durable.runs import (
    COMPENSATE,
    FINAL,
    Asked,
    Broke,
    Cancelled,
    Decision,
    Done,
    Drained,
    Event,
    Lease,
    Outcome,
    Question,
    QuestionState,
    Replayed,
    Retried,
    Retry,
    Run,
    Signal,
    Slept,
    StandingRule,
    Status,
    Step,
    Unwound,
)
from langgraph_durable.store import (
    encryption,
    events,
    health,
    keys,
    outbox,
    questions,
    queue,
    retention,
    rows,
    rules,
    schema,
    signals,
    steps,
    unwinding,
    waiting,
)
from langgraph_durable.store.engine import open_engine, prepare
from langgraph_durable.store.health import Complaint, Parked, Stats
from langgraph_durable.store.kept import KeptConnections
from langgraph_durable.store.keys import ApiKey, NewKey
from langgraph_durable.store.locks import lock
from langgraph_durable.store.migrate import check_schema, upgrade
from langgraph_durable.store.outbox import Letters, Message
from langgraph_durable.store.questions import Inbox
from langgraph_durable.store.queue import Ending, NewRun, Page, Served
from langgraph_durable.store.rows import Codec
from langgraph_durable.store.signals import NewSignal
from langgraph_durable.store.steps import Used, Write
from langgraph_durable.store.timeline import Timeline
from langgraph_durable.store.wakeups import Wakeups, notify
from langgraph_durable.values import Types, clean_text

__all__ = [
    "Claim",
    "Complaint",
    "Ending",
    "Inbox",
    "Journaled",
    "Letters",
    "Message",
    "NewRun",
    "NewSignal",
    "Page",
    "Parked",
    "RunStore",
    "Served",
    "Stats",
    "Used",
    "Wakeups",
    "Write",
    "open_engine",
]

log = logging.getLogger(__name__)
T = TypeVar("T")

PATIENCE_SECONDS = 20.0
SHORT_SECONDS = 1.0  # for what a worker does again and again by itself, and must be able to leave
MAX_CLAIMS = 64  # statements kept; one a worker and what it serves
CLAIM_TRIES = 10  # collisions on a thread in a row; after them the worker polls


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that this worker owns now."""

    run: Run
    lease: Lease
    asked: int  # questions that the run ever put
    has_rules: bool = False  # decisions made rules for its tenant


@dataclass(frozen=True, slots=True)
class Journaled:
    """What a pass starts from: the recorded steps, and the questions with their decisions."""

    steps: Sequence[Step]
    questions: Sequence[Question]
    rules: Sequence[StandingRule] = ()  # of the tenant, in force


def _is_passing(error: BaseException) -> bool:
    """Whether the same transaction may succeed when tried again."""
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return "locked" in str(error.orig) or "busy" in str(error.orig)
    # psycopg: the server is away or restarts, a deadlock, a serialization failure
    return isinstance(error, OperationalError | InterfaceError)


def _is_of_the_database(error: BaseException) -> bool:
    """Whether the database can't be used, rather than a value or a row refused."""
    if isinstance(error, OperationalError | InterfaceError | PoolTimeout):
        return True
    # a table or column that isn't there is "operational" to SQLite, but not to PostgreSQL
    state = getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None
    return state in ("42P01", "42703", "42501")


def _again(patience_seconds: float) -> Retrying:
    """Return what tries a transaction again that may succeed then; once more at least."""
    return Retrying(
        retry=retry_if_exception(_is_passing),
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        stop=stop_after_delay(min(patience_seconds, PATIENCE_SECONDS)),
        reraise=True,
    )


class RunStore:
    """Runs, steps, questions and events in one database.

    Args:
        engine: an SQLAlchemy engine on SQLite or PostgreSQL (psycopg 3).
        clock: the time, in tests. Without it leases go by the server's clock on
            PostgreSQL and by this machine's on SQLite.
        types: the application's classes that may be journaled.
        redaction: the fields that questions and runs don't show.
    """

    def __init__(
        self,
        engine: sa.Engine,
        clock: Clock | None = None,
        types: Types | None = None,
        redaction: Redaction | None = None,
    ) -> None:
        prepare(engine)
        self.engine = engine
        self.notifies = False  # whether notices are written: somebody is to be told
        self.codec = Codec(types or Types(), redaction or Redaction())
        self._time = Timeline(engine.dialect.name, clock)
        self._claims: dict[object, sa.UpdateBase] = {}
        self._is_postgres = engine.dialect.name == "postgresql"
        # PostgreSQL: a single statement is its own transaction, one message each way, not three
        alone = {"isolation_level": "AUTOCOMMIT"} if self._is_postgres else {}
        self._recording = KeptConnections(engine.execution_options(**alone))

    # --- transactions ------------------------------------------------------------------

    def _run(
        self,
        work: Callable[[sa.Connection], T],
        *,
        reads_only: bool = False,
        records_only: bool = False,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> T:
        trying = self._record if records_only else self._once
        try:
            return self._patiently(trying, work, reads_only, patience_seconds)
        except SQLAlchemyError as error:
            if not _is_of_the_database(error):
                raise
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise StoreError(f"the database can't be used: {cause}") from error

    @staticmethod
    def _patiently(
        trying: Callable[[Callable[[sa.Connection], T], bool], T],
        work: Callable[[sa.Connection], T],
        reads_only: bool,
        patience_seconds: float,
    ) -> T:
        try:
            return trying(work, reads_only)
        except SQLAlchemyError as error:
            if not _is_passing(error):
                raise
        done: T = _again(patience_seconds)(trying, work, reads_only)
        return done

    def _once(self, work: Callable[[sa.Connection], T], reads_only: bool) -> T:
        with self.engine.connect() as connection:
            tx = connection.execution_options(reads_only=reads_only, notifies=self.notifies)
            with tx.begin():
                return work(tx)

    def _record(self, work: Callable[[sa.Connection], T], _reads_only: bool) -> T:
        with self._recording.lent() as connection, connection.begin():
            return work(connection)

    def keeping_connection(self) -> AbstractContextManager[None]:
        """Let the calling thread keep a connection, for the steps that it is going to record."""
        return self._recording.keeping()

    # --- the schema --------------------------------------------------------------------

    def upgrade(self) -> None:
        """Bring the schema up to this code's; many processes may call it at once."""
        upgrade(self.engine)

    def check_schema(self, *, create: bool = False) -> None:
        """Refuse a schema that isn't this code's; with `create`, fill an empty database.

        Raises:
            StoreError: the database can't be opened.
            SchemaMismatch: its schema is older (run `langgraph-durable db upgrade`) or
                newer (deploy newer code).
            EncryptionError: it is encrypted, and the keys are missing or are others.
        """
        check_schema(self.engine, create=create)
        if not self._run(encryption.unlock, reads_only=True):
            self._run(encryption.found)

    def reseal(self) -> int:
        """Encrypt all that is stored with the first key, also what is plain; returns how many rows.

        Beside running workers, a few rows at a time; after a death it goes on where it was.

        Raises:
            EncryptionError: there are no keys, or a row needs one that is not given.
        """
        count = part = 0
        after: encryption.Place | None = None
        while True:
            done = self._run(partial(encryption.reseal, part=part, after=after))
            if done is None:
                return count
            count, after = count + done[0], done[1]
            part += after is None

    # --- submit and read ---------------------------------------------------------------

    def create(self, new: NewRun) -> Run:
        """Insert a queued run and return it; a repeat returns the first one.

        Raises:
            BadInput: a name has a character that no database keeps (NUL, half an emoji).
            Conflict: the idempotency key belongs to another request, or the thread is
                busy and a second run is refused.
        """

        names = (new.id, new.tenant, new.agent, new.version, new.thread, new.idempotency_key)
        if not _storable(*names):
            raise BadInput(f"a run can't be stored under these names: {names!r}")

        def work(tx: sa.Connection) -> Run:
            row = queue.insert(tx, self._time, new)
            notify(tx)
            return rows.run(row, self.codec)

        return self._run(work)

    def get(self, run_id: str, tenant: str | None = None) -> Run:
        """Return a run with its open questions and what it used.

        Raises:
            NotFound: there is no such run for this tenant.
        """
        _require("run", run_id, tenant)

        def work(tx: sa.Connection) -> Run:
            query = sa.select(schema.runs).where(schema.runs.c.id == run_id)
            if tenant is not None:
                query = query.where(schema.runs.c.tenant == tenant)
            row = tx.execute(query).one_or_none()
            if row is None:
                raise NotFound("run", run_id)
            return self._whole(tx, [row])[0]

        return self._run(work, reads_only=True)

    def list_runs(self, page: Page) -> list[Run]:
        """Return a page of runs, newest first."""
        if not _storable(page.tenant, page.agent, page.thread):
            return []

        def work(tx: sa.Connection) -> list[Run]:
            found = tx.execute(queue.listed(page)).all()
            parts = [found[i : i + _PART] for i in range(0, len(found), _PART)]
            return [run for part in parts for run in self._whole(tx, part)]

        return self._run(work, reads_only=True)

    def _whole(self, tx: sa.Connection, found: Sequence[sa.Row[Any]]) -> list[Run]:
        ids = [row.id for row in found]
        asked = questions.of_runs(tx, self.codec, [row.id for row in found if row.asked])
        used = steps.usage(tx, ids)
        runs_ = []
        for row in found:
            open_ = [q for q in asked.get(row.id, []) if q.state is QuestionState.OPEN]
            usage = used.get(row.id)
            if usage is not None:
                usage = _with_saved(usage, row)
            runs_.append(rows.run(row, self.codec, tuple(open_), usage))
        return runs_

    # --- claim and own -----------------------------------------------------------------

    def claim(self, worker: str, lease_seconds: float, served: Served) -> Claim | None:
        """Take one run for a worker, or None when there is nothing to do; see `claim_some`."""
        found = self.claim_some(worker, lease_seconds, served, limit=1)
        return found[0] if found else None

    def claim_some(
        self, worker: str, lease_seconds: float, served: Served, limit: int
    ) -> list[Claim]:
        """Take up to `limit` runs for a worker, in one commit; none when there is nothing to do.

        Two workers that race for one run: exactly one gets it. A run that keeps killing
        its workers is failed here with the reason `crash_loop`.
        """
        collisions = 0
        while collisions < CLAIM_TRIES:
            wanted = 1 if collisions else limit  # after a collision with care, one by one
            try:
                taken = self._run(
                    partial(
                        self._claim,
                        worker=worker,
                        lease_seconds=lease_seconds,
                        served=served,
                        limit=wanted,
                    ),
                    patience_seconds=SHORT_SECONDS,
                )
            except IntegrityError:
                collisions += 1  # another run of that thread was claimed at this instant
                continue
            claims = [claim for claim in taken if claim is not None]
            if claims or not taken:
                return claims
        return []

    def _claim(
        self, tx: sa.Connection, worker: str, lease_seconds: float, served: Served, limit: int
    ) -> list[Claim | None]:
        """Take runs; None stands for one that was failed at once."""
        found = tx.execute(self._claiming(worker, lease_seconds, served, limit)).all()
        found = sorted(found, key=lambda row: (-row.priority, row.run_after, row.id))
        fresh = [row for row in found if row.claimed_from == Status.QUEUED.value]
        lines = [(row.id, row.tenant, worker, _told(row)) for row in fresh]
        events.append_all(tx, self._time, "run_claimed", lines)
        return [self._claimed(tx, row, worker) for row in found]

    def _claimed(self, tx: sa.Connection, row: sa.Row[Any], worker: str) -> Claim | None:
        lease = Lease(row.id, row.epoch, worker)
        claim = Claim(rows.run(row, self.codec), lease, row.asked, bool(row.has_rules))
        if row.claimed_from == Status.QUEUED.value:
            return claim
        said = {**_told(row), "from": row.previous_worker}
        events.append(tx, self._time, row.id, row.tenant, "run_taken_over", worker, said)
        is_worn = row.attempts >= row.max_attempts
        if row.status == Status.RUNNING.value and is_worn and not row.unwinding:
            error = {
                "type": "CrashLoop",
                "reason": "crash_loop",
                "message": f"the worker died while it ran this, and {row.attempts} attempts in a row "
                "brought no progress. Find what kills it, then retry the run.",
            }
            self._give_up(tx, lease, row, Status.FAILED, Replayed(), error)
            return None
        return claim

    def _claiming(
        self, worker: str, lease_seconds: float, served: Served, limit: int
    ) -> sa.UpdateBase:
        """A worker claims by few statements again and again: each is built once."""
        known = (worker, lease_seconds, served.key, limit)
        if known not in self._claims:
            if len(self._claims) >= MAX_CLAIMS:
                self._claims.clear()
            self._claims[known] = queue.claiming(self._time, worker, lease_seconds, served, limit)
        return self._claims[known]

    def load(self, lease: Lease, *, asked: bool = True, rules_of: str | None = None) -> Journaled:
        """Return a run's whole journal (one query) and, if it ever asked, its questions.

        `rules_of` is a tenant: then also the rules that hold for it.
        """

        def work(tx: sa.Connection) -> Journaled:
            found = questions.of_runs(tx, self.codec, [lease.run_id]) if asked else {}
            made = [] if rules_of is None else rules.live(tx, self._time, rules_of)
            return Journaled(steps.of_run(tx, lease.run_id), found.get(lease.run_id, []), made)

        return self._run(work, reads_only=True)

    def used_by_tenant(self, tenant: str, seconds: float, except_run: str) -> list[Used]:
        """Sum up what a tenant's runs used lately, but for one run."""
        return self._run(
            lambda tx: steps.used_by_tenant(tx, self._time, tenant, seconds, except_run),
            reads_only=True,
        )

    def earlier(self, seconds: float) -> datetime:
        """Return the time some seconds ago, by the clock that the store goes by."""
        then: datetime = self._run(
            lambda tx: tx.execute(sa.select(self._time.later(-seconds))).scalar_one(),
            reads_only=True,
        )
        return then

    def heartbeat(self, leases: Collection[Lease], lease_seconds: float) -> Mapping[Lease, Status]:
        """Extend leases; return the status of each run still owned. One missing is lost.

        Raises:
            StoreError: the database was away for a third of the lease; try again.
        """
        if not leases:
            return {}
        return self._run(
            lambda tx: queue.heartbeat(tx, self._time, leases, lease_seconds),
            patience_seconds=lease_seconds / 3,
        )

    def statuses(
        self, leases: Collection[Lease], patience_seconds: float
    ) -> Mapping[Lease, Status]:
        """Return the status of each run still owned, and extend nothing. One missing is lost.

        Raises:
            StoreError: the database was away for so long; try again.
        """
        if not leases:
            return {}
        return self._run(
            lambda tx: queue.statuses(tx, leases),
            reads_only=True,
            patience_seconds=patience_seconds,
        )

    def set_status(self, lease: Lease, status: Status) -> None:
        """Change the status of a run that this lease still owns.

        Raises:
            LeaseLost: another worker claimed the run since.
            IllegalMove: the run's status does not lead there.
        """

        def work(tx: sa.Connection) -> None:
            ended = queue.finish(self._time) if status in FINAL else {}
            row = queue.move(tx, lease, status, **ended)
            if status in FINAL:
                questions.close_all(tx, self._time, lease.run_id)
            events.append(tx, self._time, row.id, row.tenant, f"run_{status.value}", lease.worker)

        self._run(work)

    # --- steps -------------------------------------------------------------------------

    def put_steps(self, writes: Sequence[Write], lease_seconds: float) -> list[DurableError | None]:
        """Record steps of many runs in one commit; None, or why one was refused.

        What a step emits is in the outbox, and a signal that it takes is taken, by the same
        commit.

        Raises:
            StoreError: the database was away for a third of the lease; try again.
        """

        def work(tx: sa.Connection) -> list[DurableError | None]:
            refused = steps.append(tx, self._time, writes, lease_seconds)
            for write, why in zip(writes, refused, strict=True):
                if why is not None:
                    continue
                for told in write.step.emits:
                    outbox.put(
                        tx, self._time, write.lease.run_id, told.tenant, told.key, told.topic, told.payload
                    )  # fmt: skip
                unwinding.tell(tx, self._time, self.codec, write.lease, write.step)
                if write.step.takes is not None:
                    signals.take(tx, write.lease.run_id, write.step.takes, write.step.key)
            return refused

        more = any(
            w.step.emits or w.step.takes is not None or w.step.key.startswith(COMPENSATE)
            for w in writes
        )
        return self._run(work, records_only=not more, patience_seconds=lease_seconds / 3)

    def put_step(self, lease: Lease, step: Step, lease_seconds: float = 60.0) -> None:
        """Record one step.

        Raises:
            LeaseLost: another worker claimed the run since.
            StepConflict: another writer recorded this key first.
        """
        refused = self.put_steps([Write(lease, step)], lease_seconds)[0]
        if refused is not None:
            raise refused

    def get_step(self, run_id: str, key: str) -> Step | None:
        """Return one step, or None."""
        if not _storable(run_id, key):
            return None
        return self._run(lambda tx: steps.get(tx, run_id, key), reads_only=True)

    def list_steps(self, run_id: str) -> list[Step]:
        """Return a run's journal in the order of recording."""
        if not _storable(run_id):
            return []
        return self._run(lambda tx: steps.of_run(tx, run_id), reads_only=True)

    # --- settle ------------------------------------------------------------------------

    def settle(
        self,
        lease: Lease,
        outcome: Outcome,
        replayed: Replayed | None = None,
        backoff: Retry | None = None,
        jitter: float = 1.0,
    ) -> Status:
        """Write how a pass ended, and give the run up; returns the status written.

        A run that was asked to cancel meanwhile is cancelled, whatever the outcome: a
        late success does not overwrite a cancel. The same outcome twice under one lease
        changes nothing (the answer of the first commit was lost).

        Raises:
            LeaseLost: another worker claimed the run since; nothing was written.
        """
        spared = replayed or Replayed()

        def work(tx: sa.Connection) -> Status:
            try:
                row = lock(tx, lease.run_id, None)
            except NotFound:  # another worker ended it, and it was purged since
                raise LeaseLost(lease.run_id, lease.epoch) from None
            if row.epoch != lease.epoch:
                raise LeaseLost(lease.run_id, lease.epoch)
            if row.worker is None:  # settled already, by this very claim
                return Status(row.status)
            wanted = outcome
            if row.unwinding:
                wanted = _of_unwinding(outcome)
            elif row.status == Status.CANCELLING.value:
                wanted = Cancelled()
            return self._settle(tx, lease, row, wanted, spared, backoff or Retry(), jitter)

        return self._run(work)

    def finish(self, endings: Sequence[Ending], lease_seconds: float) -> list[bool]:
        """Settle runs that came to their end, all in one commit; tell which it could.

        It does what `settle` does with `Done`, for what is common: a run that is still this
        worker's, that nobody cancels, that has no open question, and of whose end nobody is to
        be told. Any other is left as it is, for `settle`, which also says what is wrong.

        Raises:
            StoreError: the database was away for a third of the lease; try again.
        """
        if self.notifies:
            return [False] * len(endings)

        def work(tx: sa.Connection) -> list[bool]:
            ended = queue.end_all(tx, self._time, endings)
            lines = [
                (
                    e.lease.run_id,
                    ended[e.lease.run_id],
                    e.lease.worker,
                    {"replayed": e.replayed.steps},
                )
                for e in endings
                if e.lease.run_id in ended
            ]
            events.append_all(tx, self._time, "run_succeeded", lines)
            return [e.lease.run_id in ended for e in endings]

        return self._run(work, patience_seconds=lease_seconds / 3)

    def _settle(
        self,
        tx: sa.Connection,
        lease: Lease,
        row: sa.Row[Any],
        outcome: Outcome,
        spared: Replayed,
        backoff: Retry,
        jitter: float,
    ) -> Status:
        match outcome:
            case Done(output):
                end = queue.finish(self._time, output=output)
                return self._end(tx, lease, row, Status.SUCCEEDED, end, spared)
            case Broke(error):
                return self._give_up(tx, lease, row, Status.FAILED, spared, error)
            case Cancelled():
                return self._give_up(tx, lease, row, Status.CANCELLED, spared)
            case Unwound(review):
                return self._unwound(tx, lease, row, spared, review)
            case Asked():
                return self._park(tx, lease, row, outcome, spared)
            case Slept(seconds, awaited):
                self._leave(
                    tx, lease, row, Status.SLEEPING, spared, "run_slept", {"events": awaited},
                    wake_at=self._at(seconds), attempts=0,
                )  # fmt: skip
                return self._unless_come(tx, row.id, awaited, Status.SLEEPING)
            case Drained():
                # to the front: another worker has it at once
                self._leave(
                    tx,
                    lease,
                    row,
                    Status.QUEUED,
                    spared,
                    "run_handed_back",
                    run_after=row.created_at,
                    attempts=sa.case((queue.progressed(), 0), else_=schema.runs.c.attempts),
                )
                notify(tx)
                return Status.QUEUED
            case Retried(error, progressed):
                return self._requeue(tx, lease, row, error, progressed, spared, backoff, jitter)

    def _end(
        self,
        tx: sa.Connection,
        lease: Lease,
        row: sa.Row[Any],
        status: Status,
        end: Mapping[str, Any],
        spared: Replayed,
        data: Mapping[str, Any] | None = None,
    ) -> Status:
        is_unwinding = row.unwinding is not None
        queue.move(tx, lease, status, unwinding=is_unwinding, **end, **queue.saved(spared))
        if row.asked:
            questions.close_all(tx, self._time, lease.run_id)
        said = {"replayed": spared.steps, **(data or {})}
        events.append(
            tx, self._time, lease.run_id, row.tenant, f"run_{status.value}", lease.worker, said
        )
        return status

    def _give_up(
        self,
        tx: sa.Connection,
        lease: Lease,
        row: sa.Row[Any],
        status: Status,
        spared: Replayed,
        error: Mapping[str, Any] | None = None,
    ) -> Status:
        """End a run that failed or was cancelled: now, or when its compensations have run.

        Calls whose outcome nobody recorded are named in the event.
        """
        left = unwinding.left(tx, lease.run_id)
        if not left.compensated:
            data: dict[str, Any] = {"error": error} if error else {}
            if left.unknown:
                data["unknown"] = left.unknown
            end = queue.finish(self._time, error=error)
            return self._end(tx, lease, row, status, end, spared, data)
        unwinding.begin(
            tx,
            self._time,
            row,
            status,
            left,
            actor=lease.worker,
            error=error,
            **queue.saved(spared),
        )
        notify(tx)
        return Status.QUEUED

    def _unwound(
        self,
        tx: sa.Connection,
        lease: Lease,
        row: sa.Row[Any],
        spared: Replayed,
        review: Question | None,
    ) -> Status:
        """End a run whose compensations have run; a person may be asked to look at it.

        The question stays open on the ended run: its answer wakes nothing, it takes note.
        """
        error = json.loads(row.error) if row.error else None
        end = queue.finish(self._time, error=error)
        data = {"error": error} if error else None
        self._end(tx, lease, row, Status(row.unwinding), end, spared, data)
        if review is not None:
            new = questions.ask(tx, self._time, self.codec, lease, row.tenant, [review])
            asked = {"asked": row.asked + new}
            tx.execute(sa.update(schema.runs).where(schema.runs.c.id == row.id).values(**asked))
        return Status(row.unwinding)

    def _leave(
        self,
        tx: sa.Connection,
        lease: Lease,
        row: sa.Row[Any],
        status: Status,
        spared: Replayed,
        event: str,
        data: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> None:
        is_unwinding = row.unwinding is not None
        queue.move(tx, lease, status, unwinding=is_unwinding, **values, **queue.saved(spared))
        said = {"replayed": spared.steps, **(data or {})}
        events.append(tx, self._time, row.id, row.tenant, event, lease.worker, said)

    def _park(
        self,
        tx: sa.Connection,
        lease: Lease,
        row: sa.Row[Any],
        outcome: Asked,
        spared: Replayed,
    ) -> Status:
        """Leave the run to people: its questions and its status become true together."""
        asked = list({question.key: question for question in outcome.questions}.values())
        new = questions.ask(tx, self._time, self.codec, lease, row.tenant, asked)
        steps.await_people(tx, self._time, lease, asked)
        keys = [question.key for question in asked]
        self._leave(
            tx, lease, row, Status.WAITING_HUMAN, spared, "run_parked", {"questions": keys},
            asked=row.asked + new, attempts=0, wake_at=self._at(outcome.seconds),
        )  # fmt: skip
        # a question may have been answered or have expired before the run got here
        if questions.wake(tx, self._time, row.id):
            notify(tx)
            return Status.QUEUED
        return self._unless_come(tx, row.id, outcome.events, Status.WAITING_HUMAN)

    def _at(self, seconds: float | None) -> sa.ColumnElement[Any] | None:
        return None if seconds is None else self._time.later(seconds)

    def _unless_come(
        self, tx: sa.Connection, run_id: str, awaited: Sequence[str], parked: Status
    ) -> Status:
        """Wake a run at once for whose event a signal came before it was parked."""
        if not signals.has_come(tx, run_id, awaited):
            return parked
        queue.wake(tx, self._time, run_id)
        notify(tx)
        return Status.QUEUED

    def _requeue(
        self,
        tx: sa.Connection,
        lease: Lease,
        row: sa.Row[Any],
        error: Mapping[str, Any],
        progressed: bool,
        spared: Replayed,
        backoff: Retry,
        jitter: float,
    ) -> Status:
        progressed = progressed or row.progress_epoch == row.epoch  # a checkpoint was written
        attempts = 1 if progressed else row.attempts + 1
        is_over = attempts >= row.max_attempts
        if is_over and not row.unwinding:
            tx.execute(
                sa.update(schema.runs).where(schema.runs.c.id == row.id).values(attempts=attempts)
            )
            error = {**error, "attempts": attempts}
            return self._give_up(tx, lease, row, Status.FAILED, spared, error)
        # a run that is unwound keeps the error it failed with; worn out, it asks at once
        pause = 0.0 if is_over else _pause(backoff, attempts)
        kept = row.error if row.unwinding else json.dumps(error)
        self._leave(
            tx, lease, row, Status.QUEUED, spared, "run_requeued",
            {"error": error, "attempts": attempts},
            attempts=attempts, error=kept, run_after=self._time.later(pause * jitter),
        )  # fmt: skip
        return Status.QUEUED

    # --- people ------------------------------------------------------------------------

    def decide(
        self, question_id: str, decision: Decision, *, approval_id: str, tenant: str | None = None
    ) -> Question:
        """Store the one decision of a question and wake its run; see `questions.decide`."""
        _require("question", question_id, tenant)

        def work(tx: sa.Connection) -> Question:
            decided = questions.decide(
                tx, self._time, self.codec, question_id, decision,
                approval_id=approval_id, tenant=tenant,
            )  # fmt: skip
            self._follow(tx, decided)
            notify(tx)
            return decided

        return self._run(work)

    def _follow(self, tx: sa.Connection, decided: Question) -> None:
        """Do what follows from a decision, in its transaction."""
        if decided.approval_id is not None:
            steps.approved(tx, decided.run_id, decided.key, decided.approval_id)
        if decided.kind == "budget" and decided.state is QuestionState.DECIDED:
            questions.close_alike(tx, self._time, decided)

    def decide_all(
        self,
        run_id: str,
        decisions: Decision | Mapping[str, Decision],
        *,
        check: Callable[[Question, Decision], Decision],
        new_id: Callable[[], str],
        tenant: str | None = None,
    ) -> list[Question]:
        """Decide several questions of a run, or none of them; see `questions.decide_all`."""

        def work(tx: sa.Connection) -> list[Question]:
            decided = questions.decide_all(
                tx, self._time, self.codec, run_id, decisions,
                check=check, new_id=new_id, tenant=tenant,
            )  # fmt: skip
            for question in decided:
                self._follow(tx, question)
            notify(tx)
            return decided

        return self._run(work)

    def delegate(
        self,
        question_id: str,
        *,
        role: str | None,
        person: str | None,
        by: str,
        tenant: str | None = None,
    ) -> Question:
        """Hand an open question to another role, or to a person; see `waiting.delegate`."""
        _require("question", question_id, tenant)

        def work(tx: sa.Connection) -> Question:
            question = questions.get(tx, self.codec, question_id, tenant)
            waiting.delegate(tx, self._time, question, role=role, person=person, by=by)
            return questions.get(tx, self.codec, question_id, tenant)

        return self._run(work)

    def was_refused(self, tenant: str, tool: str, digest: str) -> bool:
        """Tell whether a person refused this very request of a tenant before."""
        asked = Question("", "", "tool", None, digest, tool)
        return self._run(
            lambda tx: questions.refused_before(tx, self.codec, tenant, asked) is not None,
            reads_only=True,
        )

    # --- signals -----------------------------------------------------------------------

    def send(self, new: NewSignal, tenant: str | None = None) -> Signal:
        """Keep a signal for a run, and wake the run if it waits for this; see `signals.send`."""
        _require("run", new.run_id, tenant)

        def work(tx: sa.Connection) -> Signal:
            signal, is_woken = signals.send(tx, self._time, self.codec, new, tenant)
            if is_woken:
                notify(tx)
            return signal

        return self._run(work)

    def untaken_signals(self, run_id: str, event: str, limit: int) -> list[Signal]:
        """Return the signals of an event that no step has taken, the oldest first."""
        return self._run(
            lambda tx: signals.untaken(tx, self.codec, run_id, event, limit), reads_only=True
        )

    def list_signals(self, run_id: str) -> list[Signal]:
        """Return the signals of a run, taken or not, in the order of arrival."""
        if not _storable(run_id):
            return []
        return self._run(lambda tx: signals.of_run(tx, self.codec, run_id), reads_only=True)

    # --- rules -------------------------------------------------------------------------

    def list_rules(
        self, tenant: str | None = None, agents: Collection[str] | None = None
    ) -> list[StandingRule]:
        """Return the rules that decisions carried, oldest first, ended ones too."""
        if not _storable(tenant):
            return []
        return self._run(lambda tx: rules.listed(tx, self._time, tenant, agents), reads_only=True)

    def revoke_rule(self, rule_id: str, *, by: str, tenant: str | None = None) -> StandingRule:
        """End a rule at once; again changes nothing.

        Raises:
            NotFound: no such rule for this tenant.
        """
        _require("rule", rule_id, tenant)
        return self._run(lambda tx: rules.revoke(tx, self._time, rule_id, tenant, by))

    def question(self, question_id: str, tenant: str | None = None) -> Question:
        """Return one question.

        Raises:
            NotFound: no such question for this tenant.
        """
        _require("question", question_id, tenant)
        return self._run(
            lambda tx: questions.get(tx, self.codec, question_id, tenant), reads_only=True
        )

    def list_questions(self, inbox: Inbox) -> list[Question]:
        """Return questions, oldest first."""
        if not _storable(inbox.tenant, inbox.run_id, inbox.role):
            return []
        return self._run(lambda tx: questions.listed(tx, self.codec, inbox), reads_only=True)

    def cancel(self, run_id: str, *, by: str, tenant: str | None = None) -> Status:
        """Cancel a run: at once, or when its call in flight has ended and its compensations ran.

        Raises:
            NotFound: no such run for this tenant.
            Conflict: the run has ended otherwise, or is being unwound because it failed.
        """
        _require("run", run_id, tenant)

        def work(tx: sa.Connection) -> Status:
            row = lock(tx, run_id, tenant)
            status = Status(row.status)
            if status in (Status.CANCELLED, Status.CANCELLING):
                return status
            if row.unwinding == Status.CANCELLED.value:
                return Status.CANCELLING
            if status in FINAL or row.unwinding:
                raise Conflict(
                    f"run {run_id} has {row.unwinding or status.value}; there is nothing to cancel"
                )
            if status is not Status.RUNNING and self._cancels_later(tx, row, by):
                return Status.CANCELLING
            target = Status.CANCELLING if status is Status.RUNNING else Status.CANCELLED
            ended = queue.finish(self._time) if target is Status.CANCELLED else {}
            tx.execute(
                sa.update(schema.runs)
                .where(schema.runs.c.id == run_id)
                .values(status=target.value, wake_at=None, **ended)
            )
            if target is Status.CANCELLED:
                questions.close_all(tx, self._time, run_id)
            events.append(tx, self._time, run_id, row.tenant, f"run_{target.value}", by)
            notify(tx)  # its worker looks at its leases, and its thread may be free
            return target

        return self._run(work)

    def _cancels_later(self, tx: sa.Connection, row: sa.Row[Any], by: str) -> bool:
        """Queue a run that no worker has for its compensations; False if there are none."""
        left = unwinding.left(tx, row.id)
        if left.compensated:
            unwinding.begin(tx, self._time, row, Status.CANCELLED, left, actor=by)
            notify(tx)
        return bool(left.compensated)

    def retry(self, run_id: str, *, by: str, tenant: str | None = None) -> Run:
        """Queue a failed run again: the same run, its journal kept, a fresh budget of attempts.

        Raises:
            NotFound: no such run for this tenant.
            IllegalMove: the run has not failed.
            Conflict: its steps were compensated, so its journal says what is no longer so.
        """
        _require("run", run_id, tenant)

        def work(tx: sa.Connection) -> Run:
            row = lock(tx, run_id, tenant)
            if row.unwinding:
                raise Conflict(
                    f"the steps of run {run_id} were undone: its journal would answer for "
                    "what is no longer so. Submit it anew, with a new idempotency key."
                )
            fresh = {
                "attempts": 0,
                "error": None,
                "finished_at": None,
                "run_after": self._time.now(),
            }
            if row.status != Status.FAILED.value or not queue.shift(
                tx, run_id, Status.QUEUED, **fresh
            ):
                raise IllegalMove(run_id, row.status, Status.QUEUED.value)
            if row.error:
                # a failure that a tool reported ended the run: the operator wants that call made
                steps.reopen(tx, run_id, json.loads(row.error).get("key", ""))
            questions.close_fatal(tx, self.codec, run_id)
            events.append(tx, self._time, run_id, row.tenant, "run_retried", by)
            notify(tx)
            again = tx.execute(sa.select(schema.runs).where(schema.runs.c.id == run_id)).one()
            return rows.run(again, self.codec)

        return self._run(work)

    # --- by time -----------------------------------------------------------------------

    def sweep(self) -> int:
        """Do what is due: wake sleepers, expire questions, remind and escalate; returns how many.

        Many workers may sweep at once: each thing is done by one of them.
        """

        def asleep(tx: sa.Connection) -> int:
            woken = queue.wake_sleepers(tx, self._time)
            if woken:
                notify(tx)
            return woken

        def due(tx: sa.Connection) -> list[tuple[str, str, str]]:
            return waiting.due(tx, self._time, queue.to_be_woken(self._time))

        found = self._run(due, reads_only=True, patience_seconds=SHORT_SECONDS)
        done = 0
        for what, question_id, run_id in found:
            if what == waiting.WAKE:
                done += self._run(asleep, patience_seconds=SHORT_SECONDS)
            else:
                done += self._run(_overdue(self._time, what, question_id, run_id))
        return done

    def announce(self, worker: str, agents: Collection[tuple[str, str]]) -> None:
        """Say that a worker lives and which agents it has, in which versions."""
        self._run(
            lambda tx: queue.announce(tx, self._time, worker, agents),
            patience_seconds=SHORT_SECONDS,
        )

    def depart(self, worker: str) -> None:
        """Forget a worker that stopped in good order."""
        self._run(lambda tx: queue.depart(tx, worker), patience_seconds=SHORT_SECONDS)

    # --- the outbox --------------------------------------------------------------------

    def take_messages(
        self, topics: Sequence[str], *, hold_seconds: float = 60.0, limit: int = 20
    ) -> list[Message]:
        """Take messages that are due, of each run the first; see `outbox.take`."""
        return self._run(
            lambda tx: outbox.take(tx, self._time, topics, hold_seconds, limit),
            patience_seconds=SHORT_SECONDS,
        )

    def settle_message(
        self, message: Message, error: str | None, again_in_seconds: float | None = None
    ) -> None:
        """Take note that a message arrived, or that it did not and when it is tried again."""

        def work(tx: sa.Connection) -> None:
            if error is None:
                outbox.delivered(tx, self._time, message.row)
            else:
                outbox.failed(tx, self._time, message.row, error, again_in_seconds)

        self._run(work)

    def list_messages(self, run_id: str) -> list[Message]:
        """Return the messages of a run, delivered or not, in order."""
        if not _storable(run_id):
            return []
        return self._run(lambda tx: outbox.of_run(tx, run_id), reads_only=True)

    def list_outbox(self, which: Letters) -> list[Message]:
        """Return messages, newest first."""
        if not _storable(which.tenant, which.run_id):
            return []
        return self._run(lambda tx: outbox.listed(tx, which), reads_only=True)

    def resend(self, message_id: str, *, by: str, tenant: str | None = None) -> Message:
        """Have a dead message tried again.

        Raises:
            NotFound: no such message for this tenant.
            Conflict: it is not dead.
        """
        _require("message", message_id, tenant)

        def work(tx: sa.Connection) -> Message:
            message = outbox.find(tx, message_id, tenant)
            if message is None:
                raise NotFound("message", message_id)
            revived = outbox.revive_one(tx, self._time, message)
            if not revived:
                raise Conflict(
                    f"message {message_id} is {message.state}; only a dead one is resent"
                )
            self._resent(tx, revived, by)
            return revived[0]

        return self._run(work)

    def resend_dead(self, *, by: str, tenant: str | None = None, run_id: str | None = None) -> int:
        """Have all dead messages tried again; returns how many."""
        if not _storable(tenant, run_id):
            return 0

        def work(tx: sa.Connection) -> int:
            revived = outbox.revive_all(tx, self._time, tenant, run_id)
            self._resent(tx, revived, by)
            return len(revived)

        return self._run(work)

    def _resent(self, tx: sa.Connection, messages: Sequence[Message], by: str) -> None:
        for one in messages:
            data = {"message_id": one.id, "topic": one.topic}
            events.append(tx, self._time, one.run_id, one.tenant, "message_resent", by, data)

    # --- for operators -----------------------------------------------------------------

    def stats(self, days: float) -> Stats:
        """Count what happened in the last days."""
        return self._run(lambda tx: health.stats(tx, self._time, days), reads_only=True)

    def complaints(self, limit: int = 100) -> list[Complaint]:
        """Return what is wrong, the most urgent first."""
        return self._run(lambda tx: health.complaints(tx, self._time, limit), reads_only=True)

    def parked(self, tenant: str | None = None, limit: int = 100) -> list[Parked]:
        """Return what waits for people, in one query."""
        if not _storable(tenant):
            return []
        return self._run(lambda tx: health.parked(tx, self.codec, tenant, limit), reads_only=True)

    # --- API keys ----------------------------------------------------------------------

    def create_key(self, new: NewKey) -> ApiKey:
        """Store a key.

        Raises:
            Conflict: a live key of the tenant has that name.
        """
        return self._run(lambda tx: keys.from_row(keys.insert(tx, self._time, new)))

    def replace_key(self, old_id: str, new: NewKey, grace_seconds: float) -> ApiKey:
        """Store a key that replaces another one, which ends after the grace.

        Raises:
            Conflict: another live key of the tenant has that name.
        """

        def work(tx: sa.Connection) -> ApiKey:
            keys.end_after(tx, self._time, old_id, grace_seconds)
            return keys.from_row(keys.insert(tx, self._time, new, replaces=old_id))

        return self._run(work)

    def find_key(self, key_id: str) -> tuple[ApiKey, str] | None:
        """Return a key, live or not, and its digest; None if there is none."""
        return self._run(lambda tx: keys.find(tx, self._time, key_id), reads_only=True)

    def get_key(self, key_id: str, tenant: str | None = None) -> ApiKey:
        """Return a key.

        Raises:
            NotFound: no such key for this tenant.
        """
        return self._run(lambda tx: keys.get(tx, self._time, key_id, tenant), reads_only=True)

    def list_keys(self, tenant: str | None = None) -> list[ApiKey]:
        """Return keys, oldest first."""
        return self._run(lambda tx: keys.listed(tx, self._time, tenant), reads_only=True)

    def revoke_key(self, key_id: str, tenant: str | None, by: str) -> ApiKey:
        """End a key at once; again changes nothing.

        Raises:
            NotFound: no such key for this tenant.
        """
        return self._run(lambda tx: keys.revoke(tx, self._time, key_id, tenant, by))

    def purge(self, older_than_seconds: float, tenant: str | None = None) -> int:
        """Forget finished runs that are older than that, and all that belongs to them.

        Returns how many. Parked and running ones stay, however old they are.
        """
        before = self.earlier(older_than_seconds)
        count = 0
        while gone := self._run(lambda tx: retention.purge(tx, before, tenant)):
            count += len(gone)
        return count

    # --- the audit ---------------------------------------------------------------------

    def note(
        self, lease: Lease, tenant: str, type_: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Append an event of a run that this lease still owns; nothing if it is lost."""

        def work(tx: sa.Connection) -> None:
            # locked, so that no other worker claims the run between the look and the line, and
            # so that the ids of a run's events grow in the order in which they can be read
            held = sa.select(schema.runs.c.id).where(queue.owned(lease)).with_for_update()
            if tx.execute(held).first():
                events.append(tx, self._time, lease.run_id, tenant, type_, lease.worker, data)

        self._run(work)

    def newest_event(self) -> int:
        """Return the id of the newest event of all runs: it changes when anything happened."""
        return self._run(lambda tx: events.newest(tx), reads_only=True)

    def list_events(self, run_id: str, after: int = 0) -> Sequence[Event]:
        """Return the audit of a run, in order."""
        if not _storable(run_id):
            return []
        return self._run(lambda tx: events.of_run(tx, run_id, after), reads_only=True)


_PART = 500  # runs whose questions and steps are read by one statement


def _storable(*names: str | None) -> bool:
    """Whether a database could have kept these names; others are simply not there."""
    return all(name is None or clean_text(name) == name for name in names)


def _require(what: str, id_: str, tenant: str | None) -> None:
    if not _storable(id_, tenant):
        raise NotFound(what, id_)


def _pause(backoff: Retry, attempts: int) -> float:
    try:
        wanted = backoff.first_seconds * backoff.factor ** (attempts - 1)
    except OverflowError:
        return backoff.limit_seconds
    return min(backoff.limit_seconds, wanted)


def _told(row: sa.Row[Any]) -> dict[str, Any]:
    """Return what the event of a claim says."""
    told = {"epoch": row.epoch, "attempts": row.attempts}
    return {**told, "unwinding": row.unwinding} if row.unwinding else told


def _of_unwinding(outcome: Outcome) -> Outcome:
    """A run that is unwound ends by its compensations only; another end is a failed try."""
    if isinstance(outcome, Unwound | Asked | Drained | Retried):
        return outcome
    error = outcome.error if isinstance(outcome, Broke) else {}
    said = {"type": "Unwinding", "reason": "unwinding", "message": f"the pass ended in {outcome}"}
    return Retried(error or said, progressed=False)


_DUE: Mapping[str, Callable[[sa.Connection, Timeline, str, str], bool]] = {
    "expires_at": questions.expire,
    "escalate_at": waiting.escalate,
    "remind_at": waiting.remind,
}


def _overdue(
    time: Timeline, what: str, question_id: str, run_id: str
) -> Callable[[sa.Connection], int]:
    def work(tx: sa.Connection) -> int:
        done = _DUE[what](tx, time, question_id, run_id)
        if done:
            notify(tx)
        return int(done)

    return work


def _with_saved(usage: Any, row: sa.Row[Any]) -> Any:
    from dataclasses import replace

    return replace(usage, saved_steps=row.saved_steps, saved_tokens=row.saved_tokens)
