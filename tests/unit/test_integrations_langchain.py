"""LangChain's shapes, without a database: answers in kind, keys, tools and models wrapped."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolArg, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.types import Command, Send, interrupt

from langgraph_durable import Decision, Effect, ToolHub
from langgraph_durable.errors import BadInput, DuplicateKey, Parked
from langgraph_durable.integrations.langchain import (
    DurableMiddleware,
    durable_model,
    durable_tool,
)
from langgraph_durable.integrations.langchain.keys import named
from langgraph_durable.modes.human_in_the_loop import answer_in_kind, choices
from langgraph_durable.runs import StepState
from langgraph_durable.testing import MemoryJournal, context, running
from langgraph_durable.tools import ToolSpec
from tests.stories.langchain_desk import Scripted, calls, last_words

# --- LangChain's human in the loop -----------------------------------------------------

ALL = ["approve", "edit", "reject", "respond"]


def batched(*actions: str, allowed: Any = ALL) -> dict[str, Any]:
    return {
        "action_requests": [{"name": name, "args": {"n": 1}} for name in actions],
        "review_configs": [{"action_name": name, "allowed_decisions": allowed} for name in actions],
    }


PER_CALL = {"type": "tool_approval", "tool_call_id": "1", "name": "pay", "args": {"n": 1}}


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        (Decision.approve("mei"), {"type": "approve"}),
        (Decision.reject("mei"), {"type": "reject"}),
        (Decision.reject("mei", "no"), {"type": "reject", "message": "no"}),
        (
            Decision.edit("mei", {"n": 2}),
            {"type": "edit", "edited_action": {"name": "pay", "args": {"n": 2}}},
        ),
        (Decision.respond("mei", "done"), {"type": "respond", "message": "done"}),
        (
            Decision.respond("mei", {"type": "reject", "message": "own"}),
            {"type": "reject", "message": "own"},
        ),
    ],
)
def test_a_decision_becomes_the_answer_that_the_middleware_wants(
    decision: Decision, answer: Any
) -> None:
    assert answer_in_kind(PER_CALL, decision) == answer
    if decision.choice == "respond" and isinstance(decision.value, dict):
        decision = Decision.respond("mei", {"decisions": [decision.value]})
    assert answer_in_kind(batched("pay"), decision) == {"decisions": [answer]}


def test_one_decision_holds_for_every_call_of_the_question() -> None:
    two = batched("pay", "mail")
    assert answer_in_kind(two, Decision.approve("mei")) == {"decisions": [{"type": "approve"}] * 2}
    assert choices(two) == ("approve", "reject", "respond")
    assert choices(batched("pay", "mail", allowed=["edit"])) == ("respond",)
    for vague in (Decision.edit("mei", {}), Decision.respond("mei", "done")):
        with pytest.raises(BadInput, match="about 2 calls"):
            answer_in_kind(two, vague)


@pytest.mark.parametrize(
    "payload",
    [None, "sure?", {}, {"action_requests": []}, {"action_requests": 1, "review_configs": 2}, [1]],
)
def test_other_questions_are_left_alone(payload: Any) -> None:
    assert answer_in_kind(payload, Decision.approve("mei")) is None
    assert choices(payload) is None


@pytest.mark.parametrize(
    "value",
    [
        {"decisions": []},
        {"decisions": ["approve"]},
        {"decisions": [{"type": "steal"}]},
        {"decisions": [{"type": "edit"}]},
        {"decisions": [{"type": "edit", "edited_action": {"name": "pay", "args": "all"}}]},
        {"decisions": [{"type": "respond"}]},
        7,
        None,
    ],
)
def test_an_answer_that_the_middleware_would_choke_on_is_refused(value: Any) -> None:
    with pytest.raises(BadInput):
        answer_in_kind(batched("pay"), Decision.respond("mei", value))


@pytest.mark.parametrize("allowed", [ALL, ["approve", "reject"], ["respond"]])
def test_the_choices_of_a_call_are_those_of_its_response_schema(allowed: list[Any]) -> None:
    """Against the middleware itself: an upgrade that changes its schema is seen here."""
    loop = HumanInTheLoopMiddleware(
        interrupt_on={"pay": {"allowed_decisions": allowed}}, interrupt_mode="per_call"
    )

    @tool
    def pay(n: int) -> str:
        """Pay."""
        return str(n)

    agent = create_agent(
        Scripted(script=[calls(("pay", {"n": 1}))]), [pay], middleware=[loop],
        checkpointer=InMemorySaver(),
    )  # fmt: skip
    config: Any = {"configurable": {"thread_id": "1"}}
    (asked,) = agent.invoke({"messages": [("user", "hi")]}, config, version="v2").interrupts
    from langgraph_durable.modes.interrupts import _json_schema

    found = choices(asked.value, _json_schema(asked.response_schema))
    assert set(found or ()) == set(allowed)


# --- keys ------------------------------------------------------------------------------


def test_a_key_that_is_too_long_or_unprintable_ends_in_its_digest() -> None:
    assert named("tools@2", "pay", "call_1") == "tools@2:pay:call_1"
    long, other = named("a" * 500, "x"), named("a" * 500, "y")
    assert long != other
    assert len(long) < 200
    odd = named("tools@2", "p\nay", "\ud800")
    assert odd.isprintable()
    assert odd == named("tools@2", "p\nay", "\ud800")


async def test_a_key_of_a_call_that_failed_is_free_for_another_try() -> None:
    ctx = context(MemoryJournal())
    with running(ctx):

        def fail() -> None:
            raise ConnectionError

        with pytest.raises(ConnectionError):
            await ctx.once("report", fail)
        assert await ctx.once("report", lambda: "fine") == "fine"
        with pytest.raises(DuplicateKey):
            await ctx.once("report", lambda: "again")


# --- outside of a run ------------------------------------------------------------------


@tool
def pay(amount: int, idempotency_key: str = "none") -> str:
    """Pay."""
    return f"paid {amount} under {idempotency_key}"


def test_outside_of_a_durable_run_everything_passes_through() -> None:
    model = Scripted(script=[calls(("pay", {"amount": 1})), last_words])
    middleware = DurableMiddleware(effects={"pay": "idempotent"}, asks=["pay"])
    agent = create_agent(durable_model(model), [pay], middleware=[middleware])
    done = agent.invoke({"messages": [("user", "pay")]})
    assert done["messages"][-1].content == "paid 1 under none"
    wrapped = durable_tool(pay, effect="idempotent", asks=True)
    assert wrapped.invoke({"amount": 2}) == "paid 2 under none"


async def test_outside_of_a_durable_run_async_too() -> None:
    model = Scripted(script=[calls(("pay", {"amount": 1})), last_words])
    agent = create_agent(durable_model(model), [durable_tool(pay, effect="idempotent")])
    done = await agent.ainvoke({"messages": [("user", "pay")]})
    assert done["messages"][-1].content == "paid 1 under none"


# --- declarations ----------------------------------------------------------------------


def test_declarations_that_mean_nothing_are_refused_at_once() -> None:
    with pytest.raises(BadInput, match="declare it once"):
        DurableMiddleware(reads=["pay"], effects={"pay": "once"})
    with pytest.raises(BadInput, match="has no effect 'write'"):
        DurableMiddleware(effects={"pay": "write"})
    with pytest.raises(BadInput, match="its effect is not declared"):
        DurableMiddleware(asks=["pay"])
    with pytest.raises(BadInput, match="no idempotency key reaches it"):
        durable_tool(lambda_tool(), effect="idempotent")


def lambda_tool() -> Any:
    @tool
    def mail(text: str) -> str:
        """Mail."""
        return text

    return mail


# --- tools in a step -------------------------------------------------------------------


async def test_what_the_runtime_fills_is_hidden_from_models_and_from_the_question() -> None:
    @tool
    def send(
        text: str,
        idempotency_key: str,
        fencing_token: Annotated[int, InjectedToolArg],
        state: Annotated[dict[str, Any], InjectedState],
    ) -> str:
        """Send."""
        return f"{text} {idempotency_key} {fencing_token} {len(state['messages'])}"

    made = durable_tool(send, effect="idempotent", asks=True)
    assert set(convert_to_openai_tool(made)["function"]["parameters"]["properties"]) == {"text"}
    assert made.description == send.description

    journal = MemoryJournal()
    message = calls(("send", {"text": "hi", "idempotency_key": "the model's", "state": "fake"}))
    graph = StateGraph(MessagesState).add_node("tools", ToolNode([made])).add_edge(START, "tools")
    ctx = context(journal)
    with running(ctx), pytest.raises(Parked):
        await graph.compile().ainvoke({"messages": [message]})
    (question,) = ctx.state.asked.values()
    assert question.payload == {"text": "hi"}
    assert question.key == "tools@1:send:call_1"
    journal.decide(question, Decision.edit("mei", {"text": "hello"}))
    with running(context(journal)):
        done = await graph.compile().ainvoke({"messages": [message]})
    assert (
        done["messages"][-1].content == "hello run-1:tools@1:send:call_1 2 1"
    )  # the second claim's token


async def test_a_once_tool_that_asks_for_itself_is_not_taken_for_one_that_may_have_happened() -> (
    None
):
    """Its code before the question runs again by the rule of interrupt(); no intent is left."""

    @tool
    def wire(amount: int) -> str:
        """Ask, then pay."""
        return f"{interrupt('sure?')} {amount}"

    made = durable_tool(wire, effect=Effect.ONCE)
    graph = StateGraph(MessagesState).add_node("tools", ToolNode([made])).add_edge(START, "tools")
    agent = graph.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    journal = MemoryJournal()
    message = calls(("wire", {"amount": 1}))
    with running(context(journal)):
        await agent.ainvoke({"messages": [message]}, config)
    assert [row.state for row in journal.rows.values()] == [StepState.ASKING]
    with running(context(journal)):
        done = await agent.ainvoke(Command(resume="yes"), config)
    assert done["messages"][-1].content == "yes 1"
    assert [row.state for row in journal.rows.values()] == [StepState.RECORDED]


async def test_a_probe_tells_whether_a_lost_call_happened() -> None:
    from dataclasses import replace

    made = durable_tool(
        lambda_tool(), effect="once", probe=lambda arguments, info: f"found {arguments['text']}"
    )
    journal = MemoryJournal()
    with running(context(journal)):
        await made.ainvoke(calls(("mail", {"text": "hi"})).tool_calls[0])
    (key,) = journal.rows
    journal.rows[key] = replace(journal.rows[key], state=StepState.INTENT, value=None)
    with running(context(journal)):
        answer = await made.ainvoke(calls(("mail", {"text": "hi"})).tool_calls[0])
    assert isinstance(answer, ToolMessage)
    assert (answer.content, answer.tool_call_id) == ("found hi", "call_1")


async def test_a_tool_called_by_code_is_keyed_by_the_place_and_the_number_of_the_call() -> None:
    journal = MemoryJournal()
    for _ in range(2):
        with running(context(journal)):
            made = durable_tool(lambda_tool(), effect="once")
            assert await made.ainvoke({"text": "a"}) == "a"
            assert await made.ainvoke({"text": "b"}) == "b"
    assert [key.rpartition(":")[2] for key in journal.rows] == ["mail", "mail#2"]
    assert [row.attempts for row in journal.rows.values()] == [1, 1]


async def test_a_command_that_sends_is_refused_with_a_sentence() -> None:
    @tool
    def hand_over(to: str) -> Any:
        """Hand over."""
        return Command(goto=Send(to, {}))

    made = durable_tool(hand_over, effect="read")
    with running(context(MemoryJournal())), pytest.raises(BadInput, match="Send or resume"):
        await made.ainvoke(calls(("hand_over", {"to": "x"})).tool_calls[0])


async def test_the_spec_of_a_tool_on_the_hub_is_used_as_it_is() -> None:
    hub = ToolHub()
    hub.add(pay, effect="idempotent", server="billing", asks=True)
    middleware = DurableMiddleware()
    model = Scripted(script=[calls(("pay", {"amount": 1})), last_words])
    agent = create_agent(model, [pay], middleware=[middleware])
    ctx = context(MemoryJournal(), tools=hub)
    with running(ctx), pytest.raises(Parked):
        await agent.ainvoke({"messages": [("user", "pay")]})
    (question,) = ctx.state.asked.values()
    assert question.tool == "billing.pay"


async def test_effects_may_bring_a_whole_spec() -> None:
    spec = ToolSpec("billing", "pay", Effect.IDEMPOTENT, asks=True, key_argument="idempotency_key")
    model = Scripted(script=[calls(("pay", {"amount": 1})), last_words])
    agent = create_agent(model, [pay], middleware=[DurableMiddleware(effects={"pay": spec})])
    ctx = context(MemoryJournal())
    with running(ctx), pytest.raises(Parked):
        await agent.ainvoke({"messages": [("user", "pay")]})
    assert [question.tool for question in ctx.state.asked.values()] == ["billing.pay"]


# --- models ----------------------------------------------------------------------------


async def test_a_changed_prompt_is_noted_and_the_recorded_answer_used() -> None:
    journal = MemoryJournal()
    notes: list[str] = []
    for text in ("hello", "hullo"):
        ctx = context(journal)
        object.__setattr__(ctx.services, "note", lambda kind, data: notes.append(kind))
        model = Scripted(script=[AIMessage(f"answer to {text}")])
        with running(ctx):
            answer = await durable_model(model, key="draft").ainvoke([HumanMessage(text)])
        assert answer.content == "answer to hello"
    assert notes == ["request_changed"]
    (row,) = journal.rows.values()
    assert row.kind == "llm"
    assert row.key.endswith(":draft")


async def test_sync_calls_on_the_loops_own_thread_are_refused() -> None:
    from langgraph_durable.errors import DurableError

    with running(context(MemoryJournal())), pytest.raises(DurableError, match="sync nodes"):
        durable_model(Scripted(script=[AIMessage("hi")])).invoke("hello")
