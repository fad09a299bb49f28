"""The lint: each mistake is named with its line, and clean code is left alone."""

from __future__ import annotations

import os
import random
import time as clock
import uuid
from datetime import datetime as moment
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from langgraph_durable import current_run, lint


def rush_hour() -> bool:
    return moment.now().hour > 17


async def by_the_clock(state: Any) -> Any:
    return {"late": rush_hour()}


async def by_another_clock(state: Any) -> Any:
    return {"at": clock.time()}


async def by_chance(state: Any) -> Any:
    return {"dice": random.random()}


async def by_a_new_id(state: Any) -> Any:
    return {"id": uuid.uuid4()}


async def by_the_environment(state: Any) -> Any:
    return {"mode": os.environ["MODE"]}


async def by_the_network(state: Any) -> Any:
    import httpx

    return {"page": httpx.get("http://127.0.0.1:1/")}  # noqa: ASYNC210


async def by_blocking(state: Any) -> Any:
    clock.sleep(1)


async def by_swallowing(state: Any) -> Any:
    try:
        return interrupt("sure?")
    except Exception:
        return "no"


async def by_one_key_in_a_loop(state: Any) -> Any:
    for text in state["texts"]:
        await current_run().llm("classify", text)


async def by_a_made_up_key(state: Any) -> Any:
    await current_run().llm(f"classify:{clock.time()}", "text")


MISTAKES = [
    (by_the_clock, "clock"),
    (by_another_clock, "clock"),
    (by_chance, "random"),
    (by_a_new_id, "uuid"),
    (by_the_environment, "environment"),
    (by_the_network, "network"),
    (by_blocking, "blocking"),
    (by_swallowing, "swallowed"),
    (by_one_key_in_a_loop, "loop-key"),
    (by_a_made_up_key, "made-up-key"),
]


@pytest.mark.promise("S-50")
@pytest.mark.promise("S-75")
@pytest.mark.parametrize(("node", "code"), MISTAKES)
def test_a_mistake_is_named_with_its_line(node: Any, code: str) -> None:
    graph = StateGraph(dict).add_node("node", node).add_edge(START, "node")
    found = [finding for finding in lint.check(graph) if finding.code == code]
    assert len(found) == 1
    source = Path(found[0].file).read_text(encoding="utf-8").splitlines()
    marks = (
        "now()",
        "time()",
        "random()",
        "uuid4()",
        "environ",
        "httpx",
        "sleep(",
        "interrupt(",
        "llm(",
    )
    assert any(mark in source[found[0].line - 1] for mark in marks)
    assert f"{found[0].line}: [{code}]" in str(found[0])


async def right(state: Any) -> Any:
    ctx = current_run()
    at = await ctx.now("at")
    dice = await ctx.random("dice")
    sent = await ctx.once("send", lambda: (clock.time(), random.random()))
    for i, text in enumerate(state["texts"]):
        await ctx.llm(f"classify:{i}", text)
    try:
        answer = interrupt("sure?")
    except ValueError:
        answer = None
    started = clock.time()  # durable: ok
    return {"at": at, "dice": dice, "sent": sent, "answer": answer, "started": started}


def test_clean_code_is_left_alone() -> None:
    assert lint.check(right) == []


def test_subgraphs_and_callers_are_read() -> None:
    inner = StateGraph(dict).add_node("in", by_chance).add_edge(START, "in").compile()
    outer = StateGraph(dict).add_node("sub", inner).add_edge(START, "sub")
    assert [(f.code, f.node) for f in lint.check(outer)] == [("random", "sub/in")]


def test_the_report_says_what_must_change_and_drafts_the_adr() -> None:
    graph = StateGraph(dict).add_node("dice", by_chance).add_node("right", right)
    graph.add_edge(START, "dice").add_edge("dice", "right")
    report = lint.migration_report(graph, "support.v1")
    lines = list(report.lines())
    assert lines[0].startswith("dice: to change")
    assert any(line.startswith("right: ready (4 steps, 1 interrupts)") for line in lines), lines
    adr = report.adr()
    assert adr.startswith("---\nstatus: proposed\nagent: support.v1\nmode: steps\n---")
    assert "It has 2 nodes; 1 of them" in adr
    assert "- `dice`: " in adr
    assert "- `right`" not in adr
