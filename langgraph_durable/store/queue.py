"""Submit, claim, move, hand back, sweep: which worker owns which run.

Every function takes a connection inside a transaction. Fences and allowed sources stand
in the WHERE: between a read and a write another worker could claim the run, and both
would believe that they own it. Locks are taken in one order: runs, then questions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from langgraph_durable.errors import Conflict, DurableError, IllegalMove, LeaseLost
from langgraph_durable.runs import NEXT, PARKED, UNWINDING, Lease, Mode, Replayed, Status, sources
from langgraph_durable.store import events, rules
from langgraph_durable.store.bulk import Bulk
from langgraph_durable.store.schema import ENDED, OWNED, UtcTime, among, runs, steps, workers
from langgraph_durable.store.timeline import Timeline
from langgraph_durable.values import clean_text

FORGET_SECONDS = 86_400.0  # a worker that was killed leaves a row; its name never comes back


@dataclass(frozen=True, slots=True)
class NewRun:
    """What is known when a run is submitted; `input` is encoded."""

    id: str
    tenant: str
    agent: str
    version: str
    mode: Mode
    input: str
    thread: str
    priority: int = 0
    max_attempts: int = 3
    deadline_seconds: float | None = None
    idempotency_key: str | None = None
    refuse_busy_thread: bool = False
    delay_seconds: float = 0.0
    actor: str = "client"


@dataclass(frozen=True, slots=True)
class Served:
    """What a worker can run: (agent, version) pairs; `adopts` takes unknown names too.

    A run of an agent whose *name* nobody live has announced is claimed by an adopting
    worker, which fails it with a message; a known name with another version waits for a
    worker that has it. Without `last_chances` runs are left alone that one more death of
    their worker would fail. With `tenant_limit` queued runs wait whose tenant has so many
    running already, on all workers together.
    """

    agents: Collection[tuple[str, str]]
    adopts: bool = True
    live_seconds: float = 60.0
    last_chances: bool = True
    tenant_limit: int | None = None

    @property
    def key(self) -> object:
        """What tells two of them apart, to keep the statement of each."""
        agents = tuple(sorted(self.agents))
        return (
            agents, self.adopts, self.live_seconds, self.last_chances, self.tenant_limit
        )  # fmt: skip


# --- submit ----------------------------------------------------------------------------


def insert(tx: sa.Connection, time: Timeline, new: NewRun) -> sa.Row[Any]:
    """Insert a run, or return the one that this id or idempotency key already made.

    Raises:
        Conflict: the idempotency key was used for another input, or the thread is busy
            and the agent's policy refuses a second run.
    """
    if new.refuse_busy_thread:
        _refuse_if_busy(tx, new)
    statement = _insert_ignoring(tx, runs).values(
        id=new.id,
        tenant=new.tenant,
        agent=new.agent,
        version=new.version,
        mode=new.mode,
        thread=new.thread,
        status=Status.QUEUED.value,
        priority=new.priority,
        input=new.input,
        max_attempts=new.max_attempts,
        deadline_seconds=new.deadline_seconds,
        idempotency_key=new.idempotency_key,
        run_after=time.later(new.delay_seconds) if new.delay_seconds else time.now(),
        created_at=time.now(),
    )
    row = tx.execute(statement.returning(*runs.c)).one_or_none()
    if row is not None:
        data = {"agent": new.agent, "version": new.version, "mode": new.mode}
        events.append(tx, time, new.id, new.tenant, "run_submitted", new.actor, data)
        return row
    return _existing(tx, new)


def _insert_ignoring(tx: sa.Connection, table: sa.Table) -> Any:
    from sqlalchemy.dialects import postgresql, sqlite

    make = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
    return make(table).on_conflict_do_nothing()


def _existing(tx: sa.Connection, new: NewRun) -> sa.Row[Any]:
    same = runs.c.id == new.id
    if new.idempotency_key is not None:
        by_key = sa.and_(runs.c.tenant == new.tenant, runs.c.idempotency_key == new.idempotency_key)
        same = sa.or_(same, by_key)
    row = tx.execute(sa.select(runs).where(same)).one_or_none()
    if row is None:  # the other insert was rolled back between our two statements
        raise DurableError(f"run {new.id} met another submit that was undone; submit again")
    if row.tenant != new.tenant or row.agent != new.agent or row.input != new.input:
        raise Conflict(
            f"idempotency key {new.idempotency_key!r} was already used by run {row.id} for another "
            "request. Use a new key for a new request."
        )
    return row


def _refuse_if_busy(tx: sa.Connection, new: NewRun) -> None:
    if tx.dialect.name == "postgresql":  # two submits at once must not both see a free thread
        name = f"{new.tenant}\x1f{new.thread}"
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(name, 0))))
    busy = tx.execute(
        sa.select(runs.c.id, runs.c.status).where(
            runs.c.tenant == new.tenant,
            runs.c.thread == new.thread,
            runs.c.id != new.id,
            sa.not_(among(runs.c.status, *ENDED)),
        )
    ).first()
    if busy is not None and not _same_key(tx, new):
        raise Conflict(
            f"thread {new.thread!r} is busy: run {busy.id} is {busy.status}. This agent refuses a "
            "second run on a thread; wait for the first, or register it with on_busy='queue'."
        )


def _same_key(tx: sa.Connection, new: NewRun) -> bool:
    if new.idempotency_key is None:
        return False
    mine = (runs.c.tenant == new.tenant) & (runs.c.idempotency_key == new.idempotency_key)
    return tx.execute(sa.select(runs.c.id).where(mine)).first() is not None


# --- claim -----------------------------------------------------------------------------


def claiming(
    time: Timeline, worker: str, lease_seconds: float, served: Served, limit: int = 1
) -> sa.UpdateBase:
    """Return the statement that takes runs: one whose lease is over, then the next queued.

    It is the same for every claim of a worker, so it is built once: building it costs more
    than running it. The epoch grows with every claim. Taking over a dead worker's run counts
    an attempt, unless that worker had made progress; a hand-over or an approval costs none.
    It returns no row when there is nothing to do.

    Of runs whose lease is over it takes one at a time: one of them may be what killed its
    worker, and would take the others down once more. When another run of a thread is claimed
    at the same instant, the unique index `runs_hold_thread` decides (IntegrityError), and the
    caller tries the next candidates.
    """
    over = _candidates(time, served).where(
        among(runs.c.status, *OWNED), runs.c.lease_until < time.now()
    )
    if not served.last_chances:
        over = over.where(sa.or_(runs.c.attempts + 2 != runs.c.max_attempts, progressed()))
    due = _candidates(time, served).where(
        among(runs.c.status, Status.QUEUED), runs.c.run_after <= time.now(), _thread_is_free()
    )
    if served.tenant_limit is not None:
        due = due.where(runs.c.tenant.not_in(_busy_tenants(served.tenant_limit)))
    over = over.order_by(runs.c.lease_until).limit(1)
    due = due.order_by(runs.c.priority.desc(), runs.c.run_after, runs.c.id)
    # one at a time where tenants have limits: each claim counts what the last one took
    due = due.limit(1 if served.tenant_limit is not None else max(1, limit - 1))
    # SQLite ignores FOR UPDATE; its write transaction is the lock.
    over, due = (q.with_for_update(skip_locked=True) for q in (over, due))
    if limit == 1:
        taken = runs.c.id == sa.func.coalesce(over.scalar_subquery(), due.scalar_subquery())
    else:  # each looked up once: as plain subqueries PostgreSQL may run them again for each row
        found = [sa.select(q.cte(name).c.id) for q, name in ((over, "over_"), (due, "due"))]
        taken = runs.c.id.in_(sa.union_all(*found))
    # in words: what SQLite returns has no table before a column's name, and rules have a tenant
    tenant: sa.ColumnElement[str] = sa.literal_column("runs.tenant")
    died = sa.case((progressed(), 1), else_=runs.c.attempts + 1)
    ends_cancelled = runs.c.unwinding == Status.CANCELLED.value
    # a run that is only to be settled costs nobody an attempt
    was_driven = sa.or_(
        runs.c.status == Status.RUNNING.value,
        sa.and_(runs.c.status == Status.CANCELLING.value, ends_cancelled),
    )
    return (
        sa.update(runs)
        .where(taken)
        .values(
            status=sa.case(
                (runs.c.status == Status.CANCELLING.value, Status.CANCELLING.value),
                (ends_cancelled, Status.CANCELLING.value),
                else_=Status.RUNNING.value,
            ),
            epoch=runs.c.epoch + 1,
            attempts=sa.case((was_driven, died), else_=runs.c.attempts),
            claimed_from=runs.c.status,
            previous_worker=runs.c.worker,
            worker=clean_text(worker),
            lease_until=time.later(lease_seconds),
            holds_thread=sa.true(),
            started_at=sa.func.coalesce(runs.c.started_at, time.now()),
        )
        # a rule is asked for with the journal only where there is one
        .returning(*runs.c, rules.any_live(time, tenant).label("has_rules"))
    )


def _busy_tenants(limit: int) -> sa.ScalarSelect[str]:
    """Who has as many running as it may. The leased rows are few, and have an index.

    Two claims at one instant may both see the last free place: a limit is for fairness, and
    one run more does no harm.
    """
    leased = runs.alias("leased")
    return (
        sa.select(leased.c.tenant)
        .where(among(leased.c.status, *OWNED))
        .group_by(leased.c.tenant)
        .having(sa.func.count() >= limit)
        .scalar_subquery()
    )


def progressed() -> sa.ColumnElement[bool]:
    """Whether the claim that holds the run (or held it last) recorded a step or a checkpoint."""
    recorded = sa.exists().where(
        steps.c.run_id == runs.c.id, steps.c.epoch == runs.c.epoch, steps.c.state == "recorded"
    )
    return sa.or_(runs.c.progress_epoch == runs.c.epoch, recorded.correlate(runs))


def _candidates(time: Timeline, served: Served) -> sa.Select[Any]:
    return sa.select(runs.c.id).where(_is_served(time, served))


def _is_served(time: Timeline, served: Served) -> sa.ColumnElement[bool]:
    mine = sa.tuple_(runs.c.agent, runs.c.version).in_([tuple(pair) for pair in served.agents])
    if not served.adopts:
        return mine
    names = sorted({name for name, _ in served.agents})
    # `agents` has lines of name and version: what can be taken out of it is in it
    line = sa.literal("\n").concat(runs.c.agent).concat("\t")
    without = sa.func.replace(workers.c.agents, line, "")
    announced = (
        sa.exists()
        .where(
            workers.c.seen_at > time.later(-served.live_seconds),
            sa.func.length(without) < sa.func.length(workers.c.agents),
        )
        .correlate(runs)
    )
    unknown = sa.and_(runs.c.agent.not_in(names), sa.not_(announced))
    return sa.or_(mine, unknown)


def _thread_is_free() -> sa.ColumnElement[bool]:
    """Whether no other unfinished run holds the thread or came to it earlier.

    A run that holds its thread goes on, even when an earlier one came back to the queue
    meanwhile (an operator retried it): each would wait for the other for ever.
    """
    other = runs.alias("other")
    earlier = sa.tuple_(other.c.created_at, other.c.id) < sa.tuple_(runs.c.created_at, runs.c.id)
    rival = (
        sa.exists()
        .where(
            other.c.tenant == runs.c.tenant,
            other.c.thread == runs.c.thread,
            other.c.id != runs.c.id,
            sa.not_(among(other.c.status, *ENDED)),
            sa.or_(other.c.holds_thread, earlier),
        )
        .correlate(runs)
    )
    return sa.or_(runs.c.holds_thread, sa.not_(rival))


# --- while it is owned -----------------------------------------------------------------


def owned(lease: Lease) -> sa.ColumnElement[bool]:
    """Return the fence: this run, under this claim, still leased."""
    return sa.and_(
        runs.c.id == lease.run_id, runs.c.epoch == lease.epoch, among(runs.c.status, *OWNED)
    )


def heartbeat(
    tx: sa.Connection, time: Timeline, leases: Collection[Lease], lease_seconds: float
) -> Mapping[Lease, Status]:
    """Extend leases; return the status of each run still owned. A missing one is lost.

    The answer is by lease, not by run: one worker may hold an old and a new lease of a run.
    """
    extended = sa.update(runs).where(_still(leases)).values(lease_until=time.later(lease_seconds))
    return _by_lease(tx.execute(extended.returning(*_HELD)), leases)


def statuses(tx: sa.Connection, leases: Collection[Lease]) -> Mapping[Lease, Status]:
    """Return the status of each run still owned, and change nothing. A missing one is lost."""
    return _by_lease(tx.execute(sa.select(*_HELD).where(_still(leases))), leases)


_HELD = (runs.c.id, runs.c.epoch, runs.c.status)


def _still(leases: Collection[Lease]) -> sa.ColumnElement[bool]:
    pairs = [(lease.run_id, lease.epoch) for lease in leases]
    return sa.and_(sa.tuple_(runs.c.id, runs.c.epoch).in_(pairs), among(runs.c.status, *OWNED))


def _by_lease(found: sa.Result[Any], leases: Collection[Lease]) -> Mapping[Lease, Status]:
    pairs = {(lease.run_id, lease.epoch): lease for lease in leases}
    return {pairs[row.id, row.epoch]: Status(row.status) for row in found}


def move(
    tx: sa.Connection, lease: Lease, target: Status, *, unwinding: bool = False, **values: Any
) -> sa.Row[Any]:
    """Change the status of a run that this lease still owns.

    A lease that was given up (the run was parked or handed back under it) has the newest
    epoch still: so only a status that a worker owns may be left here. A run that is being
    `unwinding` has a table of its own, and the other one's moves are not open to it.

    Raises:
        LeaseLost: another worker claimed the run since.
        IllegalMove: no other worker has it, but its status does not lead to `target`.
    """
    left = {"worker": None, "lease_until": None, "previous_worker": runs.c.worker}
    if target.value in OWNED:
        left = {}  # it stays with its worker
    allowed = sources(target, UNWINDING if unwinding else NEXT)
    row = tx.execute(
        sa.update(runs)
        .where(
            runs.c.id == lease.run_id,
            runs.c.epoch == lease.epoch,
            runs.c.unwinding.is_not(None) if unwinding else runs.c.unwinding.is_(None),
            runs.c.status.in_([status.value for status in allowed]),
            among(runs.c.status, *OWNED),
        )
        .values(status=target.value, **left, **values)
        .returning(*runs.c)
    ).one_or_none()
    if row is None:
        raise why_not(tx, lease, target)
    return row


@dataclass(frozen=True, slots=True)
class Ending:
    """A run that came to its end under a lease; `output` is encoded."""

    lease: Lease
    output: str
    replayed: Replayed


def end_all(tx: sa.Connection, time: Timeline, endings: Sequence[Ending]) -> dict[str, str]:
    """End runs that are still owned and have no open question; return whose they were."""
    table = [
        {
            "id": ending.lease.run_id,
            "epoch": ending.lease.epoch,
            "output": ending.output,
            "steps": ending.replayed.steps,
            "tokens": ending.replayed.tokens,
        }
        for ending in endings
    ]
    return {row.id: row.tenant for row in _END.execute(tx, time, table, 0)}


_END = Bulk(
    {"id": "text", "epoch": "bigint", "output": "text", "steps": "integer", "tokens": "integer"},
    """
    UPDATE runs SET
        status = 'succeeded', output = said.output, error = NULL, finished_at = {now},
        worker = NULL, previous_worker = worker, lease_until = NULL, holds_thread = false,
        saved_steps = saved_steps + said.steps, saved_tokens = saved_tokens + said.tokens
    FROM {rows} AS said
    WHERE runs.id = said.id AND runs.epoch = said.epoch AND runs.status = 'running'
    AND runs.unwinding IS NULL AND (
        runs.asked = 0 OR NOT EXISTS (
            SELECT 1 FROM questions WHERE questions.run_id = runs.id AND questions.state = 'open'
        )
    )
    RETURNING runs.id, tenant
    """,
    into=runs,
)


def why_not(tx: sa.Connection, lease: Lease, target: Status) -> DurableError:
    """Explain a refused move; reads after the refusal, for the message only."""
    row = tx.execute(
        sa.select(runs.c.status, runs.c.epoch).where(runs.c.id == lease.run_id)
    ).one_or_none()
    if row is None or row.epoch != lease.epoch:
        return LeaseLost(lease.run_id, lease.epoch)
    return IllegalMove(lease.run_id, row.status, target.value)


def finish(
    time: Timeline, *, output: str | None = None, error: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the columns of a run that ends."""
    return {
        "output": output,
        "error": json.dumps(error) if error else None,
        "finished_at": time.now(),
        "holds_thread": sa.false(),
    }


