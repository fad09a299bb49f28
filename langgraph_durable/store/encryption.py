"""Unlock a database that is encrypted, and seal all that it holds with the first key.

The table `encryption` has one row in a database that was ever opened with keys: the key of its
digests, sealed. It opens or it doesn't, so a process with wrong keys, or with none, learns it
before it writes anything.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from langgraph_durable.encryption import BLIND, KEYS_VARIABLE, MARK, TAG, Keyring
from langgraph_durable.errors import EncryptionError
from langgraph_durable.store.schema import encryption, metadata
from langgraph_durable.store.sealed import Blinded, Sealed, keyring_of

PART = 200  # rows of one transaction
Place = tuple[Any, ...]  # a primary key
_BLINDING_BYTES = 64  # AES-256-SIV


def unlock(tx: sa.Connection) -> bool:
    """Make sure that this process has the keys of this database; False if it was never given any.

    Raises:
        EncryptionError: the database is encrypted and the keys are missing or are others.
    """
    keyring = keyring_of(tx.dialect)
    kept = tx.execute(sa.select(encryption.c.digests)).scalar()
    if keyring is None:
        if kept is not None:
            raise EncryptionError(
                "this database is encrypted, and no keys are given: "
                f"Durable(..., encryption_keys=[...]) or {KEYS_VARIABLE}. Nothing was written."
            )
        return True
    if kept is not None:
        keyring.learn(b64decode(kept))
    return kept is not None


def found(tx: sa.Connection) -> None:
    """Make the row of a database that is encrypted from now on; of two at once, one makes it."""
    make = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
    made = b64encode(os.urandom(_BLINDING_BYTES)).decode("ascii")
    tx.execute(make(encryption).values(id=1, digests=made).on_conflict_do_nothing())
    unlock(tx)


# --- rotation --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Held:
    """A table with sealed values, as they are stored."""

    table: sa.TableClause
    keys: Sequence[str]
    stale: sa.ColumnElement[bool]
    renewed: Callable[[Mapping[str, Any]], dict[str, Any]]  # the new values of a row


def reseal(tx: sa.Connection, part: int, after: Place | None) -> tuple[int, Place | None] | None:
    """Seal the next rows of one of the tables with the first key; None if there is no such table.

    Returns how many rows, and the last one's key to go on behind; None when the table is done.
    A row that somebody writes meanwhile is left to them: theirs is sealed with the first key.

    Raises:
        EncryptionError: there are no keys, or a row needs one that is not given.
    """
    keyring = keyring_of(tx.dialect)
    if keyring is None:
        raise EncryptionError(
            f"there is no key to encrypt with: set {KEYS_VARIABLE}, the new key first"
        )
    # last the row of the keys: until then each process needs the old key, as the others do
    held = [*_ours(keyring), *_checkpoints(tx, keyring), _held(encryption, keyring)]
    if part >= len(held):
        return None
    return _reseal_some(tx, held[part], after)


def _reseal_some(tx: sa.Connection, held: _Held, after: Place | None) -> tuple[int, Place | None]:
    columns, keys = held.table.c, [held.table.c[name] for name in held.keys]
    query = sa.select(held.table).where(held.stale).order_by(*keys).limit(PART)
    if after is not None:
        query = query.where(sa.tuple_(*keys) > sa.tuple_(*(sa.literal(key) for key in after)))
    last = None
    rows = tx.execute(query).all()
    for row in rows:
        was = row._asdict()
        values = held.renewed(was)
        same = [columns[name] == was[name] for name in (*held.keys, *values)]
        tx.execute(sa.update(held.table).where(*same).values(**values))
        last = tuple(was[name] for name in held.keys)
    return len(rows), last


def _ours(keyring: Keyring) -> list[_Held]:
    tables = [table for table in metadata.sorted_tables if table is not encryption]
    return [_held(t, keyring) for t in tables if any(isinstance(c.type, Sealed) for c in t.c)]


def _held(table: sa.Table, keyring: Keyring) -> _Held:
    kinds = {c.name: c.type for c in table.c if isinstance(c.type, Sealed)}
    raw = sa.table(table.name, *(sa.column(column.name) for column in table.columns))
    stale = [_is_stale(raw.c[name], kind, keyring) for name, kind in kinds.items()]

    def renewed(row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: kind.close(keyring, keyring.open(row[name], kind.place))
            for name, kind in kinds.items()
            if row[name] is not None
        }

    return _Held(raw, [c.name for c in table.primary_key], sa.or_(*stale), renewed)


def _is_stale(column: Any, kind: Sealed, keyring: Keyring) -> sa.ColumnElement[bool]:
    fresh = f"{BLIND}%" if isinstance(kind, Blinded) else f"{MARK}{keyring.first}:%"
    stale: sa.ColumnElement[bool] = sa.and_(column.is_not(None), column.not_like(fresh))
    return stale


_WRITE = ("thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx")
#: LangGraph's values: database -> table, its key, the column of the value.
_VALUES: Mapping[str, Sequence[tuple[str, Sequence[str], str]]] = {
    "sqlite": (
        ("checkpoints", ("thread_id", "checkpoint_ns", "checkpoint_id"), "checkpoint"),
        ("writes", _WRITE, "value"),
    ),
    "postgresql": (
        ("checkpoint_blobs", ("thread_id", "checkpoint_ns", "channel", "version"), "blob"),
        ("checkpoint_writes", _WRITE, "blob"),
    ),
}


def _checkpoints(tx: sa.Connection, keyring: Keyring) -> list[_Held]:
    inspector = sa.inspect(tx)
    found = []
    for name, keys, value in _VALUES[tx.dialect.name]:
        if inspector.has_table(name):
            table = sa.table(name, *(sa.column(c) for c in (*keys, "type", value)))
            tag = table.c.type
            stale = table.c[value].is_not(None) & tag.not_like(f"%{TAG}{keyring.first}")
            found.append(_Held(table, keys, stale, partial(_renewed_value, keyring, value)))
    return found


def _renewed_value(keyring: Keyring, value: str, row: Mapping[str, Any]) -> dict[str, Any]:
    tag, data = keyring.seal_typed(*keyring.open_typed(row["type"], bytes(row[value])))
    return {"type": tag, value: data}
