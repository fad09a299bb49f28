"""Load a journal; append many steps, of many runs, under their fences, in one commit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from langgraph_durable.errors import DurableError, LeaseLost, StepConflict
from langgraph_durable.runs import Lease, Question, Step, StepState, Usage
from langgraph_durable.store import rows
from langgraph_durable.store.bulk import Bulk
from langgraph_durable.store.schema import runs, steps
from langgraph_durable.store.timeline import Timeline
from langgraph_durable.values import clean_text, readable


@dataclass(frozen=True, slots=True)
class Write:
    """One step of one run, under the lease that may write it."""

    lease: Lease
    step: Step


_COLUMNS: Mapping[str, str] = {
    "run_id": "text",
    "epoch": "bigint",
    "key": "text",
    "seq": "integer",
    "kind": "text",
    "name": "text",
    "state": "text",
    "fingerprint": "text",
    "request": "text",
    "value": "text",
    "place": "text",
    "error": "text",
    "attempts": "integer",
    "input_tokens": "integer",
    "output_tokens": "integer",
    "approval_id": "text",
    "seconds": "double precision",
    "compensation": "text",
}

# Only an unrecorded step may be written again (an intent, a failed try, a question);
# a recorded one is an answer and never changes. An epoch never writes over a later one.
_UPSERT = """
    ON CONFLICT (run_id, key) DO UPDATE SET {sets}
    WHERE steps.state <> 'recorded' AND steps.epoch <= excluded.epoch
    RETURNING run_id, key
""".format(
    sets=", ".join(
        f"{name} = excluded.{name}"
        for name in [*_COLUMNS, "recorded_at"]
        if name not in ("run_id", "key", "seq")
    )
)
_LIST = ", ".join(_COLUMNS)
_ASKED = ", ".join(f"asked.{name}" for name in _COLUMNS)

# PostgreSQL does it in one statement: the fence (the lease is extended, which locks the row
# against a claim), and the steps of exactly those runs that it let through.
_POSTGRES = Bulk(
    _COLUMNS,
    f"""
    WITH asked AS MATERIALIZED {{rows}}, fence AS (
        UPDATE runs SET lease_until = {{until}}
        FROM (SELECT DISTINCT run_id, epoch FROM asked) AS mine
        WHERE runs.id = mine.run_id AND runs.epoch = mine.epoch AND runs.status IN ('running', 'cancelling')
        RETURNING runs.id, runs.epoch
    )
    INSERT INTO steps ({_LIST}, recorded_at)
    SELECT {_ASKED}, {{now}}
    FROM asked JOIN fence ON fence.id = asked.run_id AND fence.epoch = asked.epoch
    {_UPSERT}
    """,  # noqa: S608  # built from the constant column names above
    one=f"""
    WITH fence AS (
        UPDATE runs SET lease_until = {{until}}
        WHERE id = %(run_id)s AND epoch = %(epoch)s AND status IN ('running', 'cancelling')
        RETURNING id
    )
    INSERT INTO steps ({_LIST}, recorded_at) SELECT {{fields}}, {{now}} FROM fence
    {_UPSERT}
    """,  # noqa: S608  # the same
    into=steps,
)
_SQLITE = Bulk(
    _COLUMNS,
    f"""
    WITH asked AS MATERIALIZED {{rows}}
    INSERT INTO steps ({_LIST}, recorded_at)
    SELECT {_ASKED}, {{now}}
    FROM asked JOIN runs ON runs.id = asked.run_id AND runs.epoch = asked.epoch
    WHERE runs.status IN ('running', 'cancelling')
    {_UPSERT}
    """,  # noqa: S608  # the same
    into=steps,
)
_SQLITE_LEASES = Bulk(
    {"run_id": "text", "epoch": "bigint"},
    """
    UPDATE runs SET lease_until = {until}
    WHERE id IN (SELECT run_id FROM {rows}) AND (id, epoch) IN (SELECT run_id, epoch FROM {rows})
    AND status IN ('running', 'cancelling')
    """,
)


def append(
    tx: sa.Connection, time: Timeline, writes: Sequence[Write], lease_seconds: float
) -> list[DurableError | None]:
    """Write steps; for each return None, or why it was refused. Extends the leases.

    A refused step changes nothing and doesn't hinder the others: LeaseLost if the run has
    another owner, StepConflict if its key was recorded by another writer first. A step
    that was already written by the same claim with the same value counts as written: the
    commit's answer was lost on the way, and this is the second try.
    """
    table = [_row(write) for write in writes]
    if tx.dialect.name == "postgresql":
        found = _POSTGRES.execute(tx, time, table, lease_seconds)
    else:
        leases = [{"run_id": row["run_id"], "epoch": row["epoch"]} for row in table]
        _SQLITE_LEASES.execute(tx, time, leases, lease_seconds)
        found = _SQLITE.execute(tx, time, table, lease_seconds)
    written = {(row.run_id, row.key) for row in found}
    return [None if (w.lease.run_id, w.step.key) in written else _refusal(tx, w) for w in writes]


_STEP_COLUMNS = tuple(name for name in _COLUMNS if name not in ("run_id", "epoch"))
_of_step = attrgetter(*_STEP_COLUMNS)
_SAID = ("name", "place", "request", "error")  # by tools and graphs, for people


def _row(write: Write) -> dict[str, Any]:
    row = dict(zip(_STEP_COLUMNS, _of_step(write.step), strict=True))
    for name in _SAID:
        if row[name]:
            row[name] = clean_text(row[name])
    row["state"] = write.step.state.value
    row["run_id"], row["epoch"] = write.lease.run_id, write.lease.epoch
    return row


def _refusal(tx: sa.Connection, write: Write) -> DurableError | None:
    """Explain a step that wasn't written; reads after the refusal."""
    lease, step = write.lease, write.step
    owner = tx.execute(
        sa.select(runs.c.epoch, runs.c.status).where(runs.c.id == lease.run_id)
    ).one_or_none()
    if owner is None or owner.epoch != lease.epoch or owner.status not in ("running", "cancelling"):
        return LeaseLost(lease.run_id, lease.epoch)
    stored = get(tx, lease.run_id, step.key)
    mine = stored is not None and stored.epoch == lease.epoch
    if (
        stored is not None
        and mine
        and (stored.value, stored.fingerprint) == (step.value, step.fingerprint)
    ):
        return None
    return StepConflict(lease.run_id, step.key)


