"""replay_check: today's code against a recorded run, for CI before a deploy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import MessagesState
from langgraph.types import interrupt
from typer.testing import CliRunner

from langgraph_durable import Decision, Durable, RunContext, Worker, cli, current_run
from langgraph_durable.errors import BadInput, NonDeterminismError, ToolError
from langgraph_durable.testing import (
    Diverged,
    FakeClock,
    RecordingTools,
    ReplayReport,
    ScriptedModel,
    export_run,
    replay_check,
)


class State(TypedDict, total=False):
    ticket: str
    category: str
    sure: Any
    paid: Any


async def classify(state: State) -> State:
    reply = await current_run().llm("classify", state["ticket"], route="fast")
    return {"category": str(reply.content)}


def ask(state: State) -> State:
    return {"sure": interrupt("sure?")}


async def pay(state: State) -> State:
    return {"paid": await current_run().tool("pay", "pay", {"amount": 42})}


def graph_of(*nodes: Any) -> StateGraph[State]:
    graph = StateGraph(State).add_sequence(list(nodes))
    return graph.add_edge(START, nodes[0].__name__).add_edge(nodes[-1].__name__, END)


class Desk:
    """Records runs."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        tools = RecordingTools()

        @tools.tool(effect="idempotent", asks=True)
        def pay(amount: int, idempotency_key: str) -> dict[str, int]:
            return {"paid": amount}

        @tools.tool(effect="read")
        def break_down() -> None:
            raise ToolError("broken")

        self.durable = Durable(
            "sqlite://",
            tools=tools,
            models={"fast": ScriptedModel(["refund", "again"])},
            clock=self.clock,
        )

    def record(self, agent: Any, input: Any = None, *, answers: int = 5) -> str:
        if asyncio.iscoroutinefunction(agent):
            self.durable.agent("a")(agent)
        else:
            self.durable.graph("a", agent, mode="steps")
        self.run_id = self.durable.submit("a", input)
        for _ in range(answers + 1):
            Worker(self.durable).run_until_idle()
            self.clock.advance(3600)
            for question in self.durable.questions(run_id=self.run_id)[:answers]:
                kind = question.kind == "tool"
                decision = Decision.approve("mei") if kind else Decision.respond("mei", "yes")
                self.durable.decide(question.id, decision)
        # as a file: nothing but JSON comes back
        return json.dumps(export_run(self.durable, self.run_id))


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.durable.close()


def _said(report: ReplayReport) -> str:
    with pytest.raises(NonDeterminismError) as caught:
        report.assert_ok()
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, Diverged)
    return str(caught.value)


def test_the_same_code_replays_and_calls_nothing(desk: Desk) -> None:
    graph = graph_of(classify, ask, pay)
    recorded = desk.record(graph, {"ticket": "hi"})
    assert desk.durable.get(desk.run_id).status == "succeeded"
    report = replay_check(graph, recorded)
    report.assert_ok()
    assert report.replayed == 2
    assert report.warnings == ()
    assert "2 steps replayed" in str(report)


def test_a_step_that_is_new_is_named_with_its_node(desk: Desk) -> None:
    recorded = desk.record(graph_of(classify, pay), {"ticket": "hi"})

    async def audit(state: State) -> State:
        await current_run().now("audited")
        return {}

    said = _said(replay_check(graph_of(classify, audit, pay), recorded))
    assert "step 'audited': recorded no such step; today asked in audit@1" in said
    assert "step 'pay'" in said  # never reached


def test_a_step_that_is_gone_is_named_with_its_node(desk: Desk) -> None:
    recorded = desk.record(graph_of(classify, pay), {"ticket": "hi"})
    said = _said(replay_check(graph_of(classify), recorded))
    assert "step 'pay': recorded tool local.pay in pay@1; today never asked" in said
    assert "the output" in said


def test_other_arguments_show_both_sides(desk: Desk) -> None:
    recorded = desk.record(graph_of(pay), {})

    async def pay_more(state: State) -> State:
        return {"paid": await current_run().tool("pay", "pay", {"amount": 43})}

    said = _said(replay_check(graph_of(pay_more), recorded))
    assert "step 'pay'" in said
    assert "{'amount': 42}" in said
    assert "{'amount': 43}" in said


def test_another_tool_is_a_divergence(desk: Desk) -> None:
    recorded = desk.record(graph_of(pay), {})

    async def other(state: State) -> State:
        return {"paid": await current_run().tool("pay", "bank.transfer", {"amount": 42})}

    assert "bank.transfer" in _said(replay_check(graph_of(other), recorded))


def test_a_changed_prompt_is_a_warning(desk: Desk) -> None:
    recorded = desk.record(graph_of(classify), {"ticket": "hi"})

    async def classify_again(state: State) -> State:
        reply = await current_run().llm("classify", "another prompt", route="fast")
        return {"category": str(reply.content)}

    report = replay_check(graph_of(classify_again), recorded)
    report.assert_ok()
    assert "request_changed" in report.warnings[0]


