"""Find out whether the code that a stopped thread needs is still there.

LangGraph passes over a task whose node is gone: it shows nothing pending and reports a
normal end (case H-07). The raw checkpoint still says what should run: a channel
`branch:to:<node>` that is set, or a `Send` to the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel
from langgraph.types import Send, StateSnapshot

_TO = "branch:to:"
_SENDS = "__pregel_tasks"


async def missing_node(
    graph: Pregel[Any, Any, Any, Any], saver: BaseCheckpointSaver[Any], state: StateSnapshot
) -> str | None:
    """Return a node that should run next and that this graph (or a subgraph) lacks."""
    found = await saver.aget_tuple(state.config)
    if found is None:
        return None
    for name in _due(found.checkpoint["channel_values"]):
        if name not in graph.nodes:
            return name
    inner = dict(graph.get_subgraphs())
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot) and task.name in inner:
            missing = await missing_node(inner[task.name], saver, task.state)  # type: ignore[arg-type]
            if missing is not None:
                return f"{task.name}/{missing}"
    return None


def _due(channels: Mapping[str, Any]) -> Iterator[str]:
    for channel, value in channels.items():
        if channel.startswith(_TO):
            yield channel.removeprefix(_TO)
        elif channel == _SENDS:
            yield from (send.node for send in value if isinstance(send, Send))
