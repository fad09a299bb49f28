"""RunContext on a journal in memory: marks, keys, sync code, and what is told apart."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from langgraph.errors import GraphBubbleUp

from langgraph_durable import Decision, Retry, ToolHub, current_run
from langgraph_durable.context import Here
from langgraph_durable.context.pass_state import PassState
from langgraph_durable.context.places import is_within
from langgraph_durable.context.threads import Threads
from langgraph_durable.errors import (
    BadInput,
    DuplicateKey,
    DurableError,
    HandedBack,
    LeaseLost,
    NonDeterminismError,
    Parked,
    UnknownRoute,
)
from langgraph_durable.runs import Step, StepState
from langgraph_durable.testing.fakes import FakeClock, MemoryJournal, context, running


def at(namespace: str, path: str | None = None, attempt: int = 1) -> Here:
    return Here(path or namespace, (namespace, attempt))


# --- the marks of a pass ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "outer", "is_in"),
    [
        ("a:1", "a:1", True),
        ("a:1|b:2", "a:1", True),
        ("a:1|1|b:2", "a:1", True),
        ("a:1", "a:1|b:2", False),
        ("a:11", "a:1", False),
        ("x:1", "a:1", False),
        ("a:1", "", True),
        ("", "a:1", False),
    ],
)
def test_what_is_within_what(inner: str, outer: str, is_in: bool) -> None:
    assert is_within(inner, outer) is is_in


def test_a_pause_ends_its_task_and_its_callers_and_not_its_siblings() -> None:
    state = PassState()
    with pytest.raises(Parked):
        raise state.end(at("sub:1|ask:2"), Parked("asked"))
    for refused in ("sub:1|ask:2", "sub:1", "sub:1|ask:2|in:3", ""):
        with pytest.raises(Parked):
            state.gate(at(refused))
    for allowed in ("sub:1|other:4", "sibling:5", "sub:11"):
        state.gate(at(allowed))


def test_a_task_that_swallowed_a_pause_may_not_end() -> None:
    state = PassState()
    noted: list[Any] = []
    state.note = lambda type_, data: noted.append((type_, data))
    state.end(at("sub:1|ask:2"), Parked("asked"))
    with pytest.raises(Parked):
        state._may_end("sub:1")
    state._may_end("sub:1|other:4")
    state._may_end("sibling:5")
    assert noted == [("pause_swallowed", {"place": "sub/ask"})]


def test_a_run_that_is_over_begins_nothing() -> None:
    state = PassState()
    told: list[str] = []
    state.on_drain(lambda: told.append("drain"))
    state.cancel()
    assert told == ["drain"]
    with pytest.raises(HandedBack):
        state.gate(at("a:1"))
    with pytest.raises(HandedBack):
        state._may_begin("b:1")
    lost = PassState(lost=LeaseLost("run", 1))
    with pytest.raises(LeaseLost):
        lost.gate(at("a:1"))
    with pytest.raises(LeaseLost):
        lost._may_begin("a:1")


def test_a_drain_lets_tasks_in_flight_end() -> None:
    state = PassState()
    state.drain()
    state._may_begin("a:1")
    with pytest.raises(HandedBack):
        state.gate(at("b:1"))
    state._may_end("a:1")
    with pytest.raises(HandedBack):
        state._may_end("b:1")  # it was told to unwind, and did not


def test_what_an_agent_left_running_begins_no_step() -> None:
    state = PassState()
    state.closed = True
    with pytest.raises(HandedBack, match="the pass has ended"):
        state.gate(at("a:1"))


def test_a_key_names_one_call() -> None:
    state = PassState()
    state.use("k", at("a:1", "a@1"))
    with pytest.raises(DuplicateKey, match="index"):
        state.use("k", at("a:1", "a@1"))
    with pytest.raises(DuplicateKey, match="b@1"):
        state.use("k", at("b:1", "b@1"))
    state.use("k", at("a:1", "a@1", attempt=2))  # the node's retry policy
    state.next_round()
    state.use("k", at("a:1", "a@1", attempt=2))  # it runs again, with an answer


async def test_a_step_lands_though_its_node_is_cancelled() -> None:
    state, done = PassState(), []

    async def work() -> None:
        await asyncio.sleep(0.05)
        done.append("recorded")

    node = asyncio.ensure_future(state.fly(work()))
    await asyncio.sleep(0)
    node.cancel()
    with pytest.raises(asyncio.CancelledError):
        await node
    assert done == []
    await state.land()
    assert done == ["recorded"]


async def test_a_pass_waits_for_its_threads_unless_the_lease_is_lost() -> None:
    ctx, release, done = context(), threading.Event(), []
    asyncio.get_running_loop().set_default_executor(Threads())

    def work() -> None:
        release.wait(5)
        done.append("effect")

    with running(ctx):
        node = asyncio.ensure_future(asyncio.to_thread(work))
        await asyncio.sleep(0.01)
    node.cancel()
    landing = asyncio.ensure_future(ctx.state.land())
    await asyncio.sleep(0.02)
    assert not landing.done()
    release.set()
    await landing
    assert done == ["effect"]
    ctx.state.lost = LeaseLost("run-1", 1)
    await ctx.state.land()


# --- steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", "a\x00", None, 7])
async def test_a_key_is_printable_text(key: Any) -> None:
    ctx = context()
    with pytest.raises(BadInput, match="key"):
        await ctx.once(key, lambda: 1)


async def test_a_step_is_made_once_and_answers_its_replay() -> None:
    journal, calls = MemoryJournal(), []

    def call() -> list[int]:
        calls.append(1)
        return [1, 2]

    first = await context(journal).once("k", call)
    replay = context(journal)
    assert await replay.once("k", call) == first == [1, 2]
    assert calls == [1]
    assert replay.state.replayed.steps == 1


async def test_parallel_questions_of_a_function_are_put_together() -> None:
    ctx = context()
    answers = await asyncio.gather(ctx.ask("a", 1), ctx.ask("b", 2), return_exceptions=True)
    assert all(isinstance(answer, Parked) for answer in answers)
    assert list(ctx.state.asked) == ["a", "b"]


async def test_an_answer_to_another_payload_is_no_answer() -> None:
    journal = MemoryJournal()
    ctx = context(journal)
    with pytest.raises(Parked):
        await ctx.ask("k", {"pay": 10})
    journal.decide(ctx.state.asked["k"], Decision.approve("mei"))
    changed = context(journal)
    with pytest.raises(Parked):
        await changed.ask("k", {"pay": 9999})
    assert await context(journal).ask("k", {"pay": 10}) is True


async def test_a_sleep_parks_until_its_time_and_then_goes_on() -> None:
    journal, clock = MemoryJournal(), FakeClock()
    ctx = context(journal, clock=clock)
    with pytest.raises(Parked):
        await ctx.sleep("nap", 60)
    assert ctx.state.sleep_seconds == 60
    clock.tick(61) if hasattr(clock, "tick") else setattr(
        clock, "_now", clock.now() + timedelta(seconds=61)
    )
    await context(journal, clock=clock).sleep("nap", 60)


async def test_an_event_is_awaited_on_a_journal_in_memory() -> None:
    journal, clock = MemoryJournal(), FakeClock()
    with pytest.raises(Parked):
        await context(journal, clock=clock).wait_for("payment", "paid", 60)
    journal.send("shipped")
    journal.send("paid", {"cents": 42})
    assert await context(journal, clock=clock).wait_for("payment", "paid", 60) == {"cents": 42}
    assert await context(journal, clock=clock).wait_for("payment", "paid", 60) == {"cents": 42}
    with pytest.raises(Parked):
        await context(journal, clock=clock).wait_for("second", "paid", 60)
    clock.advance(61)
    for _ in range(2):  # what comes later changes nothing
        with pytest.raises(TimeoutError, match="'paid' did not come in time"):
            await context(journal, clock=clock).wait_for("second", "paid", 60)
        journal.send("paid", {"cents": 43})
    with pytest.raises(NonDeterminismError):
        await context(journal).wait_for("payment", "shipped")


async def test_an_unknown_route_is_named_before_anything_happens() -> None:
    ctx = context(models={"fast": lambda *_: "x", "smart": lambda *_: "y"})
    with pytest.raises(UnknownRoute, match="fast, smart"):
        await ctx.llm("k", "hi", route="slow")


async def test_a_call_that_can_not_be_repeated_shows_the_number_of_its_try() -> None:
    hub, seen = ToolHub(), []

    async def call(_server: str, _tool: str, _arguments: Any, _approval: Any) -> None:
        seen.append(current_run().journal.recorded("k").attempts)  # type: ignore[union-attr]
        raise ConnectionError

    from langgraph_durable.tools import ToolSpec

    hub.plug(call, [ToolSpec("s", "read", "read")])  # type: ignore[arg-type]
    ctx = context(tools=hub)
    with running(ctx), pytest.raises(AttributeError):
        await ctx.tool("k", "read", {})  # a read leaves no intent


async def test_the_attempt_that_a_tool_is_told_grows_in_place() -> None:
    hub, seen = ToolHub(), []

    class Server:
        name = "s"

        async def tools(self) -> Any:
            from langgraph_durable.tools import ToolSpec

            return [ToolSpec("s", "pay", "idempotent", key_argument="key")]  # type: ignore[arg-type]

        async def call(self, tool: str, arguments: Any, call: Any) -> Any:
            seen.append((call.attempt, arguments["key"]))
            if len(seen) < 3:
                raise ConnectionError
            return "ok"

        async def aclose(self) -> None: ...

    hub.mount(Server(), trusted=True)
    ctx = context(tools=hub)
    retry = Retry(attempts=3, first_seconds=0)
    assert await ctx.tool("k", "s.pay", {}, retry=retry) == "ok"
    assert seen == [(1, "run-1:k"), (2, "run-1:k"), (3, "run-1:k")]


async def test_an_intent_of_a_once_call_is_asked_about_by_number() -> None:
    journal = MemoryJournal()
    journal.rows["k"] = Step(key="k", kind="once", state=StepState.INTENT, attempts=2)
    ctx = context(journal)
    with pytest.raises(Parked):
        await ctx.once("k", lambda: 1, effect="once")  # type: ignore[arg-type]
    assert list(ctx.state.asked) == ["k?outcome2"]
    journal.decide(ctx.state.asked["k?outcome2"], Decision.reject("mei"))
    journal.rows["k"] = replace(journal.rows["k"], attempts=3)
    again = context(journal)
    with pytest.raises(Parked):
        await again.once("k", lambda: 1, effect="once")  # type: ignore[arg-type]
    assert list(again.state.asked) == ["k?outcome3"]


# --- who and where -------------------------------------------------------------------------------


async def test_current_run_is_known_only_inside() -> None:
    ctx = context()
    with pytest.raises(DurableError, match="outside of a durable run"):
        current_run()
    with running(ctx):
        assert current_run() is ctx
        assert await asyncio.to_thread(current_run) is ctx
        assert await asyncio.create_task(_current()) is ctx


async def _current() -> Any:
    return current_run()


async def test_blocking_methods_work_in_threads_and_pause_them() -> None:
    ctx = context()
    with running(ctx):
        assert await asyncio.to_thread(lambda: ctx.blocking.once("k", lambda: 5)) == 5
        with pytest.raises(GraphBubbleUp):
            await asyncio.to_thread(lambda: ctx.blocking.ask("ask", "?"))
        with pytest.raises(DurableError, match="await ctx itself"):
            ctx.blocking.now("t")
    assert list(ctx.state.asked) == ["ask"]


# --- questions: what may be said of people and times -----------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        {"expires_in_seconds": -5},
        {"expires_in_seconds": 0},
        {"expires_in_seconds": float("nan")},
        {"expires_in_seconds": float("inf")},
        {"expires_in_seconds": 1e300},
        {"expires_in_seconds": True},
        {"expires_in_seconds": "60"},
        {"remind_after_seconds": -1},
        {"approvals": 0},
        {"approvals": 1.5},
        {"approvals": True},
        {"approvals": 11},
        {"escalate_after_seconds": 60},
        {"escalate_to": "boss"},
        {"escalate_after_seconds": 0, "escalate_to": "boss"},
        {"escalate_after_seconds": 60, "escalate_to": ""},
        {"role": ""},
        {"role": 7},
        {"on_expiry": "never"},
        {"choices": ("shrug",)},
    ],
)
async def test_a_question_that_nobody_could_answer_is_refused(said: dict[str, Any]) -> None:
    journal = MemoryJournal()
    with pytest.raises(BadInput, match="question 'sure'"):
        await context(journal).ask("sure", "Go on?", **said)


async def test_a_question_takes_the_words_of_a_rule() -> None:
    ctx = context(MemoryJournal())
    words = {"approvals": 2, "remind_after_seconds": 60, "escalate_after_seconds": 90.5,
             "escalate_to": "boss", "expires_in_seconds": 300}  # fmt: skip
    with pytest.raises(Parked):
        await ctx.ask("sure", "Go on?", **words)  # type: ignore[arg-type]
    (asked,) = ctx.state.asked.values()
    assert {word: getattr(asked, word) for word in words} == words