def saved(replayed: Replayed) -> dict[str, Any]:
    """Return the columns that count what replay spared."""
    if not replayed.steps:
        return {}
    return {
        "saved_steps": runs.c.saved_steps + replayed.steps,
        "saved_tokens": runs.c.saved_tokens + replayed.tokens,
    }


# --- by people and by time -------------------------------------------------------------


def shift(tx: sa.Connection, run_id: str, target: Status, **values: Any) -> bool:
    """Change the status of a run that no worker owns; False if its status doesn't lead there."""
    allowed = sources(target) - {Status.RUNNING, Status.CANCELLING}
    moved = tx.execute(
        sa.update(runs)
        .where(runs.c.id == run_id, runs.c.status.in_([status.value for status in allowed]))
        .values(status=target.value, **values)
    )
    return moved.rowcount == 1


def wake(tx: sa.Connection, time: Timeline, run_id: str) -> bool:
    """Queue a parked run, whose row the caller has locked; False if it isn't parked.

    It goes to the front of its priority (it has waited since it was submitted).
    """
    moved = tx.execute(
        sa.update(runs)
        .where(runs.c.id == run_id, runs.c.status.in_([status.value for status in PARKED]))
        .values(status=Status.QUEUED.value, run_after=runs.c.created_at, wake_at=None)
        .returning(runs.c.tenant)
    ).one_or_none()
    if moved is not None:
        events.append(tx, time, run_id, moved.tenant, "run_resumed", "store")
    return moved is not None


