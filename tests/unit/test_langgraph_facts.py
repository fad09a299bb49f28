"""What we rest on in LangGraph that it doesn't promise: an upgrade that breaks it is seen here.

Each test is about LangGraph alone. When one fails after an upgrade, look at the module
named in its docstring before changing the test.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import tool
from langgraph._internal import _constants as constants
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyInputError, GraphBubbleUp, GraphDrained, UnknownInterruptError
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel._algo import LazyAtomicCounter
from langgraph.runtime import RunControl, Runtime
from langgraph.types import Command, RetryPolicy, Send, interrupt

from langgraph_durable.modes.interrupts import interrupt_id


class State(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]


class Suspend(GraphBubbleUp):
    """Like our PassEnded."""


def graph_of(*parallel: Any, saver: Any = None, **named: Any) -> Any:
    graph = StateGraph(State)
    for node in parallel:
        graph.add_node(node)
        graph.add_edge(START, node.__name__)
    last = START
    for name, node in named.items():
        graph.add_node(name, node)
        graph.add_edge(last, name)
        last = name
    return graph.compile(checkpointer=saver)


def thread(**more: Any) -> Any:
    return {"configurable": {"thread_id": "t", **more}}


# --- interrupt() (modes/interrupts.py) ---------------------------------------------------


async def test_interrupt_takes_its_position_from_the_counter() -> None:
    """modes/interrupts: the watch hangs on LazyAtomicCounter.__call__, and on these locals."""
    seen: list[tuple[str, set[str]]] = []
    count = LazyAtomicCounter.__call__

    def watched(self: LazyAtomicCounter) -> int:
        import sys

        frame = sys._getframe(1)
        if frame.f_code is interrupt.__code__:
            seen.append((frame.f_code.co_name, set(frame.f_locals)))
        return count(self)

    graph = graph_of(node=lambda _: {"notes": [interrupt("?")]}, saver=InMemorySaver())
    LazyAtomicCounter.__call__ = watched  # type: ignore[method-assign]
    try:
        await graph.ainvoke({"notes": []}, thread())
    finally:
        LazyAtomicCounter.__call__ = count  # type: ignore[method-assign]
    assert [name for name, _ in seen] == ["interrupt"]
    assert {"conf", "value", "response_schema"} <= seen[0][1]


async def test_ids_of_a_tasks_questions_follow_the_private_rule() -> None:
    """types._interrupt_id: a task's n-th question is named by its namespace and n."""
    namespaces: list[str] = []

    def node(_state: State) -> State:
        config = var_child_runnable_config.get() or {}
        namespaces.append(config["configurable"][constants.CONFIG_KEY_CHECKPOINT_NS])
        return {"notes": [interrupt("one"), interrupt("two")]}

    graph = graph_of(node=node, saver=InMemorySaver())
    result = await graph.ainvoke({"notes": []}, thread(), version="v2")
    assert [i.id for i in result.interrupts] == [interrupt_id(namespaces[0], 0)]
    go_on = Command(resume={result.interrupts[0].id: "a"})
    result = await graph.ainvoke(go_on, thread(), version="v2")
    assert [i.id for i in result.interrupts] == [interrupt_id(namespaces[0], 1)]
    assert len(set(namespaces)) == 1


async def test_the_position_that_the_counter_returns_chooses_the_answer() -> None:
    """interrupt(): answers lie in `scratchpad.resume`, a list that may be written to."""
    graph = graph_of(node=lambda _: {"notes": [interrupt("?")]}, saver=InMemorySaver())
    result = await graph.ainvoke({"notes": []}, thread(), version="v2")
    count = LazyAtomicCounter.__call__

    def watched(self: LazyAtomicCounter) -> int:
        import sys

        frame = sys._getframe(1)
        if frame.f_code is interrupt.__code__:
            answers = frame.f_locals["conf"][constants.CONFIG_KEY_SCRATCHPAD].resume
            answers[0] = {"ours": answers[0]}
        return count(self)

    LazyAtomicCounter.__call__ = watched  # type: ignore[method-assign]
    try:
        go_on = Command(resume={result.interrupts[0].id: "a"})
        state = await graph.ainvoke(go_on, thread())
    finally:
        LazyAtomicCounter.__call__ = count  # type: ignore[method-assign]
    assert state["notes"] == [{"ours": "a"}]


async def test_all_answers_of_a_task_are_kept_when_they_are_sent() -> None:
    """interrupt() sends RESUME by CONFIG_KEY_SEND; the last write of a task wins."""

    def node(_state: State) -> State:
        first = interrupt("one")
        config = var_child_runnable_config.get() or {}
        conf = config["configurable"]
        answers = conf[constants.CONFIG_KEY_SCRATCHPAD].resume
        conf[constants.CONFIG_KEY_SEND]([(constants.RESUME, list(answers))])
        return {"notes": [first, interrupt("two")]}

    saver = InMemorySaver()
    graph = graph_of(node=node, saver=saver)
    for answer in ("a", "b"):
        state = await graph.ainvoke(
            {"notes": []} if answer == "a" else None, thread(), version="v2"
        )
        state = await graph.ainvoke(
            Command(resume={state.interrupts[0].id: answer}), thread(), version="v2"
        )
    assert state.value["notes"] == ["a", "b"]


