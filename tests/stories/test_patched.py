"""`ctx.patched`: a change inside a version, and runs on either side of it."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from shop import Shop, succeeded, waits

from langgraph_durable import RunContext, current_run
from langgraph_durable.testing import (
    MemoryJournal,
    context,
    crash_everywhere,
    export_run,
    replay_check,
)


class Notes(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]


async def old(ctx: RunContext, _given: Any) -> list[str]:
    said = [await ctx.once("total", lambda: "total")]
    await ctx.ask("ok", "Is it right?")
    return [*said, await ctx.once("send", lambda: "sent")]


async def new(ctx: RunContext, _given: Any) -> list[str]:
    said = [await ctx.once("total", lambda: "total")]
    if await ctx.patched("tax"):
        said.append(await ctx.once("tax", lambda: "tax"))
    await ctx.ask("ok", "Is it right?")
    if await ctx.patched("thanks"):
        said.append(await ctx.once("thanks", lambda: "thanks"))
    return [*said, await ctx.once("send", lambda: "sent")]


async def without_the_test(ctx: RunContext, _given: Any) -> list[str]:
    said = [await ctx.once(key, lambda k=key: k) for key in ("total", "tax")]
    await ctx.ask("ok", "Is it right?")
    said += [await ctx.once("thanks", lambda: "thanks")]
    return [*said, await ctx.once("send", lambda: "sent")]


def test_a_run_that_starts_on_new_code_takes_the_new_side_and_stays_there(any_shop: Shop):
    any_shop.deploy(new)
    waits(any_shop.begin())
    assert succeeded(any_shop.answer("yes")) == ["total", "tax", "thanks", "sent"]
    markers = {k: s.value for k, s in any_shop.journal.items() if s.kind == "patch"}
    assert markers == {"patched:tax": "true", "patched:thanks": "true"}
    assert "steps_not_replayed" not in any_shop.events


def test_a_run_stays_on_the_old_side_of_what_it_came_past_only(any_shop: Shop):
    any_shop.deploy(old)
    waits(any_shop.begin())
    any_shop.deploy(new)
    assert succeeded(any_shop.answer("yes")) == ["total", "thanks", "sent"]
    markers = {k: s.value for k, s in any_shop.journal.items() if s.kind == "patch"}
    assert markers == {"patched:tax": "false", "patched:thanks": "true"}


def test_the_test_may_go_when_no_run_is_on_the_old_side(shop: Shop):
    shop.deploy(new)
    waits(shop.begin())
    shop.deploy(without_the_test)
    assert succeeded(shop.answer("yes")) == ["total", "tax", "thanks", "sent"]
    assert "steps_not_replayed" not in shop.events


def test_a_run_on_the_old_side_complains_when_its_side_is_gone(shop: Shop):
    shop.deploy(old)
    waits(shop.begin())
    shop.deploy(new)
    shop.durable.cancel(shop.run_id)

    async def ends(ctx: RunContext, _given: Any) -> None:
        await ctx.ask("first", "Is it right?")

    async def asks_again(ctx: RunContext, given: Any) -> None:
        await ctx.patched("x")
        await ends(ctx, given)
        await ctx.ask("second", "Really?")

    async def forgot(ctx: RunContext, given: Any) -> None:
        await ends(ctx, given)
        await ctx.ask("second", "Really?")

    shop.deploy(ends)
    waits(shop.begin())
    shop.deploy(asks_again)
    waits(shop.answer("yes"))
    assert shop.journal["patched:x"].value == "false"
    shop.deploy(forgot)
    succeeded(shop.answer("yes"))
    assert shop.event("steps_not_replayed")["keys"] == ["patched:x"]


def chain(*nodes: Any) -> StateGraph[Notes]:
    graph = StateGraph(Notes)
    before = START
    for node in nodes:
        graph.add_node(node.__name__, node)
        graph.add_edge(before, node.__name__)
        before = node.__name__
    graph.add_edge(before, END)
    return graph


async def first(_state: Notes) -> Notes:
    return {"notes": [await current_run().once("first", lambda: "first")]}


async def asking(_state: Notes) -> Notes:
    return {"notes": [interrupt("Is it right?")]}


async def asking_more(_state: Notes) -> Notes:
    said = []
    if await current_run().patched("before"):
        said.append(await current_run().once("before", lambda: "before"))
    said.append(interrupt("Is it right?"))
    if await current_run().patched("after"):
        said.append(await current_run().once("after", lambda: "after"))
    return {"notes": said}


asking_more.__name__ = "asking"


def test_a_native_interrupt_counts_as_passed(shop: Shop, mode: str):
    shop.deploy(chain(first, asking), mode)
    waits(shop.begin({}))
    shop.deploy(chain(first, asking_more), mode)
    assert succeeded(shop.answer("yes"))["notes"] == ["first", "yes", "after"]
    shop.begin({})
    assert succeeded(shop.answer("yes"))["notes"] == ["first", "before", "yes", "after"]


def test_in_graph_mode_a_node_that_begins_on_new_code_takes_the_new_side(shop: Shop):
    """Finished nodes don't run again, so what they recorded says nothing."""

    async def last(_state: Notes) -> Notes:
        is_new = await current_run().patched("last")
        return {"notes": [is_new]}

    async def old_last(_state: Notes) -> Notes:
        return {"notes": ["old"]}

    old_last.__name__ = "last"
    shop.deploy(chain(first, asking, old_last), "graph")
    waits(shop.begin({}))
    shop.deploy(chain(first, asking, last), "graph")
    assert succeeded(shop.answer("yes"))["notes"] == ["first", "yes", True]


async def test_every_place_gets_the_answer_that_was_recorded_first() -> None:
    journal = MemoryJournal()
    ctx = context(journal)
    assert [await ctx.patched("x") for _ in range(3)] == [True, True, True]
    await ctx.once("a", lambda: 1)
    later = context(journal)
    assert await later.patched("x") is True  # recorded, though `a` lies behind it
    assert await later.patched("y") is False


def test_crash_everywhere_takes_one_side() -> None:
    report = crash_everywhere(new)
    report.assert_ok()
    assert report.calm.run.output == ["total", "tax", "thanks", "sent"]


@pytest.mark.parametrize("has_ended", [True, False])
def test_replay_check_lets_old_runs_stay_on_the_old_side(shop: Shop, has_ended: bool):
    shop.deploy(old)
    waits(shop.begin())
    if has_ended:
        succeeded(shop.answer("yes"))
    recorded = export_run(shop.durable, shop.run_id)
    replay_check(new, recorded).assert_ok()
    assert not replay_check(without_the_test, recorded).is_ok if has_ended else True


def test_replay_check_of_a_run_on_the_new_side(shop: Shop):
    shop.deploy(new)
    waits(shop.begin())
    succeeded(shop.answer("yes"))
    recorded = export_run(shop.durable, shop.run_id)
    replay_check(new, recorded).assert_ok()
    replay_check(without_the_test, recorded).assert_ok()
    assert not replay_check(old, recorded).is_ok