def to_be_woken(time: Timeline) -> sa.Select[Any]:
    """Return the query of the parked runs whose time has come."""
    return sa.select(runs.c.id).where(_is_to_be_woken(time))


def _is_to_be_woken(time: Timeline) -> sa.ColumnElement[bool]:
    return sa.and_(
        runs.c.wake_at.is_not(None),
        runs.c.wake_at <= time.now(),
        runs.c.status.in_([status.value for status in PARKED]),
    )


def wake_sleepers(tx: sa.Connection, time: Timeline) -> int:
    """Queue the parked runs whose time has come; return how many."""
    due = tx.execute(
        sa.update(runs)
        .where(_is_to_be_woken(time))
        .values(status=Status.QUEUED.value, run_after=runs.c.wake_at, wake_at=None)
        .returning(runs.c.id, runs.c.tenant)
    ).all()
    for row in due:
        events.append(tx, time, row.id, row.tenant, "run_resumed", "store")
    return len(due)


def announce(
    tx: sa.Connection, time: Timeline, worker: str, agents: Collection[tuple[str, str]]
) -> None:
    """Say that a worker lives and what it has; forget those that died long ago."""
    name = clean_text(worker)
    values = {
        "agents": "\n" + "".join(f"{name}\t{version}\n" for name, version in sorted(agents)),
        "seen_at": time.now(),
    }
    updated = tx.execute(sa.update(workers).where(workers.c.name == name).values(**values))
    if updated.rowcount == 0:
        tx.execute(_insert_ignoring(tx, workers).values(name=name, **values))
        tx.execute(sa.delete(workers).where(workers.c.seen_at < time.later(-FORGET_SECONDS)))


