"""What goes into a graph and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.pregel import Pregel

from langgraph_durable.agents import Agent
from langgraph_durable.context import RunContext

Graph = Pregel[Any, Any, Any, Any]

UNANSWERED = "The run that made this call ended before it was answered; it may have taken effect."


def context_for(agent: Agent, ctx: RunContext) -> Any:
    """Return what nodes find in `runtime.context`: ours, unless the graph has its own schema."""
    own = agent.graph.context_schema if agent.graph is not None else None
    if agent.context is not None or own not in (None, RunContext):
        return agent.context
    return ctx


def settled_input(graph: Graph, state: Any, given: Any) -> Any:
    """Return the input of a new run on a thread, with an answer to each call left open.

    An earlier run of the thread may have ended (cancelled, failed) between a model's tool
    calls and their results. Models refuse a conversation with calls that nobody answered.
    """
    if not isinstance(state, Mapping) or not isinstance(given, Mapping):
        return given
    settled = dict(given)
    for name, messages in state.items():
        open_calls = _open_calls(messages) if _appends(graph, name) else []
        if open_calls:
            new = given.get(name, [])
            answers = [
                ToolMessage(UNANSWERED, tool_call_id=call["id"], name=call["name"], status="error")
                for call in open_calls
            ]
            settled[name] = [*answers, *(new if isinstance(new, list) else [new])]
    return settled


def _appends(graph: Graph, channel: str) -> bool:
    return isinstance(graph.channels.get(channel), BinaryOperatorAggregate)


def _open_calls(messages: Any) -> Sequence[Any]:
    """Return the tool calls at the end of a conversation that have no result."""
    if not isinstance(messages, list):
        return []
    answered = set()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
        elif isinstance(message, AIMessage):
            return [call for call in message.tool_calls if call["id"] not in answered]
        else:
            break
    return []
