"""Columns that are sealed when the database has encryption keys: all of it happens here.

A payload column is declared `Sealed`, a digest that is looked up `Blinded`; whoever writes or
reads one goes through its type and knows nothing of keys. Without keys the types do nothing,
and SQLAlchemy calls no code of theirs.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from langgraph_durable.encryption import Keyring

#: An engine has a dialect of its own, and column types are only ever told the dialect.
_keyrings: WeakKeyDictionary[sa.Dialect, Keyring] = WeakKeyDictionary()


def attach(engine: sa.Engine, keyring: Keyring) -> None:
    """Have this engine's payloads sealed. Before its first statement: processors are kept."""
    _keyrings[engine.dialect] = keyring


def keyring_of(dialect: sa.Dialect) -> Keyring | None:
    """Return the keys of an engine's dialect."""
    return _keyrings.get(dialect)


class Sealed(TypeDecorator[str]):
    """Text that is encrypted at rest, bound to its place: `table.column`."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        """Call nothing without keys."""
        return super().bind_processor(dialect) if dialect in _keyrings else None

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        """Call nothing without keys."""
        return super().result_processor(dialect, coltype) if dialect in _keyrings else None

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        """Seal what is written."""
        keyring = keyring_of(dialect)
        return value if value is None or keyring is None else self.close(keyring, value)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> str | None:
        """Open what is read."""
        keyring = keyring_of(dialect)
        return value if value is None or keyring is None else keyring.open(value, self.place)

    def close(self, keyring: Keyring, text: str) -> str:
        """Seal one text with these keys."""
        return keyring.seal(text, self.place)


class Blinded(Sealed):
    """A digest that can still be compared and looked up."""

    cache_ok = True

    def close(self, keyring: Keyring, text: str) -> str:
        """Blind one digest: the same text gives the same."""
        return keyring.blind(text, self.place)