def test_the_journal_is_by_key_so_order_and_names_of_nodes_may_change(desk: Desk) -> None:
    """docs/code-changes.md: steps may be reordered, and nodes renamed, if their keys stay."""
    recorded = desk.record(graph_of(classify, pay), {"ticket": "hi"})
    replay_check(graph_of(pay, classify), recorded).assert_ok()

    async def sort(state: State) -> State:
        return await classify(state)

    replay_check(graph_of(sort, pay), recorded).assert_ok()


def test_another_output_is_a_divergence(desk: Desk) -> None:
    recorded = desk.record(graph_of(classify), {"ticket": "hi"})

    async def classify_loudly(state: State) -> State:
        return {"category": str((await classify(state))["category"]).upper()}

    said = _said(replay_check(graph_of(classify_loudly), recorded))
    assert "REFUND" in said


@pytest.mark.promise("S-50")
@pytest.mark.promise("S-74")
def test_a_branch_on_the_clock_is_a_non_determinism_error_on_replay(desk: Desk) -> None:
    """17:59 when it was recorded, 18:01 now."""
    clock = FakeClock(FakeClock().now().replace(hour=17, minute=59))

    async def agent(ctx: RunContext, inp: Any) -> Any:
        key = "today" if clock.now().hour < 18 else "tomorrow"
        return await ctx.once(key, lambda: key)

    recorded = desk.record(agent)
    replay_check(agent, recorded).assert_ok()
    clock.advance(120)
    said = _said(replay_check(agent, recorded))
    assert "step 'tomorrow': recorded no such step" in said
    assert "step 'today': recorded once" in said


@pytest.mark.promise("S-74")
def test_with_now_as_a_step_the_replay_sees_the_recorded_time(desk: Desk) -> None:
    async def agent(ctx: RunContext, inp: Any) -> Any:
        key = "today" if (await ctx.now("at")).hour < 18 else "tomorrow"
        await ctx.sleep("nap", 600)
        return await ctx.once(key, lambda: key)

    recorded = desk.record(agent)
    replay_check(agent, recorded).assert_ok()


def test_a_run_that_waits_is_replayed_to_its_question(desk: Desk) -> None:
    graph = graph_of(classify, ask, pay)
    recorded = desk.record(graph, {"ticket": "hi"}, answers=0)
    assert desk.durable.get(desk.run_id).status == "waiting_human"
    replay_check(graph, recorded).assert_ok()

    def ask_otherwise(state: State) -> State:
        return {"sure": interrupt("really sure?")}

    ask_otherwise.__name__ = "ask"
    said = _said(replay_check(graph_of(classify, ask_otherwise, pay), recorded))
    assert "with another payload" in said


def test_a_failed_call_that_the_code_survived_fails_in_the_replay_too(desk: Desk) -> None:
    async def agent(ctx: RunContext, inp: Any) -> Any:
        try:
            return await ctx.tool("try", "break_down")
        except ToolError:
            return await ctx.once("instead", lambda: "instead")

    recorded = desk.record(agent)
    assert desk.durable.get(desk.run_id).output == "instead"
    replay_check(agent, recorded).assert_ok()


def test_messages_may_have_other_ids(desk: Desk) -> None:
    async def talk(state: MessagesState) -> Any:
        return {"messages": [await current_run().llm("talk", state["messages"], route="fast")]}

    graph = StateGraph(MessagesState).add_node(talk).add_edge(START, "talk").add_edge("talk", END)
    recorded = desk.record(graph, {"messages": [{"role": "user", "content": "hi"}]})
    replay_check(graph, recorded).assert_ok()
    assert isinstance(desk.durable.get(desk.run_id).output["messages"][-1], AIMessage)


def test_what_is_no_exported_steps_run_is_refused(desk: Desk) -> None:
    with pytest.raises(BadInput, match="no exported run"):
        replay_check(graph_of(pay), {"format": 99})
    desk.durable.graph("g", graph_of(classify), mode="graph")
    run_id = desk.durable.submit("g", {"ticket": "hi"})
    Worker(desk.durable).run_until_idle()
    with pytest.raises(BadInput, match="graph mode"):
        replay_check(graph_of(classify), export_run(desk.durable, run_id))


def test_the_command_line_exports_what_replay_check_reads(desk: Desk) -> None:
    graph = graph_of(classify, pay)
    desk.record(graph, {"ticket": "hi"})
    done = CliRunner().invoke(
        cli.app, ["runs", "export", desk.run_id, "--db", desk.durable.url, "--json"]
    )
    assert done.exit_code == 0, done.output
    replay_check(graph, done.output).assert_ok()


def test_the_runtime_notes_steps_that_a_later_pass_did_not_ask_for(desk: Desk) -> None:
    """Code that took another way is seen in the audit; the run's end stands."""
    ways = ["first", "second"]

    async def agent(ctx: RunContext, inp: Any) -> Any:
        way = ways.pop(0) if len(ways) > 1 else ways[0]
        await ctx.once(way, lambda: way)
        return await ctx.ask("sure", "sure?")

    desk.record(agent)
    assert desk.durable.get(desk.run_id).status == "succeeded"
    noted = [e for e in desk.durable.events(desk.run_id) if e.type == "steps_not_replayed"]
    assert [dict(event.data) for event in noted] == [{"keys": ["first"], "count": 1}]
