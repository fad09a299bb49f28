"""Agents are killed at every point of a run: nothing is done twice, nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crash_scenes
import pytest
from langgraph.graph import END, START, StateGraph

from langgraph_durable import Decision, Durable, Rule, RunContext
from langgraph_durable.errors import BadInput
from langgraph_durable.testing import (
    CrashReport,
    FakeClock,
    Ledger,
    RecordingTools,
    Scene,
    ScriptedModel,
    crash_everywhere,
)


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Print a report where people see it: the counts of points are part of the evidence."""

    def show(name: str, report: CrashReport) -> None:
        with capsys.disabled():
            print(f"\n{name}: {str(report).splitlines()[0]}")

    return show


# --- SupportPilot ------------------------------------------------------------------------


@pytest.mark.promise("S-33")
@pytest.mark.promise("S-41")
@pytest.mark.promise("S-48")
@pytest.mark.promise("S-76")
@pytest.mark.parametrize(("mode", "points"), [("steps", 34), ("graph", 50)])
def test_crash_everywhere_in_supportpilot(mode: str, points: int, show: Any) -> None:
    """Whenever a process dies, one refund is paid and one reply is written."""
    make = crash_scenes.supportpilot
    report = crash_everywhere(lambda folder: make(folder, mode), crash_scenes.TICKET)
    show(f"SupportPilot in {mode} mode", report)
    report.assert_ok()
    assert report.calm.shown == [("inv_42_03", 4200)]
    assert len(report.points) >= points
    labels = {point.label for point in report.points}
    assert {"submit", "claim", "settlement as asked", "settlement as done"} <= labels


@pytest.mark.promise("S-34")
@pytest.mark.promise("S-81")
def test_crash_everywhere_when_the_refund_is_refused(show: Any) -> None:
    """Refused is refused, wherever anybody dies: the ledger stays empty."""
    make = crash_scenes.supportpilot
    report = crash_everywhere(
        lambda folder: make(folder, "steps", approves=False), crash_scenes.TICKET
    )
    show("SupportPilot, refused", report)
    report.assert_ok()
    assert report.calm.shown == []
    assert report.calm.run.output["refund"]["outcome"] == "refused"


# --- the examples ------------------------------------------------------------------------


def test_crash_everywhere_in_example_01(tmp_path: Any, show: Any) -> None:
    module = crash_scenes.example("01_steps_mode")
    calls = tmp_path / "calls.txt"
    durable = module.build(tmp_path, deadly=False)
    scene = Scene.of(
        durable,
        "support",
        # its tool pays a key once, as a good server does: what counts are the keys
        effects=lambda: sorted({x for x in calls.read_text().splitlines() if x != "model"}),
    )
    report = crash_everywhere(
        lambda _: scene, {"ticket": "hi"}, fresh=lambda: calls.unlink(missing_ok=True)
    )
    durable.close()
    show("example 01", report)
    report.assert_ok()


def test_crash_everywhere_in_example_02(show: Any) -> None:
    """The draft that a person saw is the one that is sent, though drafts are counted."""
    module = crash_scenes.example("02_graph_mode")

    def fresh() -> None:
        module.drafts = 0

    report = crash_everywhere(
        module.existing_graph(),
        {},
        mode="graph",
        decisions=lambda question: Decision.respond("mei", "Dear Ms Li, we are sorry."),
        fresh=fresh,
    )
    show("example 02", report)
    report.assert_ok()
    assert report.calm.run.output["sent"] == "Dear Ms Li, we are sorry."


@pytest.mark.parametrize("mode", ["steps", "graph"])
def test_crash_everywhere_in_example_03(mode: Any, show: Any) -> None:
    """An agent of LangChain's `create_agent`: its model and its tools are steps."""
    module = crash_scenes.example("03_create_agent")
    report = crash_everywhere(
        module.agent(ScriptedModel(module.SCRIPT)),
        {"messages": [{"role": "user", "content": "I was charged twice"}]},
        mode=mode,
        fresh=module.called.clear,
    )
    show(f"example 03 in {mode} mode", report)
    report.assert_ok()


def test_crash_everywhere_in_example_04(show: Any) -> None:
    module = crash_scenes.example("04_approval")
    graph = StateGraph(module.State).add_node(module.pay)
    report = crash_everywhere(
        graph.add_edge(START, "pay").add_edge("pay", END),
        {"invoice": "A-2", "amount_cents": 4200},
        tools=module.hub,
        rules=[Rule("ask", tool="refund")],
        decisions=lambda q: Decision.edit("mei", {"invoice": "A-2", "amount_cents": 99}),
        effects=lambda: list(module.ledger.values()),
        fresh=module.ledger.clear,
    )
    show("example 04", report)
    report.assert_ok()
    assert report.calm.shown == [99]


def test_crash_everywhere_in_example_05(show: Any) -> None:
    module = crash_scenes.example("05_plain_function")

    def fresh() -> None:
        module.tries = 0

    report = crash_everywhere(module.check, {"share": 1.0, "sleep": 3600}, fresh=fresh)
    module.durable.close()
    show("example 05", report)
    report.assert_ok()


