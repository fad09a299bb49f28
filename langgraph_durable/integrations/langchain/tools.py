"""A LangChain tool call as a journaled step, wherever the tool is called from."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_tool
from langgraph.types import Command, Send

from langgraph_durable import calls
from langgraph_durable.context import RunContext
from langgraph_durable.context.tooling import call_tool
from langgraph_durable.errors import BadInput, UnknownTool
from langgraph_durable.integrations.langchain.keys import named, next_key, run_here
from langgraph_durable.integrations.langchain.wrapped import (
    Reached,
    Wrapped,
    given_by_model,
    json_schema,
    misfit,
)
from langgraph_durable.runs import Compensation, Effect, Refused
from langgraph_durable.tools import (
    KEY_ARGUMENT,
    TOKEN_ARGUMENT,
    CallInfo,
    Probe,
    ToolHub,
    ToolSpec,
)
from langgraph_durable.tools.arguments import parameters
from langgraph_durable.tools.spec import admit, as_effect

SERVER = "local"
Make = Callable[[BaseTool, dict[str, Any]], Awaitable[Any]]
_COMMAND = "langgraph command"


class Declarations:
    """What each tool of an agent does to the world.

    Raises:
        BadInput: a tool is declared twice, or asks and isn't declared.
    """

    def __init__(
        self,
        effects: Mapping[str, Effect | str | ToolSpec],
        reads: Collection[str],
        asks: Collection[str],
    ) -> None:
        both = sorted(set(effects) & set(reads))
        if both:
            raise BadInput(f"tool {both[0]!r} is in effects= and in reads=; declare it once")
        self._specs = {name: ToolSpec(SERVER, name, Effect.READ) for name in reads}
        for name, what in effects.items():
            if isinstance(what, ToolSpec):
                self._specs[name] = replace(what, name=name)
            else:
                self._specs[name] = ToolSpec(SERVER, name, as_effect(name, what))
        for name in asks:
            if name not in self._specs:
                raise BadInput(f"tool {name!r} asks, but its effect is not declared in effects=")
            self._specs[name] = replace(self._specs[name], asks=True)

    def of(self, tool: BaseTool, hub: ToolHub) -> ToolSpec:
        """Return what is declared of a tool, here or on the run's hub.

        Raises:
            BadInput: nothing is, or it is called idempotent and takes no key.
        """
        declared = self._specs.get(tool.name) or _on_hub(tool.name, hub)
        names, _ = parameters(tool)
        key, token = declared.key_argument or KEY_ARGUMENT, declared.token_argument
        token = token or TOKEN_ARGUMENT
        spec = replace(
            declared,
            description=tool.description,
            key_argument=key if key in names else None,
            token_argument=token if token in names else None,
        )
        if spec.effect is Effect.IDEMPOTENT and spec.key_argument is None:
            raise BadInput(
                f"tool {tool.name!r} is declared idempotent, but no idempotency key reaches it. "
                f"Give it a parameter {KEY_ARGUMENT!r}: str (models won't see it), or declare it "
                "'once'; 'read' if calling it again does no harm."
            )
        return replace(spec, schema=json_schema(tool, spec.hidden))


def _on_hub(name: str, hub: ToolHub) -> ToolSpec:
    try:
        return hub.spec(name)
    except UnknownTool:
        raise BadInput(
            f"tool {name!r} of this agent is registered without an effect. Declare what it does to "
            f"the world: DurableMiddleware(reads=[{name!r}]) if it may run again, or effects="
            f"{{{name!r}: ...}} with 'idempotent' (takes an idempotency key) or 'once' (cannot be "
            "repeated safely); or register it on the ToolHub of Durable."
        ) from None


@dataclass(frozen=True, slots=True)
class _Source:
    """One tool that lives in an agent: how its call is made, once it is let through."""

    spec: ToolSpec
    tool: BaseTool
    make: Make

    async def check(self, name: str, arguments: Mapping[str, Any]) -> ToolSpec:
        return self.spec

    async def call(self, name: str, arguments: Mapping[str, Any], info: CallInfo) -> Any:
        admit(self.spec, arguments, info)
        reached = Reached.over(self.tool, hidden=self.spec.hidden, spec=self.spec, info=info)
        result = await self.make(reached, dict(arguments))
        if self.spec.effect is Effect.ONCE and reached.unsure is not None:
            raise reached.unsure  # told to the model as a failure; but it may have happened
        return _kept(result, info, self.tool.name)

    async def probe(self, name: str, arguments: Mapping[str, Any], info: CallInfo) -> Any:
        assert self.spec.probe is not None  # noqa: S101  # a step probes only what has one
        return await calls.call(self.spec.probe, dict(arguments), info)


async def tool_step(
    ctx: RunContext, spec: ToolSpec, tool: BaseTool, call: ToolCall, make: Make
) -> Any:
    """Answer a model's tool call from the journal, or see it through: policy, call, record."""
    arguments = given_by_model(tool, call["args"], spec.hidden)
    wrong = misfit(tool, arguments, spec.hidden)
    if wrong is not None:  # nobody is asked about a call that can't be made
        said = f"Error invoking tool {tool.name!r}: {wrong}. Please fix the error and try again."
        return ToolMessage(said, name=tool.name, tool_call_id=call["id"] or "", status="error")
    # the id is in a message that was journaled, so it is the same in every pass; the place is
    # there for models that number the calls of each message anew
    key = named(ctx.here().path, tool.name, call["id"] or "")
    source = _Source(spec, tool, make)
    result = await call_tool(ctx, key, spec.full_name, arguments, source=source)
    return _restored(result, call)


