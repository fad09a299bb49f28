"""The doubles that users test their agents with: scripted model, recording tools, fixtures."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_durable import Durable, Worker, current_run
from langgraph_durable.errors import BadInput, ToolError
from langgraph_durable.testing import (
    Ledger,
    MemoryJournal,
    RecordingTools,
    ScriptedModel,
    context,
    running,
)


async def test_a_scripted_model_answers_in_order_and_the_same_question_alike() -> None:
    model = ScriptedModel(["one", AIMessage("two")])
    answers = [(await model.ainvoke(text)).content for text in ("a", "b", "a")]
    assert answers == ["one", "two", "one"]
    assert model.calls == 3
    assert model.asked[1][0].content == "b"
    with pytest.raises(AssertionError, match="script of 2 answers and was asked something new"):
        model.invoke("c")


async def test_a_scripted_model_can_be_a_function_and_call_tools() -> None:
    def answer(messages: list[HumanMessage]) -> AIMessage:
        call = {"name": "pay", "args": {"text": messages[-1].content}, "id": "1"}
        return AIMessage("", tool_calls=[call])

    model = ScriptedModel(answer)
    reply = await model.bind_tools([]).ainvoke("hi")
    assert reply.tool_calls[0]["args"] == {"text": "hi"}


def _tools(ledger: Ledger | None = None) -> RecordingTools:
    tools = RecordingTools(ledger)

    @tools.tool(effect="idempotent")
    def pay(amount: int, idempotency_key: str, fencing_token: int) -> int:
        if amount < 0:
            raise ToolError("negative")
        return amount

    @tools.tool(effect="read")
    async def look() -> str:
        return "seen"

    return tools


async def test_recording_tools_note_each_call_with_its_key_and_remember_it() -> None:
    tools = _tools()
    for _ in range(2):
        with running(context(tools=tools)) as ctx:
            assert await ctx.tool("pay:1", "pay", {"amount": 1}) == 1
            assert await ctx.tool("look", "look") == "seen"
    with running(context(tools=tools)) as ctx, pytest.raises(ToolError, match="negative"):
        await ctx.tool("pay:2", "pay", {"amount": -1})
    seen = [(line.what, line.key, line.token, line.outcome) for line in tools.ledger.lines()]
    assert seen == [
        ("local.pay", "run-1:pay:1", 1, "applied"),
        ("local.look", None, None, "read"),
        ("local.pay", "run-1:pay:1", 1, "repeated"),
        ("local.look", None, None, "read"),
        ("local.pay", "run-1:pay:2", 1, "failed"),
    ]
    assert [line.arguments for line in tools.ledger.effects()] == [{"amount": 1}]
    assert tools.ledger.effects()[0].place == "step 'pay:1'"


def test_a_ledger_in_a_file_outlives_its_process(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    assert Ledger(path).act("pay", {"amount": 1}, key="r:pay", token=2, result="first") == "first"
    again = Ledger(path)
    assert again.act("pay", {"amount": 1}, key="r:pay", token=2, result="second") == "first"
    with pytest.raises(ToolError, match="used for other arguments"):
        again.act("pay", {"amount": 2}, key="r:pay", token=2)
    with pytest.raises(ToolError, match="stale fencing token 1"):
        again.act("pay", {"amount": 1}, key="r:pay", token=1)
    again.act("mail")
    assert [line.what for line in again.effects()] == ["pay", "mail"]
    assert "test_testing_doubles.py" in again.effects()[1].place
    again.clear()
    assert again.lines() == []


async def test_a_memory_journal_replays() -> None:
    journal, model = MemoryJournal(), ScriptedModel(["refund"])
    for _ in range(2):
        with running(context(journal, models={"fast": model})):
            assert (await current_run().llm("classify", "?", route="fast")).content == "refund"
    assert model.calls == 1


def test_without_a_url_the_store_is_a_temporary_file() -> None:
    durable = Durable("sqlite://")

    @durable.agent("a")
    async def agent(ctx: object, inp: int) -> int:
        return inp + 1

    run_id = durable.submit("a", 1)
    Worker(durable).run_until_idle()
    assert durable.get(run_id).output == 2
    durable.close()


# --- the pytest plugin -------------------------------------------------------------------------

_PLUGIN = "langgraph_durable.testing.plugin"
_TEST = """
import pytest
from langgraph_durable.testing import RecordingTools

@pytest.fixture
def durable_options():
    tools = RecordingTools()

    @tools.tool(effect="idempotent")
    def pay(amount: int, idempotency_key: str) -> int:
        return amount

    return {"tools": tools}

def test_it(durable, worker, durable_clock):
    @durable.agent("a")
    async def agent(ctx, inp):
        await ctx.sleep("nap", 60)
        return await ctx.tool("pay", "pay", {"amount": inp})

    run_id = durable.submit("a", 42)
    worker.run_until_idle()
    assert durable.get(run_id).status == "sleeping"
    durable_clock.advance(61)
    worker.run_until_idle()
    assert durable.get(run_id).output == 42
"""


def test_the_plugin_has_fixtures_also_without_pytest_asyncio(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_TEST)
    known = importlib.metadata.entry_points(group="pytest11")
    given = [] if any(entry.value == _PLUGIN for entry in known) else ["-p", _PLUGIN]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio",
         "-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:langsmith_plugin",
         *given, "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_plugin_imports_nothing_heavy() -> None:
    code = (
        f"import sys, {_PLUGIN}\n"
        "heavy = {'langgraph', 'langchain_core', 'sqlalchemy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_public_names_are_there() -> None:
    import langgraph_durable
    from langgraph_durable import testing

    for module in (langgraph_durable, testing):
        for name in module.__all__:
            assert getattr(module, name) is not None
            assert name in dir(module)
        with pytest.raises(AttributeError, match="no_such_name"):
            module.no_such_name  # noqa: B018  # the lookup is what is tested


def test_an_idempotent_recording_tool_needs_a_key() -> None:
    with pytest.raises(BadInput, match="no idempotency key"):
        RecordingTools().add(lambda amount: amount, effect="idempotent", name="pay")
