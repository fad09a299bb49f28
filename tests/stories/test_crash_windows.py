"""Graph mode: a crash in any gap between our store and LangGraph's (langgraph-facts §3).

After each, another worker brings both together: nothing is asked twice, no message is
doubled, no decision is lost or delivered twice.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import START, StateGraph, add_messages
from langgraph.types import interrupt
from shop import Shop, succeeded, waits

from langgraph_durable import Status, Worker, current_run
from langgraph_durable.runs import Asked, Done
from langgraph_durable.store import Ending

pytestmark = [pytest.mark.promise("S-20"), pytest.mark.promise("S-77")]


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]


class Killed(BaseException):
    """The worker dies here."""


def story(log: list[str], dies: dict[str, bool]) -> StateGraph[Chat]:
    """model → (ask || sib) → end; `dies` says where a worker dies, once."""

    def die(where: str) -> None:
        if dies.pop(where, False):
            raise Killed(where)

    def model(_state: Chat) -> Chat:
        log.append("model")
        return {"messages": [AIMessage("hello")]}

    def ask(_state: Chat) -> Chat:
        log.append("ask")
        answer = interrupt({"q": "go on?"})
        die("in ask, after the answer was read")
        return {"notes": [answer]}

    async def sib(_state: Chat) -> Chat:
        log.append("sib")
        return {"notes": [await current_run().once("sib", lambda: "sib")]}

    def end(_state: Chat) -> Chat:
        log.append("end")
        die("after the answer was committed")
        return {"messages": [AIMessage("bye")]}

    graph = StateGraph(Chat)
    for name, node in (("model", model), ("ask", ask), ("sib", sib), ("end", end)):
        graph.add_node(name, node)
    graph.add_edge(START, "model")
    graph.add_edge("model", "ask")
    graph.add_edge("model", "sib")
    graph.add_edge(["ask", "sib"], "end")
    return graph


def work_until_killed(shop: Shop) -> None:
    with pytest.raises(Killed):
        Worker(shop.durable, lease_seconds=20).run_once()
    assert shop.run.status is Status.RUNNING
    shop.expire_lease()
    shop.restart()


def losing(shop: Shop, monkeypatch: pytest.MonkeyPatch, kind: type) -> Callable[[], None]:
    """Let the worker die before it settles an outcome of this kind."""
    settle = shop.durable.store.settle

    def lost(lease: Any, outcome: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(outcome, kind):
            raise Killed(kind.__name__)
        return settle(lease, outcome, *args, **kwargs)

    def lost_with_others(endings: Sequence[Ending], _lease_seconds: float) -> list[bool]:
        return [False] * len(endings)  # none is settled here: each goes on to `settle`

    monkeypatch.setattr(shop.durable.store, "settle", lost)
    monkeypatch.setattr(shop.durable.store, "finish", lost_with_others)
    return monkeypatch.undo


def told_once(shop: Shop, log: list[str], *, asks: int) -> None:
    messages = succeeded(shop.run)["messages"]
    assert [m.content for m in messages] == ["hi", "hello", "bye"]
    assert sorted(succeeded(shop.run)["notes"]) == ["sib", "yes"]
    assert len(shop.durable.questions(run_id=shop.run_id, state=None)) == asks
    assert (log.count("model"), log.count("sib")) == (1, 1)


INPUT = {"messages": [("user", "hi")]}


def test_parked_in_langgraph_and_our_record_of_it_lost(
    any_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, log = any_shop, []
    shop.deploy(story(log, {}), "graph")
    shop.submit(INPUT)
    undo = losing(shop, monkeypatch, Asked)
    work_until_killed(shop)
    undo()
    assert shop.durable.questions(run_id=shop.run_id, state=None) == []
    waits(shop.work())
    shop.answer("yes")
    told_once(shop, log, asks=1)


def test_decided_and_not_delivered(any_shop: Shop) -> None:
    shop, log = any_shop, []
    shop.deploy(story(log, {}), "graph")
    waits(shop.begin(INPUT))
    shop.answer("yes")  # in a new process: nothing but the rows knew of it
    told_once(shop, log, asks=1)
    assert log.count("ask") == 2


def test_delivered_and_dead_before_the_node_ended(any_shop: Shop) -> None:
    shop, log = any_shop, []
    shop.deploy(story(log, {"in ask, after the answer was read": True}), "graph")
    waits(shop.begin(INPUT))
    question = shop.asked[0]
    shop.durable.decide(question.id, _yes())
    work_until_killed(shop)
    shop.work()
    told_once(shop, log, asks=1)


def test_delivered_committed_and_dead_in_the_next_node(any_shop: Shop) -> None:
    shop, log = any_shop, []
    shop.deploy(story(log, {"after the answer was committed": True}), "graph")
    waits(shop.begin(INPUT))
    shop.durable.decide(shop.asked[0].id, _yes())
    work_until_killed(shop)
    shop.work()
    told_once(shop, log, asks=1)
    assert log.count("ask") == 2


def test_finished_and_our_record_of_it_lost(
    any_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, log = any_shop, []
    shop.deploy(story(log, {}), "graph")
    waits(shop.begin(INPUT))
    shop.durable.decide(shop.asked[0].id, _yes())
    undo = losing(shop, monkeypatch, Done)
    work_until_killed(shop)
    undo()
    before = list(log)
    shop.work()
    assert log == before
    told_once(shop, log, asks=1)


def test_dead_before_anything_was_kept_and_the_input_given_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = []
    shop.deploy(story(log, {}), "graph")
    shop.submit(INPUT)
    savers = shop.durable.savers

    def dead(*_: Any, **__: Any) -> Any:
        raise Killed("at the claim")

    monkeypatch.setattr(shop.durable, "savers", dead)
    work_until_killed(shop)
    monkeypatch.setattr(shop.durable, "savers", savers)
    waits(shop.work())
    shop.answer("yes")
    told_once(shop, log, asks=1)


def test_a_stolen_lease_between_question_and_record(
    any_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late worker's settle is refused; the new one asks, once."""
    shop, log = any_shop, []
    shop.deploy(story(log, {}), "graph")
    shop.submit(INPUT)
    settle = shop.durable.store.settle

    def late(lease: Any, outcome: Any, *args: Any, **kwargs: Any) -> Any:
        shop.steal()
        return settle(lease, outcome, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(shop.durable.store, "settle", late)
        Worker(shop.durable, lease_seconds=20).run_once()
    assert shop.run.worker == "thief"
    shop.expire_lease()
    shop.restart()
    waits(shop.work())
    shop.answer("yes")
    told_once(shop, log, asks=1)


def test_the_second_question_of_a_node_is_not_answered_by_the_first_answer(shop: Shop) -> None:
    dies, log = {"now": True}, []

    def node(_state: Chat) -> Chat:
        first = interrupt("delete the file?")
        log.append(first)
        if dies.pop("now", False):
            raise Killed("after the first answer")
        return {"notes": [first, interrupt("pay 1000?")]}

    graph = StateGraph(Chat)
    graph.add_node(node)
    graph.add_edge(START, "node")
    shop.deploy(graph, "graph")
    waits(shop.begin({"notes": []}))
    shop.durable.decide(shop.asked[0].id, _yes())
    work_until_killed(shop)
    waits(shop.work())
    assert [q.payload for q in shop.asked] == ["pay 1000?"]
    assert succeeded(shop.answer("no"))["notes"] == ["yes", "no"]


def _yes() -> Any:
    from langgraph_durable import Decision

    return Decision.respond("mei", "yes")
