"""API keys: who calls, for which tenant, and what they may do. Only digests are stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from langgraph_durable.errors import Conflict, NotFound
from langgraph_durable.store.schema import api_keys
from langgraph_durable.store.timeline import Timeline


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is known after it was made: everything but its secret."""

    id: str
    tenant: str
    name: str
    roles: frozenset[str]
    scopes: frozenset[str]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    is_live: bool

    @property
    def agents(self) -> frozenset[str] | None:
        """The agents that it may touch, or None for all of its tenant."""
        named = {scope.removeprefix("agent:") for scope in self.scopes}
        return frozenset(named) or None


@dataclass(frozen=True, slots=True)
class NewKey:
    """What is known when a key is made; `digest` is keyed with the pepper."""

    id: str
    tenant: str
    name: str
    roles: Sequence[str]
    scopes: Sequence[str]
    digest: str
    created_by: str
    expires_in_seconds: float | None = None


def insert(
    tx: sa.Connection, time: Timeline, new: NewKey, replaces: str | None = None
) -> sa.Row[Any]:
    """Store a key and return its row.

    Raises:
        Conflict: a live key of the tenant has that name: the audit could not tell them apart.
    """
    if tx.dialect.name == "postgresql":  # two who make a key at once must not both see it free
        name = f"{new.tenant}\x1f{new.name}"
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(name, 1))))
    taken = tx.execute(
        sa.select(api_keys.c.id).where(
            api_keys.c.tenant == new.tenant,
            api_keys.c.name == new.name,
            api_keys.c.id != (replaces or ""),
            _is_live(time),
        )
    ).first()
    if taken is not None:
        raise Conflict(
            f"tenant {new.tenant!r} has a live key called {new.name!r} ({taken.id}). "
            "Choose another name, rotate that key or revoke it."
        )
    expires = new.expires_in_seconds
    tx.execute(
        sa.insert(api_keys).values(
            id=new.id,
            tenant=new.tenant,
            name=new.name,
            roles=json.dumps(sorted(new.roles)),
            scopes=json.dumps(sorted(new.scopes)),
            digest=new.digest,
            created_at=time.now(),
            created_by=new.created_by,
            expires_at=None if expires is None else time.later(expires),
        )
    )
    return _one(tx, time, api_keys.c.id == new.id, new.id)


def find(tx: sa.Connection, time: Timeline, key_id: str) -> tuple[ApiKey, str] | None:
    """Return a key and its digest, live or not; None if there is none."""
    row = tx.execute(_query(time).where(api_keys.c.id == key_id)).one_or_none()
    return None if row is None else (from_row(row), row.digest)


def get(tx: sa.Connection, time: Timeline, key_id: str, tenant: str | None) -> ApiKey:
    """Return a key.

    Raises:
        NotFound: no such key for this tenant.
    """
    return from_row(_one(tx, time, _which(key_id, tenant), key_id))


def listed(tx: sa.Connection, time: Timeline, tenant: str | None) -> list[ApiKey]:
    """Return keys, oldest first."""
    query = _query(time).order_by(api_keys.c.created_at, api_keys.c.id)
    if tenant is not None:
        query = query.where(api_keys.c.tenant == tenant)
    return [from_row(row) for row in tx.execute(query)]


def revoke(tx: sa.Connection, time: Timeline, key_id: str, tenant: str | None, by: str) -> ApiKey:
    """Revoke a key; revoking it again changes nothing.

    Raises:
        NotFound: no such key for this tenant.
    """
    tx.execute(
        sa.update(api_keys)
        .where(_which(key_id, tenant), api_keys.c.revoked_at.is_(None))
        .values(revoked_at=time.now(), revoked_by=by)
    )
    return get(tx, time, key_id, tenant)


def end_after(tx: sa.Connection, time: Timeline, key_id: str, seconds: float) -> None:
    """Let a key expire in some seconds, unless it ends sooner anyway."""
    end = time.later(seconds)
    tx.execute(
        sa.update(api_keys)
        .where(
            api_keys.c.id == key_id,
            sa.or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > end),
        )
        .values(expires_at=end)
    )


def from_row(row: sa.Row[Any]) -> ApiKey:
    """Build an ApiKey from a row."""
    return ApiKey(
        id=row.id,
        tenant=row.tenant,
        name=row.name,
        roles=frozenset(json.loads(row.roles)),
        scopes=frozenset(json.loads(row.scopes)),
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        is_live=bool(row.is_live),
    )


def _is_live(time: Timeline) -> sa.ColumnElement[bool]:
    return sa.and_(
        api_keys.c.revoked_at.is_(None),
        sa.or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > time.now()),
    )


def _query(time: Timeline) -> sa.Select[Any]:
    return sa.select(api_keys, _is_live(time).label("is_live"))


def _which(key_id: str, tenant: str | None) -> sa.ColumnElement[bool]:
    named = api_keys.c.id == key_id
    return named if tenant is None else sa.and_(named, api_keys.c.tenant == tenant)


def _one(
    tx: sa.Connection, time: Timeline, which: sa.ColumnElement[bool], key_id: str
) -> sa.Row[Any]:
    row = tx.execute(_query(time).where(which)).one_or_none()
    if row is None:
        raise NotFound("key", key_id)
    return row
