"""Five usual mistakes, each caught by three tools that name the line or the step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broken_agents import BILLING, BROKEN, Broken, clock, ledger, notes_and_pays, writes

from langgraph_durable import Decision, Durable, Worker, lint
from langgraph_durable.errors import NonDeterminismError
from langgraph_durable.testing import crash_everywhere, export_run, replay_check


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest) -> Iterator[Broken]:
    """Each of them, in a fresh world."""
    ledger.clear()
    began = clock.now()
    yield BROKEN[request.param]
    clock.turn_to(began)


@pytest.mark.promise("S-50")
def test_the_harness_catches_it(broken: Broken) -> None:
    report = crash_everywhere(broken.agent, {}, tools=broken.tools(), ledger=ledger, clock=clock)
    with pytest.raises(AssertionError) as caught:
        report.assert_ok()
    assert broken.harness in str(caught.value)


@pytest.mark.promise("S-50")
@pytest.mark.promise("S-75")
def test_the_lint_catches_it(broken: Broken) -> None:
    target = broken.tools() if broken.lint_tools else broken.agent
    (found,) = [one for one in lint.check(target) if one.code == broken.lint]
    line = Path(found.file).read_text(encoding="utf-8").splitlines()[found.line - 1]
    assert broken.line in line
    assert f"{found.file}:{found.line}: [{broken.lint}]" in str(found)


@pytest.mark.promise("S-50")
def test_the_replay_check_catches_it(broken: Broken) -> None:
    """Code that was right when it was recorded, and is broken today."""
    recorded = record(broken.right or broken.agent, (broken.right_tools or broken.tools)())
    broken.before_replay()
    report = replay_check(broken.agent, recorded, tools=broken.tools(), ledger=ledger)
    with pytest.raises(NonDeterminismError) as caught:
        report.assert_ok()
    assert broken.replay in str(caught.value)


def record(agent: Any, tools: Any, given: Any = None) -> dict[str, Any]:
    """Run an agent to its end, and export the run."""
    durable = Durable("sqlite://", tools=tools)
    if asyncio.iscoroutinefunction(agent):
        durable.agent("a")(agent)
    else:
        durable.graph("a", agent, mode="steps")
    run_id = durable.submit("a", given if given is not None else {})
    for _ in range(2):
        Worker(durable).run_until_idle()
        for question in durable.questions(run_id=run_id):
            durable.decide(question.id, Decision.respond("mei", "yes"))
    assert durable.get(run_id).status == "succeeded", durable.get(run_id).error
    exported = export_run(durable, run_id)
    durable.close()
    return exported


def test_a_connection_outside_of_a_step_is_refused_and_its_line_is_named() -> None:
    """In CI nothing is sent, whatever the code under test does."""
    recorded = record(writes, None)
    recorded["run"]["input"] = '"over the network"'
    report = replay_check(writes, recorded)
    said = str(report)
    assert f"the code reached for {BILLING[7:18]} " in said
    assert "broken_agents.py:" in said
    assert "in writes" in said


def test_a_write_of_ones_own_without_a_key_is_named_by_the_lint() -> None:
    (found,) = lint.check(notes_and_pays)
    assert found.code == "no-key"
    assert "httpx.post" in str(found)
