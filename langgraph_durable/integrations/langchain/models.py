"""A model call of LangChain's as a journaled step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableBinding

from langgraph_durable import calls
from langgraph_durable.context import RunContext
from langgraph_durable.context.calls import Call, perform
from langgraph_durable.errors import BadInput, NotEncodable
from langgraph_durable.integrations.langchain.keys import next_key, run_here
from langgraph_durable.models import usage
from langgraph_durable.values import fingerprint, readable


async def model_step(
    ctx: RunContext,
    what: str,
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    tools: Sequence[str],
    make: Callable[[], Awaitable[dict[str, Any]]],
) -> dict[str, Any]:
    """Answer a model call from the journal, or make it and record it.

    `make` returns `{"result": messages, ...}`. The key is the place in the graph and which
    call of its kind this is there. A prompt that changed is noted, and the recorded answer
    is used.
    """
    key = next_key(ctx, what)

    async def asked() -> dict[str, Any]:
        answer = await make()
        return {**answer, "result": _with_ids(answer["result"], ctx.idempotency_key(key))}

    call = Call(
        key=key,
        kind="llm",
        name=str(getattr(model, "model_name", None) or getattr(model, "model", None) or what),
        fingerprint=_fingerprint(ctx, messages, tools),
        request=ctx.services.redaction.readable(messages[-1].content if messages else ""),
        strict=False,
        make=asked,
        tokens=_tokens,
    )
    answer: dict[str, Any] = await perform(ctx, call)
    return answer


def _with_ids(messages: Sequence[BaseMessage], stem: str) -> list[BaseMessage]:
    """LangGraph would make up another id in every pass."""
    return [
        message if message.id else message.model_copy(update={"id": f"{stem}:{i}"})
        for i, message in enumerate(messages)
    ]


def _fingerprint(ctx: RunContext, messages: Sequence[BaseMessage], tools: Sequence[str]) -> str:
    """It only serves a warning: what can't be encoded gives none."""
    request = {"messages": [_as_shown(message) for message in messages], "tools": list(tools)}
    try:
        return fingerprint(request, types=ctx.services.types)
    except NotEncodable:
        return ""


def _as_shown(message: BaseMessage) -> BaseMessage:
    """A model never sees the artifact of a tool message."""
    is_tool = isinstance(message, ToolMessage) and message.artifact is not None
    return message.model_copy(update={"artifact": None}) if is_tool else message


def _tokens(answer: dict[str, Any]) -> tuple[int, int]:
    each = [usage(message) for message in answer["result"] if isinstance(message, AIMessage)]
    return sum(given for given, _ in each), sum(made for _, made in each)


# --- a model that a node calls itself --------------------------------------------------


class DurableModel(BaseChatModel):
    """A chat model whose answers are journaled; made by `durable_model`."""

    inner: BaseChatModel
    key: str = "llm"

    @property
    def _llm_type(self) -> str:
        return self.inner._llm_type

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind tools as the inner model would, to this one: its own binding has no journal."""
        bound = self.inner.bind_tools(tools, tool_choice=tool_choice, **kwargs)
        if not isinstance(bound, RunnableBinding):
            raise BadInput(f"{type(self.inner).__name__}.bind_tools returns no binding")
        return self.bind(**bound.kwargs)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        ask = partial(self.inner._agenerate, messages, stop, run_manager, **kwargs)
        ctx = run_here()
        return await ask() if ctx is None else await self._step(ctx, messages, kwargs, ask)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        ask = partial(self.inner._generate, messages, stop, run_manager, **kwargs)
        ctx = run_here()
        if ctx is None:
            return ask()
        return ctx.blocking.wait(self._step(ctx, messages, kwargs, partial(calls.call, ask)))

    async def _step(
        self,
        ctx: RunContext,
        messages: list[BaseMessage],
        kwargs: dict[str, Any],
        ask: Callable[[], Awaitable[ChatResult]],
    ) -> ChatResult:
        async def make() -> dict[str, Any]:
            return {"result": [made.message for made in (await ask()).generations]}

        tools = [readable(tool) for tool in kwargs.get("tools", [])]
        answer = await model_step(ctx, self.key, self.inner, messages, tools, make)
        return ChatResult(generations=[ChatGeneration(message=m) for m in answer["result"]])


def durable_model(model: BaseChatModel, *, key: str = "llm") -> DurableModel:
    """Return a chat model whose answers in a durable run are journaled steps.

    For graphs whose nodes call a model object. `key` names the call among others of the same
    node. Answers come whole, not token by token. Outside of a durable run the model is as it
    was.
    """
    return DurableModel(inner=model, key=key)