async def test_a_strict_resume_refuses_what_is_not_pending() -> None:
    """pregel/_loop._first, CONFIG_KEY_STRICT_RESUME: before anything is written."""
    assert constants.CONFIG_KEY_STRICT_RESUME == "__pregel_strict_resume"
    graph = graph_of(node=lambda _: {"notes": [interrupt("?")]}, saver=InMemorySaver())
    await graph.ainvoke({"notes": []}, thread())
    strict = thread(__pregel_strict_resume=True)
    with pytest.raises(UnknownInterruptError):
        await graph.ainvoke(Command(resume={"0" * 32: "x"}), strict)
    assert len((await graph.aget_state(thread())).interrupts) == 1


@pytest.mark.parametrize("value", [None, False, {}, {"0" * 32: "x"}])
async def test_an_answer_by_id_arrives_as_it_is(value: Any) -> None:
    graph = graph_of(node=lambda _: {"notes": [interrupt("?")]}, saver=InMemorySaver())
    result = await graph.ainvoke({"notes": []}, thread(), version="v2")
    go_on = Command(resume={result.interrupts[0].id: value})
    state = await graph.ainvoke(go_on, thread(__pregel_strict_resume=True))
    assert state["notes"] == [value]


# --- what a node can raise (context/pass_state.py) ------------------------------------------


async def test_siblings_finish_when_a_node_bubbles_up() -> None:
    """pregel/_runner._should_stop_others ignores GraphBubbleUp; ainvoke raises it after."""
    done: list[str] = []

    async def parks(_state: State) -> State:
        raise Suspend

    async def sibling(_state: State) -> State:
        await asyncio.sleep(0.05)
        done.append("sibling")
        return {}

    with pytest.raises(Suspend):
        await graph_of(parks, sibling).ainvoke({"notes": []})
    assert done == ["sibling"]


async def test_a_node_that_bubbles_up_is_not_retried_and_stays_next() -> None:
    """pregel/_retry raises GraphBubbleUp at once; nothing is committed for the task."""
    tries: list[int] = []

    async def node(_state: State) -> State:
        tries.append(1)
        raise Suspend

    graph = StateGraph(State)
    policy = RetryPolicy(max_attempts=3, initial_interval=0, retry_on=Exception)
    graph.add_node(node, retry_policy=policy)
    graph.add_edge(START, "node")
    compiled = graph.compile(checkpointer=InMemorySaver())
    with pytest.raises(Suspend):
        await compiled.ainvoke({"notes": []}, thread(), durability="sync")
    assert tries == [1]
    assert (await compiled.aget_state(thread())).next == ("node",)


async def test_a_tool_node_leaves_its_other_calls_running() -> None:
    """prebuilt/tool_node: a plain gather, so we wait for steps in flight ourselves."""
    done: list[str] = []

    @tool
    async def parks() -> str:
        """Park."""
        raise Suspend

    @tool
    async def slow() -> str:
        """Be slow."""
        await asyncio.sleep(0.1)
        done.append("slow")
        return "ok"

    calls = [{"name": n, "args": {}, "id": n} for n in ("parks", "slow")]
    graph = StateGraph(dict)
    graph.add_node("tools", ToolNode([parks, slow], handle_tool_errors=True))
    graph.add_edge(START, "tools")
    with pytest.raises(Suspend):
        await graph.compile().ainvoke({"messages": [AIMessage("", tool_calls=calls)]})
    assert done == []
    await asyncio.sleep(0.2)
    assert done == ["slow"]


