"""The table of statuses, and the small values of a run."""

from __future__ import annotations

import pytest

from langgraph_durable.runs import FINAL, NEXT, Effect, Refused, Retry, Status, sources


@pytest.mark.promise("S-11")
def test_every_status_has_a_row_and_a_run_that_ended_leads_nowhere_but_by_a_retry():
    assert set(NEXT) == set(Status)
    for status in FINAL:
        assert status.is_final
        assert NEXT[status] <= ({Status.QUEUED} if status is Status.FAILED else set())
    assert not any(status.is_final for status in set(Status) - FINAL)


@pytest.mark.promise("S-11")
def test_sources_are_the_table_read_backwards():
    for target in Status:
        assert sources(target) == {s for s in Status if target in NEXT[s]}


@pytest.mark.promise("S-63")
def test_only_a_queued_or_a_leased_run_leads_to_running():
    assert sources(Status.RUNNING) == {Status.QUEUED, Status.RUNNING}


@pytest.mark.promise("H-11")
def test_a_cancelling_run_leads_only_to_its_cancel():
    assert NEXT[Status.CANCELLING] == {Status.CANCELLING, Status.CANCELLED}


@pytest.mark.promise("S-11")
def test_every_status_is_reached_and_every_unfinished_one_can_end():
    reached, ahead = {Status.QUEUED}, {Status.QUEUED}
    while ahead := {n for s in ahead for n in NEXT[s]} - reached:
        reached |= ahead
    assert reached == set(Status)
    for status in set(Status) - FINAL:
        seen, ahead = {status}, {status}
        while ahead := {n for s in ahead for n in NEXT[s]} - seen:
            seen |= ahead
        assert seen & FINAL


@pytest.mark.parametrize(
    "numbers", [{"attempts": 0}, {"first_seconds": -1}, {"limit_seconds": -1}, {"factor": 0.5}]
)
def test_a_retry_that_could_never_try_is_refused(numbers: dict[str, float]):
    with pytest.raises(ValueError, match="Retry needs"):
        Retry(**numbers)  # type: ignore[arg-type]


@pytest.mark.promise("S-34")
def test_a_refusal_says_who_and_why_and_an_expiry_is_told_apart():
    assert str(Refused("too much", "mei")) == "The call was refused by mei: too much"
    assert str(Refused("", "mei")) == "The call was refused by mei."
    assert "nobody approved it in time" in str(Refused("", "", expired=True))


def test_only_a_read_is_no_write():
    assert [effect.is_write for effect in Effect] == [False, True, True]
