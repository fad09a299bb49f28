"""People are asked, answer late and in any order, and each answer reaches its question."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt
from shop import Shop, failed, succeeded, waits

from langgraph_durable import Decision, Status, current_run
from langgraph_durable.runs import Refused


def greater(one: int, other: int) -> int:
    return max(one, other)


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Notes(TypedDict, total=False):
    notes: Annotated[list[str], operator.add]
    n: Annotated[int, greater]


def three_calls(_state: Chat) -> dict[str, Any]:
    calls = [("ask", {"question": "A"}), ("pay", {"cents": 1}), ("ask", {"question": "B"})]
    made = [{"name": n, "args": a, "id": f"call-{i}"} for i, (n, a) in enumerate(calls)]
    return {"messages": [AIMessage("", tool_calls=made, id="ai")]}


def tool_graph(tools: list[Any]) -> StateGraph[Chat]:
    graph = StateGraph(Chat)
    graph.add_node("model", three_calls)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_edge("tools", END)
    return graph


def tools_of(kind: str, paid: list[int]) -> list[Any]:
    """`ask` and `pay`, async or sync, asking by `interrupt()` or by ctx.ask."""

    async def record(cents: int) -> str:
        paid.append(cents)
        return f"paid {cents}"

    if kind == "async interrupt":

        @tool
        async def ask(question: str) -> str:
            """Ask a person."""
            return str(interrupt({"question": question}))

        @tool
        async def pay(cents: int) -> str:
            """Pay."""
            return str(await current_run().once("pay", lambda: record(cents)))

    elif kind == "sync interrupt":

        @tool
        def ask(question: str) -> str:
            """Ask a person."""
            return str(interrupt({"question": question}))

        @tool
        def pay(cents: int) -> str:
            """Pay."""
            return str(current_run().blocking.once("pay", lambda: record(cents)))

    else:

        @tool
        async def ask(question: str) -> str:
            """Ask a person."""
            return str(await current_run().ask(f"ask:{question}", {"question": question}))

        @tool
        async def pay(cents: int) -> str:
            """Pay."""
            return str(await current_run().once("pay", lambda: record(cents)))

    return [ask, pay]


@pytest.mark.promise("H-01")
@pytest.mark.parametrize("kind", ["async interrupt", "sync interrupt", "ctx"])
def test_a_payment_beside_two_questions_is_made_once(shop: Shop, mode: str, kind: str) -> None:
    paid: list[int] = []
    shop.deploy(tool_graph(tools_of(kind, paid)), mode)
    waits(shop.begin({"messages": []}))
    output = succeeded(shop.answer_all(lambda q: "answer to " + q.payload["question"]))
    assert paid == [1]
    results = [m for m in output["messages"] if isinstance(m, ToolMessage)]
    assert [m.tool_call_id for m in results] == ["call-0", "call-1", "call-2"]
    assert [m.content for m in results] == ["answer to A", "paid 1", "answer to B"]


@pytest.mark.promise("H-01")
def test_calls_that_a_tool_node_left_running_are_recorded_before_the_park(
    shop: Shop, mode: str
) -> None:
    done: list[str] = []

    @tool
    async def ask(question: str) -> str:
        """Ask a person at once."""
        return str(await current_run().ask(f"ask:{question}", {"question": question}))

    @tool
    async def pay(cents: int) -> str:
        """Pay slowly."""

        async def slowly() -> str:
            import asyncio

            await asyncio.sleep(0.2)
            done.append("paid")
            return "paid"

        return str(await current_run().once("pay", slowly))

    shop.deploy(tool_graph([ask, pay]), mode)
    waits(shop.begin({"messages": []}))
    assert done == ["paid"]
    assert shop.journal["pay"].state == "recorded"


def fan_out(way: str, log: list[str]) -> StateGraph[Notes]:
    """START → a (asks), b (asks), d; each has a step before."""

    async def step(name: str) -> str:
        log.append(name)
        return name

    def asker(name: str) -> Any:
        async def node(_state: Notes) -> Notes:
            await current_run().once(f"before {name}", lambda: step(name))
            if way == "interrupt":
                answer = interrupt({"q": name})
            else:
                answer = await current_run().ask(f"q {name}", {"q": name})
            return {"notes": [f"{name}={answer}"]}

        return node

    async def d(_state: Notes) -> Notes:
        log.append("d plain")
        return {"notes": [await current_run().once("before d", lambda: step("d"))]}

    graph = StateGraph(Notes)
    for name, node in (("a", asker("a")), ("b", asker("b")), ("d", d)):
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph


@pytest.mark.promise("H-03")
@pytest.mark.parametrize("way", ["interrupt", "ctx"])
def test_parallel_questions_are_answered_in_the_other_order(
    any_shop: Shop, mode: str, way: str
) -> None:
    shop, log = any_shop, []
    shop.deploy(fan_out(way, log), mode)
    waits(shop.begin({"notes": []}))
    first, second = shop.asked
    assert first.id != second.id
    assert sorted(q.payload["q"] for q in shop.asked) == ["a", "b"]
    shop.restart()
    question_b = next(q for q in shop.asked if q.payload["q"] == "b")
    shop.durable.decide(question_b.id, Decision.respond("mei", "for b"))
    waits(shop.work())
    assert [q.payload["q"] for q in shop.asked] == ["a"]
    output = succeeded(shop.answer("for a"))
    assert sorted(output["notes"]) == ["a=for a", "b=for b", "d"]
    assert sorted(log) == ["a", "b", "d", *["d plain"] * log.count("d plain")]
    if mode == "graph":
        assert log.count("d plain") == 1


# --- H-04 ------------------------------------------------------------------------------


def inner(log: list[str], way: str) -> StateGraph[Notes]:
    async def effect() -> str:
        log.append("i1")
        return "done"

    async def i1(state: Notes) -> Notes:
        await current_run().once(f"i1:{state.get('n', 0)}", effect)
        return {"notes": ["i1"]}

    async def i2(state: Notes) -> Notes:
        payload = {"q": "go on?", "n": state.get("n", 0)}
        if way == "interrupt":
            answer = interrupt(payload)
        else:
            answer = await current_run().ask(
                f"ask:{state.get('n', 0)}", payload,
                choices=("approve", "reject", "edit", "respond"),
            )  # fmt: skip
        return {"notes": [_shown(answer)]}

    graph = StateGraph(Notes)
    graph.add_node(i1)
    graph.add_node(i2)
    graph.add_edge(START, "i1")
    graph.add_edge("i1", "i2")
    graph.add_edge("i2", END)
    return graph


def _shown(answer: Any) -> str:
    if isinstance(answer, Refused):
        return "reject"
    if isinstance(answer, dict) and "choice" in answer:
        return f"{answer['choice']} {answer.get('arguments', '')}".strip()
    return "approve" if answer is True else f"edit {answer}" if isinstance(answer, dict) else answer


def outer(shape: str, log: list[str], way: str) -> StateGraph[Notes]:
    graph = StateGraph(Notes)
    compiled = inner(log, way).compile()

    async def before() -> str:
        log.append("parent")
        return "ok"

    async def call(state: Notes) -> Notes:
        await current_run().once("before the call", before)
        result = await compiled.ainvoke({"notes": [], "n": state.get("n", 0)})
        return {"notes": result["notes"]}

    if shape == "added":
        graph.add_node("call", compiled)
    elif shape == "called":
        graph.add_node("call", call)
    else:
        middle = StateGraph(Notes)
        middle.add_node("mid", call if shape == "two levels, called" else compiled)
        middle.add_edge(START, "mid")
        middle.add_edge("mid", END)
        graph.add_node("call", middle.compile())
    graph.add_edge(START, "call")
    graph.add_edge("call", END)
    return graph


DECISIONS = {
    "approve": (Decision.approve("mei"), "approve"),
    "edit": (Decision.edit("mei", {"cents": 2}), "edit {'cents': 2}"),
    "reject": (Decision.reject("mei", "no"), "reject"),
    "respond": (Decision.respond("mei", "fine"), "fine"),
}


@pytest.mark.promise("H-04")
@pytest.mark.parametrize(
    ("way", "choice"),
    [*(("interrupt", choice) for choice in DECISIONS), ("ctx", "edit"), ("ctx", "reject")],
)
@pytest.mark.parametrize("shape", ["called", "added", "two levels, called", "two levels, added"])
def test_a_question_in_a_subgraph_takes_every_decision(
    shop: Shop, mode: str, shape: str, choice: str, way: str
) -> None:
    log: list[str] = []
    shop.deploy(outer(shape, log, way), mode)
    waits(shop.begin({"notes": [], "n": 7}))
    assert shop.asked[0].payload == {"q": "go on?", "n": 7}
    decision, seen = DECISIONS[choice]
    shop.restart()
    shop.decide(decision)
    assert succeeded(shop.work())["notes"][-1] == seen
    assert log.count("i1") == 1
    assert log.count("parent") == (1 if "called" in shape else 0)


@pytest.mark.promise("H-04")
@pytest.mark.parametrize("way", ["interrupt", "ctx"])
def test_a_subgraph_fanned_out_by_send_asks_for_each_branch(
    any_shop: Shop, mode: str, way: str
) -> None:
    shop, log = any_shop, []
    graph = StateGraph(Notes)
    graph.add_node("one", inner(log, way).compile())
    graph.add_conditional_edges(START, lambda _: [Send("one", {"n": n}) for n in (1, 2, 3)])
    graph.add_edge("one", END)
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    assert sorted(q.payload["n"] for q in shop.asked) == [1, 2, 3]
    assert len({q.key for q in shop.asked}) == 3
    output = succeeded(shop.answer_all(lambda q: f"for {q.payload['n']}"))
    assert output["notes"] == ["i1", "for 1", "i1", "for 2", "i1", "for 3"]
    assert log == ["i1"] * 3


@pytest.mark.promise("H-04")
@pytest.mark.parametrize("way", ["interrupt", "ctx"])
def test_two_loop_passes_over_a_subgraph_are_two_questions(shop: Shop, mode: str, way: str) -> None:
    log: list[str] = []
    compiled = inner(log, way).compile()

    async def call(state: Notes) -> Notes:
        n = state.get("n", 0) + 1
        result = await compiled.ainvoke({"notes": [], "n": n})
        return {"notes": result["notes"], "n": n}

    graph = StateGraph(Notes)
    graph.add_node(call)
    graph.add_edge(START, "call")
    graph.add_conditional_edges("call", lambda s: END if s["n"] == 2 else "call")
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    first = shop.asked[0]
    waits(shop.answer("one"))
    assert shop.asked[0].key != first.key
    assert succeeded(shop.answer("two"))["notes"] == ["i1", "one", "i1", "two"]
    assert log == ["i1", "i1"]


@pytest.mark.parametrize("way", ["interrupt", "ctx"])
def test_two_calls_of_a_subgraph_in_one_node_ask_twice(shop: Shop, mode: str, way: str) -> None:
    log: list[str] = []
    compiled = inner(log, way).compile()

    async def call(_state: Notes) -> Notes:
        one = await compiled.ainvoke({"notes": [], "n": 1})
        two = await compiled.ainvoke({"notes": [], "n": 2})
        return {"notes": [*one["notes"], *two["notes"]]}

    graph = StateGraph(Notes)
    graph.add_node(call)
    graph.add_edge(START, "call")
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    output = succeeded(shop.answer_all(lambda q: f"for {q.payload['n']}"))
    assert output["notes"] == ["i1", "for 1", "i1", "for 2"]
    assert log == ["i1", "i1"]


def test_questions_one_after_another_in_one_node(shop: Shop, mode: str) -> None:
    async def node(_state: Notes) -> Notes:
        got = [interrupt("first"), await current_run().ask("second", "second"), interrupt("third")]
        return {"notes": got}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_edge(START, "node")
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    output = succeeded(shop.answer_all(lambda q: f"{q.payload}!"))
    assert output["notes"] == ["first!", "second!", "third!"]


def test_the_same_question_twice_in_one_node_gets_two_answers(shop: Shop, mode: str) -> None:
    def node(_state: Notes) -> Notes:
        return {"notes": [interrupt("more?"), interrupt("more?"), interrupt("more?")]}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_edge(START, "node")
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    answers = iter(["one", "two", "three"])
    assert succeeded(shop.answer_all(lambda _: next(answers)))["notes"] == ["one", "two", "three"]


# --- H-06 ------------------------------------------------------------------------------

ODD = [
    False, 0, "", [], None, {}, {1: "x"}, {"0123456789abcdef0123456789abcdef": "x"},
    {"$": "tuple", "v": [1]}, {"choice": "approve"}, (1, 2), 2.5, [None], "\x00", "half \ud83d",
    1j, {"z": [1j], "half \ud83d": 2**70},
]  # fmt: skip


@pytest.mark.promise("H-06")
@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("way", ["interrupt", "ctx"])
def test_the_node_receives_exactly_the_value_that_was_submitted(
    shop: Shop, mode: str, way: str, value: Any
) -> None:
    seen: list[Any] = []

    async def node(_state: Notes) -> Notes:
        asked = interrupt("?") if way == "interrupt" else await current_run().ask("ask", "?")
        seen.append(asked)
        return {"notes": ["done"]}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_edge(START, "node")
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    succeeded(shop.answer(value))
    assert seen == [value]
    assert type(seen[0]) is type(value)
    assert len(shop.durable.questions(run_id=shop.run_id, state=None)) == 1


@pytest.mark.promise("H-06")
def test_odd_values_reach_postgres_too(postgres_shop: Shop, mode: str) -> None:
    shop, seen = postgres_shop, {}

    def node(state: Notes) -> Notes:
        seen[state["n"]] = interrupt(state["n"])
        return {"notes": ["done"]}

    graph = StateGraph(Notes)
    graph.add_node(node)
    every = [Send("node", {"n": n}) for n in range(len(ODD))]
    graph.add_conditional_edges(START, lambda _: every, ["node"])
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    succeeded(shop.answer_all(lambda q: ODD[q.payload]))
    assert [seen[n] for n in range(len(ODD))] == ODD
    assert [type(seen[n]) for n in range(len(ODD))] == [type(value) for value in ODD]


@pytest.mark.promise("H-06")
def test_odd_values_stay_what_they_are_from_round_to_round(shop: Shop, mode: str) -> None:
    """LangGraph keeps earlier answers of a node in an encoding of its own: ours counts."""
    seen: list[Any] = []

    def node(_state: Notes) -> Notes:
        seen.append([interrupt(i) for i in range(3)])
        return {"notes": ["done"]}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_edge(START, "node")
    shop.deploy(graph, mode)
    shop.begin({"notes": []})
    answers = [(1, 2), {1: "x"}, "half \ud83d"]
    succeeded(shop.answer_all(lambda q: answers[q.payload]))
    assert seen == [answers]


# --- H-12 ------------------------------------------------------------------------------


def expired(shop: Shop) -> Any:
    """Let the open question's time be over."""
    shop.sql(
        "UPDATE questions SET expires_at = :past WHERE state = 'open'", past="2000-01-01 00:00:00"
    )
    return shop.work()