class Seen(BaseCallbackHandler):
    """Tells where tasks begin and end, and may refuse."""

    run_inline = True
    raise_error = True

    def __init__(self, refuse: str = "") -> None:
        self.seen: list[Any] = []
        self.refuse = refuse
        self.ids: dict[Any, tuple[str, Any]] = {}

    def on_chain_start(self, *_: Any, run_id: Any, parent_run_id: Any = None, **more: Any) -> None:
        metadata = more.get("metadata") or {}
        namespace = metadata.get("langgraph_checkpoint_ns")
        self.ids[run_id] = (namespace, parent_run_id)
        if namespace and self.ids.get(parent_run_id, ("", None))[0] != namespace:
            self.seen.append(("begin", metadata["langgraph_node"], metadata["langgraph_step"],
                              tuple(metadata["langgraph_path"])))  # fmt: skip
            if self.refuse == "begin":
                raise Suspend

    def on_chain_end(self, *_: Any, run_id: Any, **__: Any) -> None:
        namespace, parent = self.ids[run_id]
        if namespace and self.ids.get(parent, ("", None))[0] != namespace:
            self.seen.append(("end", namespace.partition(":")[0]))
            if self.refuse == "end":
                raise Suspend


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_handler_sees_each_task_begin_and_end(kind: str) -> None:
    """context/places: one outermost chain a task, whose metadata says node, step and path."""

    async def later(_state: State) -> State:
        return {"notes": [1]}

    node = (lambda _: {"notes": [1]}) if kind == "sync" else later
    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_conditional_edges(START, lambda _: [Send("node", {}), Send("node", {})])
    handler = Seen()
    await graph.compile().ainvoke({"notes": []}, {"callbacks": [handler]})
    begun = [e for e in handler.seen if e[0] == "begin" and e[1] == "node"]
    assert begun == [
        ("begin", "node", 1, ("__pregel_push", 0, False)),
        ("begin", "node", 1, ("__pregel_push", 1, False)),
    ]
    assert handler.seen.count(("end", "node")) == 2


@pytest.mark.parametrize("where", ["begin", "end"])
async def test_what_a_handler_raises_keeps_a_task_from_running_or_being_committed(
    where: str,
) -> None:
    """context/places: raise_error lets a handler's exception be what the task ends with."""
    ran: list[str] = []
    graph = graph_of(node=lambda _: ran.append("ran") or {"notes": ["kept"]}, saver=InMemorySaver())
    with pytest.raises(Suspend):
        await graph.ainvoke(
            {"notes": []}, {**thread(), "callbacks": [Seen(where)]}, durability="sync"
        )
    state = await graph.aget_state(thread())
    assert state.next == ("node",)
    assert state.values["notes"] == []
    assert ran == (["ran"] if where == "end" else [])


async def test_inside_a_task_the_config_tells_namespace_and_attempt() -> None:
    """context/places.here: checkpoint_ns, and __pregel_runtime with execution_info."""
    seen: list[Any] = []

    async def node(_state: State) -> State:
        configurable = (var_child_runnable_config.get() or {})["configurable"]
        runtime = configurable["__pregel_runtime"]
        assert isinstance(runtime, Runtime)
        assert runtime.execution_info is not None
        seen.append(
            (configurable["checkpoint_ns"].partition(":")[0], runtime.execution_info.node_attempt)
        )
        if len(seen) < 2:
            raise ConnectionError
        return {}

    graph = StateGraph(State)
    graph.add_node(node, retry_policy=RetryPolicy(initial_interval=0, jitter=False))
    graph.add_edge(START, "node")
    await graph.compile().ainvoke({"notes": []})
    assert seen == [("node", 1), ("node", 2)]


async def test_a_second_graph_called_by_a_task_has_a_number_in_its_namespace() -> None:
    """context/places: `node:id|1|inner:id`; tries of a node go on counting."""
    seen: list[list[str]] = []

    async def inside(_state: State) -> State:
        configurable = (var_child_runnable_config.get() or {})["configurable"]
        parts = configurable["checkpoint_ns"].split("|")
        seen.append([part.partition(":")[0] for part in parts])
        return {}

    inner = graph_of(inside=inside)

    async def node(_state: State) -> State:
        await inner.ainvoke({"notes": []})
        if len(seen) < 2:
            raise ConnectionError
        return {}

    graph = StateGraph(State)
    graph.add_node(node, retry_policy=RetryPolicy(initial_interval=0, jitter=False))
    graph.add_edge(START, "node")
    await graph.compile().ainvoke({"notes": []})
    assert seen == [["node", "inside"], ["node", "1", "inside"]]


