"""The order in which a run is unwound, whatever the clocks of its workers said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from langgraph_durable.modes.unwind import in_order
from langgraph_durable.runs import Step

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def done(key: str, epoch: int, seconds: float, seq: int) -> Step:
    at = NOON + timedelta(seconds=seconds)
    return Step(key, "tool", compensation="{}", epoch=epoch, seq=seq, recorded_at=at)


@pytest.mark.promise("S-45")
def test_what_a_later_claim_did_is_undone_first_even_if_its_clock_was_behind():
    steps = [done("a", 1, 10, 1), done("b", 2, 4, 2), done("c", 2, 5, 3)]
    assert [step.key for step in in_order(steps)] == ["c", "b", "a"]


@pytest.mark.promise("S-45")
def test_within_a_claim_the_last_one_recorded_comes_first_and_reads_are_left_out():
    steps = [done("begun first, ended last", 1, 9, 1), done("b", 1, 5, 2), Step("read", "tool")]
    assert [step.key for step in in_order(steps)] == ["begun first, ended last", "b"]