# --- speed, pairs, stops, processes --------------------------------------------------------


def test_crash_everywhere_in_ten_steps(show: Any) -> None:
    report = crash_everywhere(crash_scenes.ten_steps, tools=crash_scenes.adding_tools())
    show("ten steps", report)
    report.assert_ok()
    assert report.calm.run.output == list(range(1, 11))
    # a crash between effect and record makes the call again, under the same key
    assert report.repeated == {"read": 0, "idempotent": 20, "once": 0}


def test_crash_everywhere_and_again_in_the_recovery(show: Any) -> None:
    tools = crash_scenes.paying_tools()
    models = {"fast": ScriptedModel(["refund"])}
    report = crash_everywhere(
        crash_scenes.paying_graph(), {"amount": 42}, tools=tools, models=models, pairs=20
    )
    show("pairs", report)
    report.assert_ok()
    assert sum(len(crash.plan) == 2 for crash in report.crashes) == 20


@pytest.mark.promise("S-64")
@pytest.mark.promise("H-09")
@pytest.mark.parametrize("mode", ["steps", "graph"])
def test_a_worker_that_stands_still_anywhere_does_no_harm_when_it_wakes(
    mode: Any, show: Any
) -> None:
    """Two workers are inside one run for a moment, at every point of it: one effect."""
    tools = RecordingTools()

    @tools.tool(effect="idempotent")
    def pay(amount: int, idempotency_key: str, fencing_token: int) -> int:
        return amount

    async def act(state: Any) -> Any:
        from langgraph_durable import current_run

        return {"paid": await current_run().tool("pay", "pay", {"amount": 1})}

    graph = StateGraph(crash_scenes.Paying).add_node(act)
    graph.add_edge(START, "act").add_edge("act", END)
    report = crash_everywhere(graph, {}, mode=mode, tools=tools, stops=True)
    show(f"stops in {mode} mode", report)
    report.assert_ok()
    assert any(crash.how == "stopped" for crash in report.crashes)


@pytest.mark.promise("S-01")
@pytest.mark.parametrize("make", [crash_scenes.paying, crash_scenes.mailing_in_graph_mode])
def test_crash_everywhere_with_real_processes(make: Any, show: Any) -> None:
    """Each life is a process, and ends by SIGKILL."""
    report = crash_everywhere(make, {"amount": 42}, processes=True)
    show(f"{make.__name__}, SIGKILL", report)
    report.assert_ok()
    assert len(report.points) >= 20
    assert len(report.calm.shown) == 1


def test_real_processes_need_a_scene_that_can_be_imported() -> None:
    with pytest.raises(BadInput, match="scene factory"):
        crash_everywhere(crash_scenes.ten_steps, processes=True)


# --- broken agents are caught ----------------------------------------------------------------


def _caught(report: CrashReport) -> str:
    assert not report.is_ok
    with pytest.raises(AssertionError) as caught:
        report.assert_ok()
    text = str(caught.value)
    assert "journal, calm" in text  # both journals, side by side
    assert "journal, crashed" in text
    return text


@pytest.mark.promise("S-41")
def test_a_refund_without_a_key_is_caught() -> None:
    """Declared a read so that nobody asks for a key: a crash after the effect doubles it."""
    ledger = Ledger()
    tools = RecordingTools(ledger)

    @tools.tool(effect="read")
    def refund(amount: int) -> str:
        ledger.act("money", {"amount": amount})
        return "paid"

    async def agent(ctx: RunContext, inp: Any) -> Any:
        return await ctx.tool("refund:42", "refund", {"amount": 42})

    text = _caught(crash_everywhere(agent, tools=tools))
    assert "killed after call of tool 'local.refund' for step 'refund:42'" in text
    assert "'money' {'amount': 42}" in text
    assert "took effect 2 times (calm: 1)" in text
    assert "test_crash_everywhere.py" in text  # the line that has the effect


def test_a_tool_that_ignores_its_key_is_caught() -> None:
    paid: list[int] = []
    tools = crash_scenes.ToolHub()

    @tools.tool(effect="idempotent")
    def refund(amount: int, idempotency_key: str) -> str:
        paid.append(amount)
        return "paid"

    async def agent(ctx: RunContext, inp: Any) -> Any:
        return await ctx.tool("refund", "refund", {"amount": 42})

    report = crash_everywhere(agent, tools=tools, effects=lambda: list(paid), fresh=paid.clear)
    assert "42 took effect 2 times (calm: 1)" in _caught(report)


