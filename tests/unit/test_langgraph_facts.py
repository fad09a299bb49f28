"""What the product takes for granted of LangGraph's inside: an upgrade that moves it fails here.

Each is used in `modes/` (ADR 7) or stated in the documents.
"""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any, TypedDict

import pytest
from langgraph._internal import _constants
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp, UnknownInterruptError
from langgraph.graph import END, START, StateGraph
from langgraph.pregel._algo import LazyAtomicCounter
from langgraph.types import Command, Interrupt, interrupt
from xxhash import xxh3_128_hexdigest


class State(TypedDict, total=False):
    first: Any
    second: Any


def asks_twice(state: State) -> State:
    return {"first": interrupt("one"), "second": interrupt("two")}


def asking() -> Any:
    graph = StateGraph(State).add_node(asks_twice)
    graph.add_edge(START, "asks_twice").add_edge("asks_twice", END)
    return graph.compile(checkpointer=InMemorySaver())


def config(**configurable: Any) -> Any:
    return {"configurable": {"thread_id": "t", **configurable}}


def test_interrupt_takes_its_position_from_the_counter_and_holds_what_we_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, FrameType]] = []
    count = LazyAtomicCounter.__call__

    def counted(self: LazyAtomicCounter) -> int:
        position = count(self)
        caller = sys._getframe(1)
        while caller.f_code is not interrupt.__code__ and caller.f_back is not None:
            caller = caller.f_back  # the product's own wrapper may stand between
        seen.append((position, caller))
        return position

    monkeypatch.setattr(LazyAtomicCounter, "__call__", counted)
    graph = asking()
    graph.invoke({}, config())
    graph.invoke(Command(resume="answer"), config())
    assert [position for position, _ in seen] == [0, 0, 1]
    for _, frame in seen:
        assert frame.f_code is interrupt.__code__
        assert {"conf", "value", "response_schema"} <= set(frame.f_code.co_varnames)


def test_the_names_of_configuration_keys() -> None:
    assert _constants.CONFIG_KEY_CHECKPOINT_NS == "checkpoint_ns"
    assert _constants.CONFIG_KEY_SCRATCHPAD == "__pregel_scratchpad"
    assert _constants.CONFIG_KEY_SEND == "__pregel_send"
    assert _constants.RESUME == "__resume__"


def test_an_interrupts_id_is_the_hash_of_its_namespace_and_position() -> None:
    graph = asking()
    ids: list[str] = []
    for given in ({}, Command(resume="answer")):
        graph.invoke(given, config())
        [pending] = graph.get_state(config()).interrupts
        assert isinstance(pending, Interrupt)
        ids.append(pending.id)
    [task] = graph.get_state(config()).tasks
    namespace = f"asks_twice:{task.id}"
    assert ids == [xxh3_128_hexdigest(name.encode()) for name in (namespace, f"{namespace}|1")]


def test_strict_resume_refuses_an_answer_to_what_is_not_pending() -> None:
    graph = asking()
    graph.invoke({}, config())
    [pending] = graph.get_state(config()).interrupts
    with pytest.raises(UnknownInterruptError):
        graph.invoke(Command(resume={"0" * 32: "x"}), config(__pregel_strict_resume=True))
    [still] = graph.get_state(config()).interrupts
    assert still.id == pending.id


async def test_siblings_of_a_task_that_bubbles_up_finish() -> None:
    class Suspend(GraphBubbleUp):
        pass

    ended: list[str] = []

    async def waits(state: State) -> State:
        await asyncio.sleep(0.01)
        raise Suspend

    async def works(state: State) -> State:
        await asyncio.sleep(0.05)
        ended.append("works")
        return {"first": 1}

    graph = StateGraph(State).add_node(waits).add_node(works)
    graph.add_edge(START, "waits").add_edge(START, "works")
    with pytest.raises(Suspend):
        await graph.compile().ainvoke({})
    assert ended == ["works"]
