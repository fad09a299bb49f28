"""Time, ids and chance, passed in so that tests never sleep.

The store asks the database for the time on PostgreSQL (the clocks of workers differ)
unless it was given a clock; on SQLite, where every process shares one machine, it asks
the clock.
"""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        return datetime.now(UTC)


class Chance(Protocol):
    """Where random numbers and ids come from."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...

    def uuid(self) -> uuid.UUID:
        """Return a new id."""
        ...


class SystemChance:
    """The machine's own source of chance."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        return random.random()  # noqa: S311  # a business random number, not a secret

    def uuid(self) -> uuid.UUID:
        """Return a new random id (version 4)."""
        return uuid.uuid4()