@pytest.mark.promise("S-50")
@pytest.mark.promise("S-74")
def test_a_branch_on_the_clock_is_caught() -> None:
    """17:59 against 18:01: the code takes another way after the crash."""
    clock = FakeClock(FakeClock().now().replace(hour=17, minute=59, second=30))

    async def agent(ctx: RunContext, inp: Any) -> Any:
        await ctx.now("began")
        if clock.now().hour < 18:
            return await ctx.once("answer today", lambda: "today")
        return await ctx.once("answer tomorrow", lambda: "tomorrow")

    text = _caught(crash_everywhere(agent, clock=clock))
    assert "step 'answer tomorrow' is not in the calm run: the code took another way" in text
    assert "steps 'answer today' were recorded, and a later pass ended without asking" in text

    async def right(ctx: RunContext, inp: Any) -> Any:
        if (await ctx.now("began")).hour < 18:
            return await ctx.once("answer today", lambda: "today")
        return await ctx.once("answer tomorrow", lambda: "tomorrow")

    # only a crash before the time is recorded leads to another time
    again = crash_everywhere(right, clock=clock)
    assert {str(c.plan[0].label) for c in again.failed} <= {
        "submit", "claim", "load of the journal", "record of step 'began' as recorded",
    }  # fmt: skip


@pytest.mark.promise("S-50")
def test_a_branch_on_chance_is_caught() -> None:
    """The same key for another request is the runtime's own error, and names both sides."""
    dice = random.Random(1)

    async def agent(ctx: RunContext, inp: Any) -> Any:
        number = dice.randint(1, 1_000_000)
        return await ctx.tool("add", "add", {"number": number})

    def fresh() -> None:
        dice.seed(1)

    report = crash_everywhere(agent, tools=crash_scenes.adding_tools(), fresh=fresh)
    assert "NonDeterminismError: step 'add' was recorded for tool 'local.add'" in _caught(report)

    async def asking(ctx: RunContext, inp: Any) -> Any:
        await agent(ctx, inp)
        return await ctx.ask("sure", "sure?")

    # a pause is enough: it diverges without any crash
    report = crash_everywhere(asking, tools=crash_scenes.adding_tools(), fresh=fresh)
    assert "without any crash: NonDeterminismError: step 'add' was recorded" in _caught(report)


@pytest.mark.promise("S-08")
def test_an_effect_outside_of_a_step_is_caught() -> None:
    """It comes again with every replay; the message names its line."""
    ledger = Ledger()

    async def agent(ctx: RunContext, inp: Any) -> Any:
        await ctx.now("began")
        ledger.act("e-mail", {"to": "li"})  # this line
        return await ctx.uuid("id") and "sent"

    text = _caught(crash_everywhere(agent, ledger=ledger))
    lines = Path(__file__).read_text().splitlines()
    line = 1 + next(n for n, code in enumerate(lines) if code.endswith("# this line"))
    assert f"test_crash_everywhere.py:{line} in agent took effect 2 times (calm: 1)" in text


def test_an_answer_from_outside_of_a_step_is_caught() -> None:
    """Another output after a crash is a failure, even when every step is in order."""
    passes: list[int] = []

    async def agent(ctx: RunContext, inp: Any) -> Any:
        passes.append(1)
        await ctx.uuid("id")
        return len(passes)

    assert "another output: 2 (calm: 1)" in _caught(crash_everywhere(agent, fresh=passes.clear))


# --- parallel branches, failures, timers, expiry ----------------------------------------------


def test_crash_everywhere_in_parallel_branches(show: Any) -> None:
    async def agent(ctx: RunContext, inp: Any) -> Any:
        calls = (ctx.tool(f"step:{i}", "add", {"number": i}) for i in range(3))
        return sorted(await asyncio.gather(*calls, ctx.ask("sure", "sure?")))

    report = crash_everywhere(agent, tools=crash_scenes.adding_tools())
    show("parallel branches", report)
    report.assert_ok()


def test_crash_everywhere_when_nobody_answers(show: Any) -> None:
    async def agent(ctx: RunContext, inp: Any) -> Any:
        said = await ctx.ask("q", "?", expires_in_seconds=3600, on_expiry="default", default="no")
        await ctx.sleep("nap", 600)
        return said

    report = crash_everywhere(agent, decisions=lambda question: None)
    show("nobody answers", report)
    report.assert_ok()
    assert report.calm.run.output == "no"


def test_crash_everywhere_in_a_run_that_fails(show: Any) -> None:
    """A run that fails, fails the same way."""

    async def agent(ctx: RunContext, inp: Any) -> Any:
        await ctx.uuid("id")
        raise BadInput("this can't be done")

    report = crash_everywhere(agent)
    show("a run that fails", report)
    report.assert_ok()
    assert report.calm.run.status == "failed"


def test_a_registered_agent_can_be_tested_as_it_is() -> None:
    durable = Durable("sqlite://", models={"fast": ScriptedModel(["refund"])})
    graph = StateGraph(crash_scenes.Paying).add_node(crash_scenes.judge)
    graph.add_edge(START, "judge").add_edge("judge", END)
    durable.graph("judges", graph, mode="steps", version="7")
    report = crash_everywhere(lambda _: Scene.of(durable, "judges"), {"amount": 42})
    durable.close()
    report.assert_ok()
    assert report.calm.run.agent == "judges"
    assert report.calm.run.version == "7"