def depart(tx: sa.Connection, worker: str) -> None:
    """Forget a worker that stopped in good order."""
    tx.execute(sa.delete(workers).where(workers.c.name == clean_text(worker)))


@dataclass(frozen=True, slots=True)
class Page:
    """Which runs to list: newest first, those before a cursor (created_at, id)."""

    tenant: str | None = None
    status: Status | None = None
    agent: str | None = None
    agents: Collection[str] | None = None  # only these, whatever `agent` says
    thread: str | None = None
    before: tuple[datetime, str] | None = None
    limit: int = 100


def listed(page: Page) -> sa.Select[Any]:
    """Return the query of a page of runs."""
    query = sa.select(runs).order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(page.limit)
    for column in ("tenant", "status", "agent", "thread"):
        wanted = getattr(page, column)
        if wanted is not None:
            query = query.where(runs.c[column] == str(wanted))
    if page.agents is not None:
        query = query.where(runs.c.agent.in_(page.agents))
    if page.before is not None:
        # a row value, not an OR: the index starts at the cursor
        query = query.where(sa.tuple_(runs.c.created_at, runs.c.id) < _cursor(page.before))
    return query


def _cursor(place: tuple[datetime, str]) -> sa.ColumnElement[Any]:
    at, id_ = place
    return sa.tuple_(sa.literal(at, UtcTime()), sa.literal(id_))
