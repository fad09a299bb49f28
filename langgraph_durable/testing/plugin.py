"""Fixtures for pytest: `durable` and `worker` on a fresh SQLite file, and the clock they go by.

    @pytest.fixture
    def durable_options():                  # optional: what Durable is given
        return {"tools": hub, "models": {"fast": ScriptedModel(["refund"])}}

    def test_it(durable, worker, durable_clock):
        durable.graph("support", graph, mode="steps")
        run_id = durable.submit("support", {"ticket": "…"})
        worker.run_until_idle()
        assert durable.get(run_id).output == ...

pytest loads this in every session, so nothing heavy is imported before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from langgraph_durable import Durable, Worker
    from langgraph_durable.testing import FakeClock


@pytest.fixture
def durable_options() -> dict[str, Any]:
    """What `durable` is made with: override it in a test file."""
    return {}


@pytest.fixture
def durable_clock() -> FakeClock:
    """The clock of `durable`: it stands still until it is advanced."""
    from langgraph_durable.testing import FakeClock

    return FakeClock()


@pytest.fixture
def durable(
    durable_options: dict[str, Any], durable_clock: FakeClock, tmp_path: Path
) -> Iterator[Durable]:
    """A Durable on a fresh SQLite file."""
    from langgraph_durable import Durable

    options = {"clock": durable_clock, **durable_options}
    made = Durable(f"sqlite:///{tmp_path / 'durable.db'}", **options)
    yield made
    made.close()


@pytest.fixture
def worker(durable: Durable) -> Worker:
    """A worker of `durable`; an async test calls `asyncio.to_thread(worker.run_once)`."""
    from langgraph_durable import Worker

    return Worker(durable, "test-worker")
