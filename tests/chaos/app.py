"""The app of one process: its worker's machine may have a clock that is wrong."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from langgraph_durable.clock import SystemClock
from tests.chaos.agents import from_environment

SKEW = timedelta(seconds=float(os.environ["CHAOS_SKEW"]))


def _wrong(self: SystemClock) -> datetime:
    return datetime.now(UTC) + SKEW


SystemClock.now = _wrong  # type: ignore[method-assign]  # as if the machine's own were wrong
durable = from_environment()
