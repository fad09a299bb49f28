"""Saga: a run that fails or is cancelled undoes what it did, and asks a person to look at it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import crash_scenes
import pytest
from langgraph.graph import START, StateGraph
from shop import Shop

from langgraph_durable import (
    Compensation,
    Decision,
    Durable,
    Rule,
    RunContext,
    Status,
    ToolHub,
    Worker,
    current_run,
)
from langgraph_durable.errors import BadInput, Conflict, ToolError, UnknownTool
from langgraph_durable.integrations.langchain import durable_tool
from langgraph_durable.runs import Budget, Effect, Run
from langgraph_durable.secrets import MappingSecrets
from langgraph_durable.testing import (
    FakeClock,
    crash_everywhere,
    export_run,
    replay_check,
)

Agent = Callable[[RunContext, Any], Any]
RETURN = Compensation("give_back", lambda done: {"what": done["what"]})


class Trouble:
    """What goes wrong with the tools, in order; an exception is raised, None is none."""

    def __init__(self) -> None:
        self.takes: list[Exception | None] = []
        self.returns: list[Exception | None] = []
        self.returned: list[str] = []


def _meet(troubles: list[Exception | None]) -> None:
    trouble = troubles.pop(0) if troubles else None
    if trouble is not None:
        raise trouble


class Saga:
    """A durable with two tools: one takes, the other gives back."""

    def __init__(self, url: str, **options: Any) -> None:
        self.trouble = Trouble()
        self.clock = FakeClock()
        hub = ToolHub()
        trouble = self.trouble

        @hub.tool(effect="idempotent")
        def give_back(what: str, idempotency_key: str, fencing_token: int) -> str:
            _meet(trouble.returns)
            trouble.returned.append(f"{what} {idempotency_key.partition(':')[2]} {fencing_token}")
            return f"{what} is back"

        @hub.tool(effect="idempotent")
        def take(what: str, idempotency_key: str) -> dict[str, str]:
            _meet(trouble.takes)
            return {"what": what}

        @hub.tool(effect="read")
        def look() -> str:
            return "seen"

        @hub.tool(effect="once")
        def shout() -> str:
            return "heard"

        self.hub = hub
        self.durable = Durable(url, tools=hub, clock=self.clock, **options)

    def run(self, agent: Agent, **options: Any) -> Run:
        """Register, submit, and work until nothing is left to do."""
        self.durable.agent("saga", **options)(agent)
        return self.go_on(self.durable.submit("saga", {}))

    def go_on(self, run_id: str) -> Run:
        """Work on, however long retries wait."""
        for _ in range(20):
            Worker(self.durable).run_until_idle()
            self.clock.advance(60)
            run = self.durable.get(run_id)
            if run.status.is_final or run.status is Status.WAITING_HUMAN:
                return run
        raise AssertionError(run)

    def events(self, run: Run, type_: str) -> list[dict[str, Any]]:
        """Return what the events of a type tell."""
        return [dict(e.data) for e in self.durable.events(run.id) if e.type == type_]

    def given_back(self) -> list[str]:
        """Return what was given back, in order."""
        return [line.split()[0] for line in self.trouble.returned]


def _saga(url: str, **options: Any) -> Iterator[Saga]:
    saga = Saga(url, **options)
    yield saga
    saga.durable.close()


@pytest.fixture
def saga() -> Iterator[Saga]:
    """A saga on SQLite, in memory."""
    yield from _saga("sqlite://")


@pytest.fixture
def any_saga(any_shop: Shop) -> Iterator[Saga]:
    """A saga on each database."""
    yield from _saga(any_shop.url)


async def two_then_fail(ctx: RunContext, _: Any) -> None:
    """Take two things, then fail for good."""
    await ctx.tool("a", "take", {"what": "car"}, compensate=RETURN)
    await ctx.tool("b", "take", {"what": "room"}, compensate=RETURN)
    await ctx.tool("c", "look")
    raise BadInput("the third is not to be had")


# --- the promise -----------------------------------------------------------------------


@pytest.mark.promise("S-45")
def test_what_was_done_is_undone_in_reverse_and_the_failed_run_asks_a_person(any_saga: Saga):
    run = any_saga.run(two_then_fail)
    assert (run.status, run.unwinding) == (Status.FAILED, Status.FAILED)
    assert run.error is not None
    assert "the third is not to be had" in run.error["message"]
    # the last first, under keys of their own, and with the token of the claim that made them
    assert any_saga.trouble.returned == ["room compensate:b 2", "car compensate:a 2"]
    steps = any_saga.durable.journal(run.id)
    assert [step.key for step in steps] == ["a", "b", "c", "compensate:b", "compensate:a"]
    # the record of both: what was done, and by what it was undone
    assert any_saga.durable.undone(steps) == {
        "a": "compensated by compensate:a",
        "b": "compensated by compensate:b",
    }
    assert any_saga.events(run, "run_compensating")[0]["steps"] == ["b", "a"]
    assert [e["key"] for e in any_saga.events(run, "step_compensated")] == ["b", "a"]
    (review,) = run.questions
    assert review.kind == "review"
    assert [one["step"] for one in review.payload["compensated"]] == ["b", "a"]
    assert any_saga.durable.store.purge(0) == 0  # nobody has looked at it yet
    any_saga.durable.decide(review.id, Decision.respond("mei", "told the customer"))
    assert any_saga.go_on(run.id).status is Status.FAILED  # an ended run is not woken
    with pytest.raises(Conflict, match="Submit it anew"):
        any_saga.durable.retry(run.id)
    any_saga.clock.advance(60)
    assert any_saga.durable.store.purge(0) == 1


@pytest.mark.promise("S-45")
def test_the_compensation_is_stored_by_the_write_that_records_its_step(saga: Saga):
    run = saga.run(two_then_fail)
    stored = {step.key: step.compensation for step in saga.durable.journal(run.id)}
    assert json.loads(stored["a"] or "") == {
        "tool": "local.give_back",
        "arguments": {"what": "car"},
    }
    assert stored["c"] is stored["compensate:a"] is None


@pytest.mark.promise("S-45")
@pytest.mark.parametrize("mode", ["steps", "graph"])
def test_both_modes_unwind_and_a_tool_may_declare_what_undoes_it(mode: Any, tmp_path: Any):
    saga = Saga(f"sqlite:///{tmp_path / 'saga.db'}")
    undo = Compensation("give_back", lambda result, asked: {"what": f"{asked['what']}{result}"})

    @saga.hub.tool(effect="idempotent", compensate=undo)
    def book(what: str, idempotency_key: str) -> int:
        return 7

    async def first(_: dict[str, Any]) -> dict[str, Any]:
        await current_run().tool("book", "book", {"what": "desk"})
        return {}

    def second(_: dict[str, Any]) -> dict[str, Any]:
        current_run().blocking.once(
            "own", lambda: "chair", compensate=Compensation("give_back", lambda own: {"what": own})
        )
        raise BadInput("no")

    graph = StateGraph(dict)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    saga.durable.graph("saga", graph, mode=mode)
    run = saga.go_on(saga.durable.submit("saga", {}))
    assert run.status is Status.FAILED
    assert saga.given_back() == ["chair", "desk7"]


def test_a_langchain_tool_is_undone_too(saga: Saga):
    def rent(what: str, idempotency_key: str) -> str:
        """Rent it."""
        return "rented"

    undo = Compensation("give_back", lambda _, asked: {"what": asked["what"]})
    rents = durable_tool(rent, effect="idempotent", compensate=undo)

    async def agent(ctx: RunContext, _: Any) -> None:
        await rents.ainvoke({"what": "boat"})
        raise BadInput("no")

    assert saga.run(agent).status is Status.FAILED
    assert saga.given_back() == ["boat"]


# --- cancel, crash loop, retries ---------------------------------------------------------


@pytest.mark.promise("S-45")
def test_a_cancelled_run_that_waits_is_unwound_and_ends_cancelled(any_saga: Saga):
    async def agent(ctx: RunContext, _: Any) -> None:
        await ctx.tool("a", "take", {"what": "car"}, compensate=RETURN)
        await ctx.ask("sure", "sure?")

    waiting = any_saga.run(agent)
    any_saga.trouble.returns = [ToolError("closed on Sundays")]
    assert any_saga.durable.cancel(waiting.id, by="mei") is Status.CANCELLING
    assert any_saga.durable.cancel(waiting.id, by="mei") is Status.CANCELLING  # again is nothing
    assert not any_saga.durable.questions()  # the run is not to go on, so nobody is asked
    parked = any_saga.go_on(waiting.id)
    assert (parked.status, parked.unwinding) == (Status.WAITING_HUMAN, Status.CANCELLED)
    any_saga.durable.decide(parked.questions[0].id, Decision.approve("tom"))
    run = any_saga.go_on(waiting.id)
    assert run.status is Status.CANCELLED
    assert any_saga.given_back() == ["car"]
    assert not run.questions  # who cancelled it knows
    with pytest.raises(Conflict):
        any_saga.durable.retry(run.id)


@pytest.mark.promise("S-45")
@pytest.mark.promise("H-11")
def test_a_run_that_is_unwound_because_it_failed_is_not_cancelled(saga: Saga):
    saga.trouble.returns = [ToolError("closed")]
    run = saga.run(two_then_fail)
    with pytest.raises(Conflict, match="failed"):
        saga.durable.cancel(run.id)


@pytest.mark.promise("S-45")
def test_attempts_that_are_used_up_unwind_and_a_compensation_has_attempts_of_its_own(saga: Saga):
    async def agent(ctx: RunContext, _: Any) -> None:
        await ctx.tool("a", "take", {"what": "car"}, compensate=RETURN)
        raise OSError("down")

    saga.trouble.returns = [OSError("away"), OSError("away")]
    run = saga.run(agent)
    assert run.status is Status.FAILED
    assert run.error is not None
    assert run.error["message"] == "down"  # not what went wrong on the way back
    assert saga.given_back() == ["car"]
    (undone,) = [s for s in saga.durable.journal(run.id) if s.key == "compensate:a"]
    assert undone.attempts == 3


def test_a_budget_that_is_used_up_keeps_nothing_from_being_undone(saga: Saga):
    async def agent(ctx: RunContext, _: Any) -> None:
        await ctx.tool("a", "take", {"what": "car"}, compensate=RETURN)
        await ctx.tool("b", "look")

    asked = saga.run(agent, budget=Budget(tool_calls=1))
    saga.durable.decide(asked.questions[0].id, Decision.reject("mei"))
    assert saga.go_on(asked.id).status is Status.FAILED
    assert saga.given_back() == ["car"]


def test_a_rule_that_asks_holds_for_a_compensation_as_well():
    saga = Saga("sqlite://", rules=[Rule("ask", tool="give_back")])
    run = saga.run(two_then_fail)
    for choice in (Decision.reject("mei", "they may keep it"), Decision.approve("mei")):
        assert run.status is Status.WAITING_HUMAN
        saga.durable.decide(run.questions[0].id, choice)
        run = saga.go_on(run.id)
    assert run.status is Status.FAILED
    assert saga.given_back() == ["car"]
    told = saga.durable.undone(saga.durable.journal(run.id))
    assert told["b"] == "not compensated: they may keep it (mei)"


# --- what a person has to say ------------------------------------------------------------


@pytest.mark.promise("S-45")
def test_a_compensation_that_fails_for_good_asks_and_may_be_tried_again_or_left(any_saga: Saga):
    any_saga.trouble.returns = [ToolError("closed"), ToolError("still closed"), None]
    run = any_saga.run(two_then_fail)
    for number, error in enumerate(["closed", "still closed"], 1):
        (question,) = run.questions
        assert question.key == f"compensate:b?failed{number}"
        assert question.payload["error"] == f"ToolError: {error}"
        answer = Decision.approve("mei") if number == 1 else Decision.respond("mei", "sold it")
        any_saga.durable.decide(question.id, answer)
        run = any_saga.go_on(run.id)
    assert run.status is Status.FAILED
    assert any_saga.given_back() == ["car"]  # it went on with the others
    told = any_saga.durable.undone(any_saga.durable.journal(run.id))
    assert told["b"] == "not compensated: sold it (mei)"
    assert run.questions[0].payload["not_compensated"][0]["reason"] == "sold it"
    assert any_saga.events(run, "step_not_compensated")[0]["decided_by"] == "mei"


@pytest.mark.promise("S-45")
@pytest.mark.parametrize("happened", [True, False])
def test_a_write_that_broke_off_may_have_happened_so_a_person_is_asked(saga: Saga, happened: bool):
    async def agent(ctx: RunContext, _: Any) -> None:
        await ctx.tool("a", "take", {"what": "car"}, compensate=RETURN)
        static = Compensation("give_back", {"what": "room"})
        await ctx.tool("b", "take", {"what": "room"}, compensate=static)

    saga.trouble.takes = [None, *[TimeoutError()] * 3]
    run = saga.run(agent)
    (question,) = run.questions
    assert question.key == "compensate:b?happened"
    assert not saga.given_back()  # in order: what came before waits for the answer
    answer = Decision.approve("mei") if happened else Decision.reject("mei")
    saga.durable.decide(question.id, answer)
    assert saga.go_on(run.id).status is Status.FAILED
    assert saga.given_back() == (["room", "car"] if happened else ["car"])


def test_arguments_that_nobody_could_know_are_asked_for(saga: Saga):
    async def agent(ctx: RunContext, _: Any) -> None:
        broken = Compensation("give_back", lambda done: {"what": done["name"]})
        await ctx.tool("a", "take", {"what": "car"}, compensate=broken)
        raise BadInput("no")

    run = saga.run(agent)
    (question,) = run.questions
    assert question.allowed == ("edit", "reject")
    assert saga.events(run, "compensation_unknown")[0]["error"] == "KeyError: 'name'"
    with pytest.raises(BadInput):
        saga.durable.decide(question.id, Decision.edit("mei", {"which": "car"}))
    saga.durable.decide(question.id, Decision.edit("mei", {"what": "car"}))
    assert saga.go_on(run.id).status is Status.FAILED
    assert saga.given_back() == ["car"]


@pytest.mark.promise("S-45")
def test_a_compensation_shows_no_secret_that_it_read():
    token = "tok-of-the-landlord"
    saga = Saga("sqlite://", secrets=MappingSecrets({"crm": token}))
    errors = [OSError, ToolError]  # one that is tried again, and one that a person is asked about

    @saga.hub.tool(effect="idempotent")
    async def leave(idempotency_key: str) -> None:
        text = (await current_run().secret("crm")).get_secret_value()
        if errors:
            raise errors.pop(0)(f"401 with {text}")

    async def agent(ctx: RunContext, _: Any) -> None:
        await ctx.tool("a", "take", {"what": "flat"}, compensate=Compensation("leave", {}))
        raise BadInput("no")

    run = saga.run(agent)
    assert run.questions[0].payload["error"] == "ToolError: 401 with [secret crm]"
    (requeued,) = saga.events(run, "run_requeued")
    assert requeued["error"]["message"] == "401 with [secret crm]"
    saga.durable.decide(run.questions[0].id, Decision.approve("mei"))
    assert saga.go_on(run.id).status is Status.FAILED
    assert token not in str(saga.durable.events(run.id))


@pytest.mark.promise("S-45")
def test_a_compensation_is_not_called_with_the_marker_of_a_secret_but_a_person_is_asked():
    saga = Saga("sqlite://", secrets=MappingSecrets({"crm": "tok-of-the-landlord"}))

    async def agent(ctx: RunContext, _: Any) -> None:
        text = (await ctx.secret("crm")).get_secret_value()
        await ctx.tool("a", "take", {"what": text}, compensate=RETURN)
        raise BadInput("no")

    (question,) = saga.run(agent).questions
    assert (question.key, question.allowed) == ("compensate:a?happened", ("edit", "reject"))
    saga.durable.decide(question.id, Decision.edit("mei", {"what": "flat"}))
    assert saga.go_on(question.run_id).status is Status.FAILED
    assert saga.given_back() == ["flat"]


@pytest.mark.parametrize("wait", ["sleep", "wait_for"])
def test_a_compensation_that_wants_to_sleep_or_wait_asks_a_person(saga: Saga, wait: str):
    """An unwound run takes no signals; and handed back to sleep it would be claimed at once."""

    @saga.hub.tool(effect="idempotent")
    async def dawdle(idempotency_key: str) -> None:
        await getattr(current_run(), wait)("nap", *(["ev"] if wait == "wait_for" else []), 60)

    async def agent(ctx: RunContext, _: Any) -> None:
        await ctx.tool("a", "take", {"what": "car"}, compensate=Compensation("dawdle", {}))
        raise BadInput("no")

    saga.durable.agent("saga")(agent)
    run_id = saga.durable.submit("saga", {})
    assert Worker(saga.durable).run_until_idle(limit=5) == 2
    (question,) = saga.durable.get(run_id).questions
    assert question.key == "compensate:a?failed1"
    assert "can't sleep or wait" in question.payload["error"]
    saga.durable.decide(question.id, Decision.respond("mei", "done by hand"))
    assert saga.go_on(run_id).status is Status.FAILED


# --- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "compensation", "error", "said"),
    [
        ("take", Compensation("look", {}), BadInput, "can't compensate"),
        ("take", Compensation("shout", {}), BadInput, "can't compensate"),
        ("take", Compensation("lose", {}), UnknownTool, "lose"),
        ("take", Compensation("give_back", {"which": 1}), BadInput, "give_back"),
        ("look", RETURN, BadInput, "only reads"),
    ],
)
def test_a_compensation_that_could_not_work_is_refused_before_the_call(
    saga: Saga, tool: str, compensation: Compensation, error: type[Exception], said: str
):
    async def agent(ctx: RunContext, _: Any) -> None:
        arguments = {} if tool == "look" else {"what": "car"}
        with pytest.raises(error, match=said):
            await ctx.tool("a", tool, arguments, compensate=compensation)

    run = saga.run(agent)
    assert run.status is Status.SUCCEEDED, run.error
    assert not saga.durable.journal(run.id)


def test_a_hub_refuses_what_could_not_undo_and_a_key_of_a_compensation(saga: Saga):
    for undo, error in (
        (Compensation("look", {}), BadInput),
        (Compensation("later", {}), UnknownTool),
    ):
        with pytest.raises(error):
            saga.hub.add(lambda: None, name="x", effect=Effect.ONCE, compensate=undo)
    with pytest.raises(BadInput, match="only reads"):
        saga.hub.add(lambda: None, name="x", effect="read", compensate=RETURN)

    async def agent(ctx: RunContext, _: Any) -> None:
        with pytest.raises(BadInput, match="that undo others"):
            await ctx.now("compensate:a")

    assert saga.run(agent).status is Status.SUCCEEDED


def test_a_run_that_ends_well_undoes_nothing(saga: Saga):
    async def agent(ctx: RunContext, _: Any) -> str:
        await ctx.tool("a", "take", {"what": "car"}, compensate=RETURN)
        return "done"

    assert saga.run(agent).output == "done"
    assert not saga.given_back()


# --- crashes, and replay -----------------------------------------------------------------


@pytest.mark.promise("S-45")
def test_crash_everywhere_in_the_saga_example():
    """Whoever dies half-way back, also where it waits for a person: another one goes on."""
    module = crash_scenes.example("06_saga")
    report = crash_everywhere(
        module.GRAPH,
        {"customer": "mei"},
        tools=module.tools(),
        rules=[Rule("ask", tool="lower_quota")],
        decisions=lambda question: Decision.reject("tom", "they may keep it"),
    )
    report.assert_ok()
    assert report.calm.run.status is Status.FAILED
    assert [q.key for q in report.calm.questions] == ["compensate:quota", "review"]
    labels = {point.label for point in report.points}
    assert {
        "record of step 'compensate:crm' as intent",
        "record of step 'compensate:crm' as recorded",
        "settlement as asked",
        "decision on 'compensate:quota'",
        "record of step 'compensate:quota' as recorded",
        "settlement as unwound",
    } <= labels


@pytest.mark.promise("S-45")
def test_a_compensated_run_and_a_cancelled_one_replay_without_a_divergence(saga: Saga):
    run = saga.run(two_then_fail)
    replay_check(two_then_fail, export_run(saga.durable, run.id)).assert_ok()

    async def waits(ctx: RunContext, _: Any) -> None:
        await ctx.tool("a", "take", {"what": "car"}, compensate=RETURN)
        await ctx.ask("sure", "sure?")

    saga.durable.agent("waits")(waits)
    waiting = saga.go_on(saga.durable.submit("waits", {}))
    saga.durable.cancel(waiting.id)
    saga.go_on(waiting.id)
    replay_check(waits, export_run(saga.durable, waiting.id)).assert_ok()
