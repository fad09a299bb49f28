"""LangChain tools seen through: what models are shown of them, and what reaches them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException
from langchain_core.tools.base import ArgsSchema
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel, PrivateAttr, ValidationError, create_model

from langgraph_durable.errors import BadInput, ToolError
from langgraph_durable.runs import Effect
from langgraph_durable.tools.arguments import without
from langgraph_durable.tools.spec import CallInfo, ToolSpec

_SAME = (
    "name", "description", "args_schema", "return_direct", "response_format", "metadata", "tags",
    "extras", "handle_tool_error", "handle_validation_error",
)  # fmt: skip


class Wrapped(BaseTool):
    """A tool that stands for another one; models and ToolNode take it for that one.

    `hidden` are the arguments that the runtime fills: models don't see them.
    """

    inner: BaseTool
    hidden: tuple[str, ...] = ()

    @classmethod
    def over(cls, tool: BaseTool, **fields: Any) -> Any:
        """Wrap a tool."""
        return cls(inner=tool, **{name: getattr(tool, name) for name in _SAME}, **fields)

    @property
    def func(self) -> Any:
        """What ToolNode reads to find arguments that it injects."""
        return getattr(self.inner, "func", None) or getattr(self.inner, "coroutine", None)

    @property
    def tool_call_schema(self) -> ArgsSchema:
        """The arguments that models see."""
        return shown(self.inner, self.hidden)

    def get_input_schema(self, config: RunnableConfig | None = None) -> Any:
        """The arguments that the tool takes."""
        return self.inner.get_input_schema(config)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner._run(*args, **kwargs)


class Reached(Wrapped):
    """A tool inside of its step: the key and the token are filled in.

    A `once` tool whose call failed in a way that leaves open whether it happened is not
    called again by a retry around it: the failure is raised again, and kept in `unsure`.
    """

    spec: ToolSpec
    info: CallInfo
    _unsure: list[Exception] = PrivateAttr(default_factory=list)

    @property
    def unsure(self) -> Exception | None:
        """The failure that leaves open whether a `once` call happened."""
        return self._unsure[0] if self._unsure else None

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kw: Any) -> Any:
        """Call the tool."""
        with self._guarded():
            return await self.inner.ainvoke(self._filled(input), config, **kw)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kw: Any) -> Any:
        """Call the tool."""
        with self._guarded():
            return self.inner.invoke(self._filled(input), config, **kw)

    def _filled(self, call: Any) -> Any:
        if isinstance(call, dict) and call.get("type") == "tool_call":
            return {**call, "args": self.spec.filled(call["args"], self.info)}
        return self.spec.filled(call, self.info) if isinstance(call, dict) else call

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        if self._unsure and self.spec.effect is Effect.ONCE:
            raise self._unsure[0]
        try:
            yield
        except GraphBubbleUp:
            raise
        except ToolException as failure:
            failure.outcome_unknown = False  # type: ignore[attr-defined]  # read by the step
            raise
        except Exception as failure:
            if getattr(failure, "outcome_unknown", not isinstance(failure, ToolError)):
                self._unsure[:] = [failure]
            raise


def shown(tool: BaseTool, hidden: Collection[str]) -> type[BaseModel] | dict[str, Any]:
    """Return the schema of a tool's arguments without those that the runtime fills."""
    schema = tool.tool_call_schema
    if isinstance(schema, dict):
        return without(schema, hidden)
    if not issubclass(schema, BaseModel):
        raise BadInput(f"tool {tool.name!r}: its args_schema is a pydantic v1 model; use v2")
    fields: Mapping[str, Any] = schema.model_fields
    if not set(fields) & set(hidden):
        return schema
    kept: dict[str, Any] = {n: (f.annotation, f) for n, f in fields.items() if n not in hidden}
    return create_model(schema.__name__, __doc__=schema.__doc__, **kept)


def json_schema(tool: BaseTool, hidden: Collection[str]) -> dict[str, Any]:
    """Return the JSON Schema of the arguments that models see."""
    function = convert_to_openai_tool(tool)["function"]
    return without(function.get("parameters", {"type": "object"}), hidden)


def given_by_model(
    tool: BaseTool, arguments: Mapping[str, Any], hidden: Collection[str]
) -> dict[str, Any]:
    """Return the arguments of a call without those that ToolNode injects or the runtime fills."""
    schema = shown(tool, hidden)
    if isinstance(schema, dict):
        return {n: v for n, v in arguments.items() if n not in hidden}
    return {n: v for n, v in arguments.items() if n in _names(schema)}


def misfit(tool: BaseTool, arguments: Mapping[str, Any], hidden: Collection[str]) -> str | None:
    """Return why a tool will not take these arguments, or None if nothing speaks against them."""
    schema = shown(tool, hidden)
    if isinstance(schema, dict):
        return None
    try:
        takes: Any = tool.get_input_schema()
        takes.model_validate(dict(arguments))
    except ValidationError as wrong:
        # the injected and filled ones are missing here
        for error in wrong.errors():
            if not error["loc"] or error["loc"][0] in _names(schema):
                where = ".".join(str(part) for part in error["loc"]) or "the arguments"
                return f"{where}: {error['msg']}"
    return None


def _names(schema: type[BaseModel]) -> set[str]:
    aliases = {f.alias for f in schema.model_fields.values() if f.alias}
    return {*schema.model_fields, *aliases}
