"""Find out what a stopped thread waits for, and whether the code that it needs is still there.

LangGraph passes over a task whose node is gone: it shows nothing pending and reports a
normal end (case H-07). The raw checkpoint still says what should run: a channel
`branch:to:<node>` that is set, a join that waits, or a `Send` to the node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import count
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import INTERRUPT
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple
from langgraph.pregel import Pregel
from langgraph.types import Send, StateSnapshot

from langgraph_durable.modes.interrupts import interrupt_id

MAX_SLOTS = 100  # interrupts of one task

_TO = "branch:to:"
_JOIN = "join:"  # join:a+b:c waits for a and b, and then runs c
_SENDS = "__pregel_tasks"


async def missing_node(
    graph: Pregel[Any, Any, Any, Any], saver: BaseCheckpointSaver[Any], state: StateSnapshot
) -> str | None:
    """Return a node that should run next and that this graph (or a subgraph) lacks."""
    found = await saver.aget_tuple(state.config)
    if found is None:
        return None
    held = found.checkpoint["channel_values"].items()
    # what finished tasks of the step hand on when its last one has ended
    handed_on = [(channel, value) for _, channel, value in found.pending_writes or ()]
    for channel, value in (*held, *handed_on):
        for name in _due(channel, value):
            if name not in graph.nodes:
                return name
        if channel.startswith(_JOIN) and value and channel not in graph.channels:
            return channel.rpartition(":")[2]
    inner = dict(graph.get_subgraphs())
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot) and task.name in inner:
            missing = await missing_node(inner[task.name], saver, task.state)  # type: ignore[arg-type]
            if missing is not None:
                return f"{task.name}/{missing}"
    return None


async def open_interrupts(
    saver: BaseCheckpointSaver[Any], thread_id: str, state: StateSnapshot
) -> set[str]:
    """Return the ids of those interrupts of a stopped thread whose own task has not ended.

    A node that calls a graph shows an inner interrupt until it ends itself: also when the inner
    task took its answer and is done, and the worker died behind it, or a later one asks.
    """
    found: set[str] = set()
    for task in state.tasks:
        shown = {interrupt_.id for interrupt_ in task.interrupts}
        found |= await _open_of(saver, thread_id, [f"{task.name}:{task.id}"], shown)
    return found


async def _open(
    saver: BaseCheckpointSaver[Any], thread_id: str, namespace: str, shown: set[str]
) -> set[str] | None:
    """Return which of these are open; None if nothing is known of a task of this namespace."""
    own = _own(namespace, shown)
    if own == shown:
        return own
    inner = [found async for found in _called(saver, thread_id, namespace)]
    if not inner:  # it keeps no checkpoints: whose the others are can't be told
        return shown if own else None
    for level, found in inner:
        asked: dict[str, set[str]] = {}
        ended = set()
        for task_id, channel, value in found.pending_writes or ():
            if channel == INTERRUPT:
                asked[task_id] = {interrupt_.id for interrupt_ in value} & shown
            elif channel not in WRITES_IDX_MAP:
                ended.add(task_id)
        names = {
            name
            for channel, value in found.checkpoint["channel_values"].items()
            for name in _due(channel, value)
        }
        for task_id in asked.keys() - ended:
            own |= await _open_of(
                saver, thread_id, [f"{level}|{n}:{task_id}" for n in names], asked[task_id]
            )
    return own


async def _open_of(
    saver: BaseCheckpointSaver[Any], thread_id: str, namespaces: Iterable[str], asked: set[str]
) -> set[str]:
    """Return what is open of a task that has one of these namespaces: its name isn't stored."""
    for namespace in namespaces:
        found = await _open(saver, thread_id, namespace, asked)
        if found is not None:
            return found
    return asked


async def _called(
    saver: BaseCheckpointSaver[Any], thread_id: str, namespace: str
) -> AsyncIterator[tuple[str, CheckpointTuple]]:
    """Return where the graphs stand that a task has called, one after another."""
    for n in count():
        level = f"{namespace}|{n}" if n else namespace
        config: RunnableConfig = {"configurable": {"thread_id": thread_id, "checkpoint_ns": level}}
        found = await saver.aget_tuple(config)
        if found is None:
            return
        yield level, found


def _own(namespace: str, ids: set[str]) -> set[str]:
    """Return those ids that are of the task itself, not of a graph that it calls."""
    return ids & {interrupt_id(namespace, slot) for slot in range(MAX_SLOTS)}


def _due(channel: str, value: Any) -> Iterator[str]:
    if channel.startswith(_TO):
        yield channel.removeprefix(_TO)
    elif channel == _SENDS:
        sends = value if isinstance(value, list) else [value]
        yield from (send.node for send in sends if isinstance(send, Send))


def asked_from(graph: Pregel[Any, Any, Any, Any], path: str) -> str | None:
    """Return the node of a question's path (`sub@2/in@1`) that the graph lacks, or None.

    Only nodes that can be known without running are looked at: those of the graph, and of
    graphs that were added to it as nodes.
    """
    seen = []
    level: Any = graph
    for part in path.split("/"):
        if part.startswith("#") or not isinstance(level, Pregel):
            return None
        name = part.rpartition("@")[0]
        seen.append(name)
        if name not in level.nodes:
            return "/".join(seen)
        level = dict(level.get_subgraphs()).get(name)
    return None