def await_people(
    tx: sa.Connection, time: Timeline, lease: Lease, asked: Sequence[Question]
) -> None:
    """Record the steps that wait for a person, with the digest of what they were shown."""
    last = tx.execute(
        sa.select(sa.func.max(steps.c.seq)).where(steps.c.run_id == lease.run_id)
    ).scalar()
    waiting = [
        Step(
            key=question.key,
            kind="tool" if question.kind == "tool" else "ask",
            name=question.tool,
            state=StepState.ASKING,
            fingerprint=question.digest,
            request=readable(question.shown),
            seq=(last or 0) + i,
        )
        for i, question in enumerate(asked, start=1)
        if question.kind in ("tool", "ask")
    ]
    if waiting:
        append(tx, time, [Write(lease, step) for step in waiting], lease_seconds=0)


def approved(tx: sa.Connection, run_id: str, key: str, approval_id: str) -> None:
    """Keep the id of an approval on the step that it was given for."""
    tx.execute(
        sa.update(steps)
        .where(
            steps.c.run_id == run_id, steps.c.key == key, steps.c.state == StepState.ASKING.value
        )
        .values(approval_id=approval_id)
    )


def reopen(tx: sa.Connection, run_id: str, key: str) -> None:
    """Turn a recorded failure back into a failed try, so that the call is made again."""
    tx.execute(
        sa.update(steps)
        .where(
            steps.c.run_id == run_id,
            steps.c.key == key,
            steps.c.state == StepState.RECORDED.value,
            steps.c.value.is_(None),
        )
        .values(state=StepState.FAILED.value)
    )


def get(tx: sa.Connection, run_id: str, key: str) -> Step | None:
    """Return one step, if there is one under this key."""
    row = tx.execute(
        sa.select(steps).where(steps.c.run_id == run_id, steps.c.key == key)
    ).one_or_none()
    return None if row is None else rows.step(row)


def of_run(tx: sa.Connection, run_id: str) -> list[Step]:
    """Return a run's whole journal in the order of recording, in one query."""
    found = tx.execute(
        sa.select(steps).where(steps.c.run_id == run_id).order_by(steps.c.seq, steps.c.recorded_at)
    )
    return [rows.step(row) for row in found.all()]


@dataclass(frozen=True, slots=True)
class Used:
    """What a tenant's runs asked of one model route or tool."""

    kind: str
    name: str
    calls: int
    input_tokens: int
    output_tokens: int


def used_by_tenant(
    tx: sa.Connection, time: Timeline, tenant: str, seconds: float, except_run: str
) -> list[Used]:
    """Sum up what a tenant's runs asked of models and tools lately, but for one run."""
    since = time.later(-seconds)
    found = tx.execute(
        sa.select(
            steps.c.kind,
            steps.c.name,
            sa.func.count().label("calls"),
            sa.func.sum(steps.c.input_tokens).label("input"),
            sa.func.sum(steps.c.output_tokens).label("output"),
        )
        .join(runs, runs.c.id == steps.c.run_id)
        .where(
            runs.c.tenant == tenant,
            runs.c.id != except_run,
            sa.or_(runs.c.finished_at.is_(None), runs.c.finished_at >= since),
            steps.c.state == StepState.RECORDED.value,
            steps.c.kind.in_(("llm", "tool")),
            steps.c.recorded_at >= since,
        )
        .group_by(steps.c.kind, steps.c.name)
    )
    return [
        Used(row.kind, row.name, int(row.calls), int(row.input), int(row.output)) for row in found
    ]


def usage(tx: sa.Connection, run_ids: Collection[str]) -> dict[str, Usage]:
    """Sum up what each run asked of models, by route, and of tools."""
    done = sa.case((steps.c.state == StepState.RECORDED.value, 1), else_=0)
    route = sa.case((steps.c.kind == "llm", steps.c.name), else_="").label("route")
    found = tx.execute(
        sa.select(
            steps.c.run_id,
            route,
            sa.func.sum(sa.case((steps.c.kind == "llm", done), else_=0)).label("models"),
            sa.func.sum(sa.case((steps.c.kind == "tool", done), else_=0)).label("tools"),
            sa.func.sum(steps.c.input_tokens).label("input"),
            sa.func.sum(steps.c.output_tokens).label("output"),
        )
        .where(steps.c.run_id.in_(run_ids))
        .group_by(steps.c.run_id, sa.text("route"))
    )
    by_run: dict[str, list[Any]] = {}
    for row in found:
        by_run.setdefault(row.run_id, []).append(row)
    return {run_id: _summed(parts) for run_id, parts in by_run.items()}


def _summed(parts: Sequence[Any]) -> Usage:
    return Usage(
        model_calls=sum(int(part.models) for part in parts),
        tool_calls=sum(int(part.tools) for part in parts),
        input_tokens=sum(int(part.input) for part in parts),
        output_tokens=sum(int(part.output) for part in parts),
        by_route={
            part.route: (int(part.input), int(part.output))
            for part in parts
            if part.input or part.output
        },
    )