@pytest.mark.promise("H-12")
@pytest.mark.parametrize("path", ["fail", "reject", "default"])
def test_an_expired_question_takes_its_declared_path(shop: Shop, mode: str, path: str) -> None:
    seen: list[Any] = []

    async def node(_state: Notes) -> Notes:
        ask = current_run().ask
        seen.append(await ask("ask", "?", expires_in_seconds=60, on_expiry=path, default="dflt"))
        return {"notes": ["done"]}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_edge(START, "node")
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    shop.restart()
    waits(shop.work())
    run = expired(shop)
    assert "question_expired" in shop.events
    if path == "fail":
        assert failed(run)["reason"] == "question_expired"
        assert "'ask'" in failed(run)["message"]
        return
    succeeded(run)
    assert seen == (["dflt"] if path == "default" else [Refused("", "nobody", expired=True)])


@pytest.mark.promise("H-12")
def test_a_run_that_failed_by_expiry_asks_again_when_it_is_retried(shop: Shop, mode: str) -> None:
    async def node(_state: Notes) -> Notes:
        return {"notes": [await current_run().ask("ask", "?", expires_in_seconds=60)]}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_edge(START, "node")
    shop.deploy(graph, mode)
    shop.begin({"notes": []})
    failed(expired(shop))
    shop.durable.retry(shop.run_id, by="ops")
    waits(shop.work())
    assert succeeded(shop.answer("late"))["notes"] == ["late"]


@pytest.mark.promise("H-12")
def test_no_expiry_means_no_expiry(shop: Shop, mode: str) -> None:
    shop.deploy(fan_out("ctx", []), mode)
    shop.begin({"notes": []})
    assert all(q.expires_at is None for q in shop.asked)
    assert shop.run.status is Status.WAITING_HUMAN
    assert shop.run.worker is None
