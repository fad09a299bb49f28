"""How a call reaches each kind of tool. What comes back is a plain value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from pydantic import BaseModel

from langgraph_durable import calls
from langgraph_durable.errors import ToolError
from langgraph_durable.tools import arguments as args
from langgraph_durable.tools.spec import CallInfo, ToolServer, ToolSpec

Run = Callable[[ToolSpec, dict[str, Any], CallInfo], Awaitable[Any]]
OwnCall = Callable[[str, str, dict[str, Any], str | None], Any]


def function(fn: Callable[..., Any]) -> Run:
    async def run(spec: ToolSpec, arguments: dict[str, Any], info: CallInfo) -> Any:
        return await calls.call(fn, **spec.filled(arguments, info))

    return run


def langchain(tool: BaseTool) -> Run:
    as_message = tool.response_format == "content_and_artifact" or args.takes_call_id(tool)

    async def run(spec: ToolSpec, arguments: dict[str, Any], info: CallInfo) -> Any:
        given = spec.filled(arguments, info)
        try:
            if not as_message:  # a message would turn the result into text
                return _plain(await tool.ainvoke(given))
            call = {"type": "tool_call", "name": tool.name, "args": given, "id": info.key}
            return _plain(await tool.ainvoke(call))
        except ToolException as failure:
            raise ToolError(str(failure)) from failure

    return run


def own(call: OwnCall) -> Run:
    async def run(spec: ToolSpec, arguments: dict[str, Any], info: CallInfo) -> Any:
        given = spec.filled(arguments, info)
        return await calls.call(call, spec.server, spec.name, given, info.approval_id)

    return run


def server(server: ToolServer) -> Run:
    async def run(spec: ToolSpec, arguments: dict[str, Any], info: CallInfo) -> Any:
        return await server.call(spec.name, spec.filled(arguments, info), info)

    return run


def _plain(result: Any) -> Any:
    """Turn a tool message into its content, or content and artifact if there is one."""
    if not isinstance(result, ToolMessage):
        return result
    if result.artifact is None:
        return result.content
    return {"content": result.content, "artifact": _dumped(result.artifact)}


def _dumped(value: Any) -> Any:
    if isinstance(value, BaseModel):  # LangChain's own, such as Document
        return value.model_dump(mode="json")
    return [_dumped(item) for item in value] if isinstance(value, list | tuple) else value