def _kept(result: Any, info: CallInfo, tool: str) -> Any:
    """Return what is journaled of a result: messages as they are, commands as data.

    Raises:
        BadInput: a command that sends or resumes, or a result of another kind.
    """
    if isinstance(result, ToolMessage):
        # LangGraph would make up another id in every pass
        return result if result.id else result.model_copy(update={"id": info.key_for_tool})
    if isinstance(result, list):
        return [_kept(one, info, tool) for one in result]
    if not isinstance(result, Command):
        return result
    goto: Any = result.goto if isinstance(result.goto, str | Send) else list(result.goto)
    names = isinstance(goto, str) or (isinstance(goto, list) and all(map(_is_name, goto)))
    if result.resume is not None or not names:
        raise BadInput(
            f"tool {tool!r} returned a Command with Send or resume, which is not journaled. Return "
            "a value, or a Command with update and the names of nodes."
        )
    return {_COMMAND: {"update": result.update, "goto": goto, "graph": result.graph}}


def _is_name(node: Any) -> bool:
    return isinstance(node, str)


def _restored(result: Any, call: ToolCall) -> Any:
    if isinstance(result, Refused):
        return _message(str(result), call, status="error")
    if isinstance(result, list) and result and all(map(_is_kept, result)):
        return [_restored(one, call) for one in result]
    if isinstance(result, Mapping) and result.keys() == {_COMMAND}:
        return Command(**result[_COMMAND])
    if isinstance(result, ToolMessage):
        return result
    # found by a probe, or told by a person after a crash
    text = result if isinstance(result, str) else json.dumps(result, default=str)
    return _message("The call was made." if result is None else text, call)


def _is_kept(value: Any) -> bool:
    return isinstance(value, ToolMessage) or (
        isinstance(value, Mapping) and value.keys() == {_COMMAND}
    )


def _message(text: str, call: ToolCall, **fields: Any) -> ToolMessage:
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"], **fields)


# --- tools of a plain ToolNode ---------------------------------------------------------


class DurableTool(Wrapped):
    """A tool whose calls are journaled steps; made by `durable_tool`."""

    spec: ToolSpec

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kw: Any) -> Any:
        """Answer from the journal, or call the tool and record what it returned."""
        ctx = run_here()
        if ctx is None:
            return await self.inner.ainvoke(input, config, **kw)
        return await self._step(ctx, input, partial(_acall, config=config, kw=kw))

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kw: Any) -> Any:
        """Answer from the journal, or call the tool and record what it returned."""
        ctx = run_here()
        if ctx is None:
            return self.inner.invoke(input, config, **kw)
        return ctx.blocking.wait(self._step(ctx, input, partial(_call, config=config, kw=kw)))

    async def _step(self, ctx: RunContext, input: Any, made: Callable[..., Awaitable[Any]]) -> Any:
        if not isinstance(input, dict):
            raise BadInput(f"tool {self.name!r} takes a tool call or a dict of arguments")
        if input.get("type") == "tool_call":
            call = ToolCall(name=self.name, args=input["args"], id=input["id"], type="tool_call")
        else:
            call = ToolCall(name=self.name, args=input, id=None, type="tool_call")
        injected = dict(call["args"])

        async def make(reached: BaseTool, arguments: dict[str, Any]) -> Any:
            hidden = self.spec.hidden
            given = {n: v for n, v in injected.items() if n not in hidden} | arguments
            return await made(reached, given if call["id"] is None else {**call, "args": given})

        if call["id"] is not None:
            return await tool_step(ctx, self.spec, self.inner, call, make)
        source = _Source(self.spec, self.inner, make)
        arguments = given_by_model(self.inner, injected, self.spec.hidden)
        key = next_key(ctx, self.name)
        result = await call_tool(ctx, key, self.spec.full_name, arguments, source=source)
        return str(result) if isinstance(result, Refused) else result


async def _acall(tool: BaseTool, given: Any, config: Any, kw: dict[str, Any]) -> Any:
    return await tool.ainvoke(given, config, **kw)


async def _call(tool: BaseTool, given: Any, config: Any, kw: dict[str, Any]) -> Any:
    return await calls.call(partial(tool.invoke, given, config, **kw))


def durable_tool(
    tool: BaseTool | Callable[..., Any],
    *,
    effect: Effect | str,
    asks: bool = False,
    probe: Probe | None = None,
    compensate: Compensation | None = None,
) -> BaseTool:
    """Return a tool whose calls in a durable run are journaled steps: for a plain ToolNode.

    Without it a ToolNode that waits for one call runs all its calls again when it resumes.
    Parameters called `idempotency_key` and `fencing_token` are filled, and models don't see
    them. With `asks`, a call waits for a person unless a rule allows it. `compensate` is the
    call of a tool of the run's hub that undoes one of this tool. Outside of a durable run the
    tool is as it was.

    Raises:
        BadInput: the effect is none, or an idempotent tool takes no key.
    """
    made: BaseTool = tool if isinstance(tool, BaseTool) else as_tool(tool)
    does = as_effect(made.name, effect)
    declared = ToolSpec(SERVER, made.name, does, asks=asks, probe=probe, compensate=compensate)
    spec = Declarations({made.name: declared}, (), ()).of(made, ToolHub())
    durable: BaseTool = DurableTool.over(made, hidden=spec.hidden, spec=spec)
    return durable
