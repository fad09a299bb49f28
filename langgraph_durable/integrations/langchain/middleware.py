"""The middleware that makes an agent of `create_agent` durable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command

from langgraph_durable import calls
from langgraph_durable.context import RunContext
from langgraph_durable.integrations.langchain.keys import run_here
from langgraph_durable.integrations.langchain.models import model_step
from langgraph_durable.integrations.langchain.tools import Declarations, DurableTool, tool_step
from langgraph_durable.integrations.langchain.wrapped import Wrapped
from langgraph_durable.runs import Effect
from langgraph_durable.tools import ToolSpec


class DurableMiddleware(AgentMiddleware[Any, Any, Any]):
    """Journals each model call and each tool call of an agent.

    Args:
        effects: what each tool that writes does to the world: 'idempotent' (it takes a
            parameter `idempotency_key`, which the runtime fills and models don't see) or
            'once'. A ToolSpec can also name a probe.
        reads: the tools that may run again. Also a tool that calls another agent, whose own
            steps are journaled.
        asks: tools whose calls wait for a person unless a rule allows them.

    A tool that is named neither here nor on the ToolHub of Durable is refused when the agent
    first calls its model. A refused call gives a ToolMessage with the refusal and
    status "error". The class of a structured answer is journaled, so it must be among
    `Durable(types=[...])`.
    """

    def __init__(
        self,
        *,
        effects: Mapping[str, Effect | str | ToolSpec] | None = None,
        reads: Collection[str] = (),
        asks: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._declared = Declarations(effects or {}, reads, asks)

    # --- model calls -------------------------------------------------------------------

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Answer from the journal, or ask the model and record what it said."""
        ctx = run_here()
        return await (handler(request) if ctx is None else self._ask(ctx, request, handler))

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        """Answer from the journal, or ask the model and record what it said."""
        ctx = run_here()
        if ctx is None:
            return handler(request)
        return ctx.blocking.wait(self._ask(ctx, request, partial(calls.call, handler)))

    async def _ask(
        self,
        ctx: RunContext,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        shown = request.override(tools=[self._shown(ctx, tool) for tool in request.tools])

        async def make() -> dict[str, Any]:
            response = await handler(shown)
            return {"result": response.result, "structured": response.structured_response}

        system = [request.system_message] if request.system_message else []
        messages, names = [*system, *request.messages], [_name(tool) for tool in request.tools]
        answer = await model_step(ctx, "llm", request.model, messages, names, make)
        return ModelResponse(result=answer["result"], structured_response=answer["structured"])

    def _shown(self, ctx: RunContext, tool: BaseTool | dict[str, Any]) -> Any:
        if not isinstance(tool, BaseTool) or isinstance(tool, Wrapped):
            return tool  # a tool of the model's provider runs there; a durable one is declared
        spec = self._declared.of(tool, ctx.services.tools)
        return Wrapped.over(tool, hidden=spec.hidden) if spec.hidden else tool

    # --- tool calls --------------------------------------------------------------------

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Answer from the journal, or judge the call, make it and record its result."""
        ctx = run_here()
        if ctx is None:
            return await handler(request)
        return await self._call(ctx, request, handler)

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Answer from the journal, or judge the call, make it and record its result."""
        ctx = run_here()
        if ctx is None:
            return handler(request)
        return ctx.blocking.wait(self._call(ctx, request, partial(calls.call, handler)))

    async def _call(
        self,
        ctx: RunContext,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        tool = request.tool
        if tool is None or isinstance(tool, DurableTool):
            return await handler(request)  # unknown: ToolNode says so; durable: has its own step

        async def make(reached: BaseTool, arguments: dict[str, Any]) -> Any:
            call: Any = {**request.tool_call, "args": arguments}
            return await handler(request.override(tool=reached, tool_call=call))

        spec = self._declared.of(tool, ctx.services.tools)
        result: ToolMessage | Command[Any]
        result = await tool_step(ctx, spec, tool, request.tool_call, make)
        return result


def _name(tool: BaseTool | dict[str, Any]) -> str:
    if isinstance(tool, BaseTool):
        return tool.name
    function = tool.get("function", tool)
    return str(function.get("name") or tool.get("type", "?"))
