"""Find out whether the code that a stopped thread needs is still there.

LangGraph passes over a task whose node is gone: it shows nothing pending and reports a
normal end (case H-07). The raw checkpoint still says what should run: a channel
`branch:to:<node>` that is set, a join that waits, or a `Send` to the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel
from langgraph.types import Send, StateSnapshot

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