async def test_sync_nodes_run_in_the_loops_default_executor() -> None:
    """context/threads: that is how a pass knows the threads that work for it."""
    from concurrent.futures import ThreadPoolExecutor

    flag: contextvars.ContextVar[str] = contextvars.ContextVar("flag", default="")
    seen: list[str] = []

    class Watched(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            seen.append(flag.get())
            return super().submit(fn, *args, **kwargs)

    asyncio.get_running_loop().set_default_executor(Watched())
    flag.set("ours")
    await graph_of(node=lambda _: {"notes": [1]}).ainvoke({"notes": []})
    assert "ours" in seen


# --- checkpoints (modes/graph.py, modes/nodes.py) ---------------------------------------------


async def test_the_checkpoint_names_what_runs_next() -> None:
    """modes/nodes: `branch:to:`, `join:a+b:c` and `__pregel_tasks` in the raw checkpoint."""
    saver = InMemorySaver()
    graph = StateGraph(State)
    for name in ("a", "b", "sent"):
        graph.add_node(name, lambda _: {"notes": [1]})
    graph.add_node("c", lambda _: {"notes": [interrupt("?")]})
    graph.add_node("d", lambda _: {"notes": [1]})
    graph.add_edge(START, "a")
    graph.add_edge(START, "c")
    graph.add_edge(["a", "c"], "d")
    graph.add_conditional_edges("a", lambda _: Send("sent", {}), ["sent"])
    compiled = graph.compile(checkpointer=saver)
    await compiled.ainvoke({"notes": []}, thread(), durability="sync")
    found = await saver.aget_tuple(thread())
    assert found is not None
    held = found.checkpoint["channel_values"]
    assert {"branch:to:a", "branch:to:c"} <= held.keys()
    handed_on = {(channel, str(value)) for _, channel, value in found.pending_writes or ()}
    assert ("join:a+c:d", "a") in handed_on
    assert any(c == "__pregel_tasks" and "sent" in v for c, v in handed_on)
    assert constants.TASKS == "__pregel_tasks"
    assert "join:a+c:d" in compiled.channels


async def test_a_task_whose_node_is_gone_is_passed_over() -> None:
    """Why modes/nodes exists: nothing is pending, and the run ends as if all were well."""
    saver = InMemorySaver()
    await graph_of(gate=lambda _: {"notes": [interrupt("?")]}, saver=saver).ainvoke(
        {"notes": []}, thread(), durability="sync"
    )
    renamed = graph_of(gate2=lambda _: {"notes": [interrupt("?")]}, saver=saver)
    state = await renamed.aget_state(thread())
    assert (state.next, state.interrupts) == ((), ())
    assert (await renamed.ainvoke(None, thread()))["notes"] == []


async def test_an_input_under_the_same_run_id_is_given_once() -> None:
    """pregel/_loop._first: metadata["run_id"] equal to the checkpoint's means: go on."""
    graph = graph_of(node=lambda _: {"notes": ["node"]}, saver=InMemorySaver())
    ours = {**thread(), "metadata": {"run_id": "r1"}}
    await graph.ainvoke({"notes": ["input"]}, ours)
    again = await graph.ainvoke({"notes": ["input"]}, ours)
    assert again["notes"] == ["input", "node"]
    assert (await graph.aget_state(thread())).metadata["run_id"] == "r1"
    other = {**thread(), "metadata": {"run_id": "r2"}}
    assert (await graph.ainvoke({"notes": ["more"]}, other))["notes"][2:] == ["more", "node"]


async def test_none_continues_only_where_something_is_kept() -> None:
    graph = graph_of(node=lambda _: {"notes": [1]}, saver=InMemorySaver())
    with pytest.raises(EmptyInputError):
        await graph.ainvoke(None, thread())


async def test_a_drain_stops_between_supersteps_and_none_goes_on() -> None:
    control = RunControl()

    async def first(_state: State) -> State:
        control.request_drain()
        return {"notes": [1]}

    graph = graph_of(first=first, second=lambda _: {"notes": [2]}, saver=InMemorySaver())
    with pytest.raises(GraphDrained):
        await graph.ainvoke({"notes": []}, thread(), durability="sync", control=control)
    assert (await graph.aget_state(thread())).next == ("second",)
    assert (await graph.ainvoke(None, thread()))["notes"] == [1, 2]


def test_a_copy_of_a_graph_takes_another_checkpointer_and_keeps_the_rest() -> None:
    """modes: Pregel.copy({"checkpointer": ...})."""
    from langgraph.store.memory import InMemoryStore

    store = InMemoryStore()
    graph = StateGraph(State)
    graph.add_node("node", lambda _: {})
    graph.add_edge(START, "node")
    compiled = graph.compile(store=store, interrupt_after=["node"]).with_config(recursion_limit=7)
    saver = InMemorySaver()
    copy = compiled.copy({"checkpointer": saver})
    assert (copy.checkpointer, copy.store, compiled.checkpointer) == (saver, store, None)
    assert copy.config == compiled.config
    assert copy.interrupt_after_nodes == ["node"]
    assert list(copy.nodes) == list(compiled.nodes)


def test_an_entrypoint_has_one_channel_and_a_reducer_one_type() -> None:
    """modes/values and modes/graph: how an output is read, and where messages are appended."""

    @entrypoint()
    def flow(given: Any) -> Any:
        return given

    assert isinstance(flow.stream_channels_asis, str)
    assert flow.stream_channels_asis == flow.output_channels
    channels = graph_of(node=lambda _: {}).channels
    assert isinstance(channels["notes"], BinaryOperatorAggregate)


def test_the_parameters_that_we_pass_are_there() -> None:
    taken = inspect.signature(graph_of(node=lambda _: {}).ainvoke).parameters
    assert {"context", "durability", "control", "version"} <= taken.keys()
