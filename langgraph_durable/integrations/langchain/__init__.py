"""Agents made by LangChain's `create_agent`, and plain ToolNodes, made durable as they are.

    agent = create_agent(
        model,
        [search, pay],
        middleware=[DurableMiddleware(reads=["search"], effects={"pay": "idempotent"})],
    )
    durable.graph("support", agent, mode="steps")

Each model call becomes a journaled `llm` step and each tool call a journaled `tool` step,
judged by the run's policy. Outside of a durable run everything passes through.

`durable_tool` does the same for a tool of a plain ToolNode, `durable_model` for a model that
a node calls itself.

Where to list the middleware: after HumanInTheLoopMiddleware, before retries, fallbacks and
error handling. What is journaled is then what the graph sees, so that a failure that was
told to the model isn't tried again on replay.
"""

from langgraph_durable.integrations.langchain.middleware import DurableMiddleware
from langgraph_durable.integrations.langchain.models import DurableModel, durable_model
from langgraph_durable.integrations.langchain.tools import durable_tool

__all__ = ["DurableMiddleware", "DurableModel", "durable_model", "durable_tool"]
