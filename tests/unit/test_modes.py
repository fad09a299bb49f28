"""Pieces of the modes that need no database."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph, add_messages

from langgraph_durable import Decision
from langgraph_durable.errors import LeaseLost, NonDeterminismError, NotEncodable, QuestionExpired
from langgraph_durable.modes import failure, graph, human_in_the_loop
from langgraph_durable.modes.ending import Ending
from langgraph_durable.modes.interrupts import latest, value_for_graph
from langgraph_durable.modes.nodes import asked_from
from langgraph_durable.modes.steps import LiveCopies
from langgraph_durable.modes.values import UNANSWERED, context_for, settled_input
from langgraph_durable.runs import Question, QuestionState
from langgraph_durable.testing.fakes import context
from langgraph_durable.values import Types, decode


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    last: list[AnyMessage]


def chat_graph() -> Any:
    inner = StateGraph(Chat)
    inner.add_node("in", lambda _: {})
    inner.add_edge(START, "in")
    built = StateGraph(Chat)
    built.add_node("node", lambda _: {})
    built.add_node("sub", inner.compile())
    built.add_edge(START, "node")
    built.add_edge("node", "sub")
    return built.compile()


CALLS = AIMessage("", tool_calls=[{"name": n, "args": {}, "id": n} for n in ("a", "b")])


@pytest.mark.parametrize(
    ("messages", "open_calls"),
    [
        ([HumanMessage("hi"), CALLS], ["a", "b"]),
        ([CALLS, ToolMessage("ok", tool_call_id="a")], ["b"]),
        ([CALLS, ToolMessage("ok", tool_call_id="a"), ToolMessage("ok", tool_call_id="b")], []),
        ([CALLS, HumanMessage("and then?")], []),  # no place to answer in any more
        ([AIMessage("done")], []),
        ([], []),
        ("no list", []),
    ],
)
def test_calls_left_open_are_answered_before_the_new_input(
    messages: Any, open_calls: list[str]
) -> None:
    given = {"messages": [HumanMessage("new")]}
    settled = settled_input(chat_graph(), {"messages": messages, "notes": ["x"]}, given)
    answers = [m for m in settled["messages"] if isinstance(m, ToolMessage)]
    assert [m.tool_call_id for m in answers] == open_calls
    assert all(m.content == UNANSWERED for m in answers)
    assert settled["messages"][-1].content == "new"
    assert given == {"messages": [HumanMessage("new")]}


def test_only_what_appends_is_answered_in() -> None:
    given = {"notes": ["n"]}
    assert settled_input(chat_graph(), {"last": [CALLS]}, given) == given
    assert settled_input(chat_graph(), {"messages": [CALLS]}, None) is None
    settled = settled_input(chat_graph(), {"messages": [CALLS]}, {"messages": ("user", "hi")})
    assert settled["messages"][-1] == ("user", "hi")


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("node@1", None),
        ("gone@1", "gone"),
        ("sub@2/in@1", None),
        ("sub@2/gone@1", "sub/gone"),
        ("node@1/anything@1", None),
        ("node@1/#1/anything@1", None),
    ],
)
def test_the_node_of_a_question_is_looked_for(path: str, missing: str | None) -> None:
    assert asked_from(chat_graph(), path) == missing


def question(**more: Any) -> Question:
    given = {"id": "q", "key": "k", "kind": "interrupt", "payload": "?", "digest": "d", **more}
    return Question(**given)


@pytest.mark.parametrize(
    ("decision", "value"),
    [
        (Decision.respond("mei", None), None),
        (Decision.respond("mei", {}), {}),
        (Decision.approve("mei", "ok"), {"choice": "approve", "by": "mei", "reason": "ok"}),
        (Decision.reject("mei", "no"), {"choice": "reject", "by": "mei", "reason": "no"}),
        (
            Decision.edit("mei", {"n": 1}),
            {"choice": "edit", "by": "mei", "reason": "", "arguments": {"n": 1}},
        ),
    ],
)
def test_what_interrupt_returns_for_a_decision(decision: Decision, value: Any) -> None:
    assert value_for_graph(question(decision=decision, state=QuestionState.DECIDED)) == value


def test_what_interrupt_returns_when_nobody_answered() -> None:
    gone = {"state": QuestionState.EXPIRED}
    assert value_for_graph(question(on_expiry="default", default=7, **gone)) == 7
    assert value_for_graph(question(on_expiry="reject", **gone))["expired"] is True
    with pytest.raises(QuestionExpired):
        value_for_graph(question(on_expiry="fail", **gone))


def test_a_closed_question_is_not_the_latest() -> None:
    asked = [
        question(id="1", interrupt_id="i", state=QuestionState.DECIDED),
        question(id="2", interrupt_id="i", state=QuestionState.CLOSED),
        question(id="3", interrupt_id=None),
    ]
    assert {id_: q.id for id_, q in latest(asked).items()} == {"i": "1"}
    assert human_in_the_loop.choices("plain payload", None) is None


async def test_a_thread_belongs_to_its_tenant_and_agent() -> None:
    one = graph.thread_id(context(tenant="a/b", agent="c", run_id="d"))
    other = graph.thread_id(context(tenant="a", agent="b", run_id="c/d"))
    assert one != other


def test_copies_are_copies_where_they_can_be() -> None:
    import threading

    serde, state = LiveCopies(), {"notes": [1]}
    stored = serde.dumps_typed(state)
    state["notes"].append(2)
    assert serde.loads_typed(stored) == {"notes": [1]}
    lock = threading.Lock()
    assert serde.loads_typed(serde.dumps_typed(lock)) is lock


async def test_an_output_that_can_not_be_kept_is_shown_instead() -> None:
    ctx = context()
    kept = decode(Ending(value={"good": 1, "bad": object()}).text(ctx), types=Types())
    assert kept["good"] == 1
    assert kept["bad"]["not_encodable"] == "object"
    whole = decode(Ending(value=object()).text(ctx), types=Types())
    assert whole["not_encodable"] == "object"


def test_an_error_is_stored_with_its_reason() -> None:
    try:
        raise NonDeterminismError("k", "a", "b\x00\ud83d")
    except NonDeterminismError as error:
        stored = failure(error)
    assert stored["reason"] == "non_determinism"
    assert "\x00" not in stored["message"]
    assert failure(LeaseLost("r", 1))["reason"] == "lease_lost"
    assert failure(NotEncodable("w", "$", "int", "x"))["reason"] == "not_encodable"
    assert failure(ValueError())["message"] == "ValueError"


async def test_a_graph_with_a_schema_of_its_own_is_not_given_our_context() -> None:
    from langgraph_durable import RunContext
    from langgraph_durable.agents import of_graph

    ctx = context()

    def agent(schema: Any, **more: Any) -> Any:
        built = StateGraph(Chat, context_schema=schema)
        built.add_node("node", lambda _: {})
        built.add_edge(START, "node")
        return of_graph("a", built, mode="steps", version="1", **more)

    assert context_for(agent(None), ctx) is ctx
    assert context_for(agent(RunContext), ctx) is ctx
    assert context_for(agent(Chat), ctx) is None
    assert context_for(agent(Chat, context={"x": 1}), ctx) == {"x": 1}
