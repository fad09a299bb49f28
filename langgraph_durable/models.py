"""Routes: a name -> a chat model, so that agents say what they need and not who answers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages
from langchain_core.runnables import Runnable
from pydantic import BaseModel

from langgraph_durable import calls
from langgraph_durable.errors import BadInput, DurableError, UnknownRoute

DEFAULT = "default"


def normalise(messages: Any) -> list[BaseMessage]:
    """Return messages of any usual form as LangChain's: text, (role, text), dicts, messages.

    Raises:
        BadInput: no messages, or something that is none.
    """
    if isinstance(messages, str):
        messages = [HumanMessage(messages)]
    elif isinstance(messages, BaseMessage | Mapping) or _is_pair(messages):
        messages = [messages]
    try:
        found = convert_to_messages(messages)
    except (ValueError, TypeError, NotImplementedError, KeyError, AttributeError) as wrong:
        raise BadInput(f"these are not chat messages: {wrong}") from wrong
    if not found:
        raise BadInput("a model was asked with no messages")
    return list(found)


def _is_pair(messages: Any) -> bool:
    return isinstance(messages, tuple) and len(messages) == 2 and isinstance(messages[0], str)


def usage(message: BaseMessage) -> tuple[int, int]:
    """Return the (input, output) tokens that a model reported; zeros if it reported none."""
    reported: Mapping[str, Any] = getattr(message, "usage_metadata", None) or {}
    return int(reported.get("input_tokens") or 0), int(reported.get("output_tokens") or 0)


class ModelRoutes:
    """The models of an app by route.

    A route is a chat model (or a runnable over one), a "provider:name" or the arguments of
    LangChain's `init_chat_model` as a dict (`{"model": "openai:x", "base_url": ...}`), or a
    function of your own `(messages, route)`, sync or async, that returns an AIMessage or
    text, and may take the keywords `tools` and `response_format`. A sole route also serves
    as "default".

    A chat model keeps connections, and they belong to the event loop that first used it: ask
    from one loop for as long as the process lives.
    """

    def __init__(self, models: Mapping[str, Any] | None = None) -> None:
        self._models = dict(models or {})
        for route, model in self._models.items():
            if isinstance(model, Mapping) and not isinstance(model.get("model"), str):
                raise BadInput(
                    f'route {route!r}: a dict names its model: {{"model": "openai:..."}}'
                )
            if not isinstance(model, Runnable | str | Mapping) and not callable(model):
                raise BadInput(
                    f"route {route!r}: a {type(model).__name__} is no model. Give a chat model, a "
                    "'provider:name', a dict for init_chat_model, or a function (messages, route)."
                )

    @property
    def names(self) -> list[str]:
        """The routes that are configured."""
        return list(self._models)

    def __contains__(self, route: str) -> bool:
        return route in self._models or (route == DEFAULT and len(self._models) == 1)

    async def ask(
        self,
        route: str,
        messages: Any,
        *,
        tools: Sequence[Any] | None = None,
        response_format: type[BaseModel] | Mapping[str, Any] | None = None,
    ) -> AIMessage:
        """Ask the model of a route once.

        With `response_format`, the parsed answer is in `additional_kwargs["parsed"]`, as data.

        Raises:
            UnknownRoute: no such route.
            BadInput: the messages are none, or the model can't do what is asked of it.
        """
        asked = normalise(messages)
        if tools and response_format is not None:
            raise BadInput("give tools or response_format, not both: a tool call is no answer yet")
        name, model = self._model(route)
        if not isinstance(model, Runnable):
            return await _ask_function(name, model, asked, tools, response_format)
        if response_format is not None:
            return await _ask_structured(name, model, asked, response_format)
        if tools:
            model = _able(name, model, "bind_tools")(list(tools))
        return _answer(name, await model.ainvoke(asked))

    def _model(self, route: str) -> tuple[str, Any]:
        name = next(iter(self._models)) if route not in self._models and route in self else route
        if name not in self._models:
            raise UnknownRoute(route, self.names)
        model = self._models[name]
        if isinstance(model, str | Mapping):
            # made at the first use: a process that only submits needs no provider's package
            model = self._models[name] = _made(name, model)
        return name, model


def _made(route: str, model: str | Mapping[str, Any]) -> Any:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as missing:
        raise BadInput(
            f"route {route!r} names its model by text, which needs LangChain: "
            "pip install 'langgraph-durable[langchain]'"
        ) from missing
    given = {"model": model} if isinstance(model, str) else dict(model)
    try:
        return init_chat_model(**given)
    except Exception as wrong:  # providers raise their own: no package, no key, a wrong option
        raise BadInput(f"route {route!r}: {given['model']!r} can't be made: {wrong}") from wrong


def _able(route: str, model: Any, method: str) -> Any:
    found = getattr(model, method, None)
    if found is None:
        raise BadInput(f"route {route!r}: its {type(model).__name__} has no {method}")
    return found


async def _ask_structured(
    route: str, model: Any, messages: list[BaseMessage], response_format: Any
) -> AIMessage:
    schema = dict(response_format) if isinstance(response_format, Mapping) else response_format
    bound = _able(route, model, "with_structured_output")(schema, include_raw=True)
    reply = await bound.ainvoke(messages)
    if reply["parsing_error"] is not None:
        raise reply["parsing_error"]
    return _with_parsed(_answer(route, reply["raw"]), reply["parsed"])


async def _ask_function(
    route: str, model: Any, messages: list[BaseMessage], tools: Any, response_format: Any
) -> AIMessage:
    wanted = {"tools": tools, "response_format": response_format}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    takes = inspect.signature(model).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    for name in wanted:
        if name not in takes and not takes_any:
            raise BadInput(f"route {route!r}: its function takes no {name}=")
    reply = await calls.call(model, messages, route, **wanted)
    if response_format is not None and isinstance(reply, BaseModel | Mapping):
        text = reply.model_dump_json() if isinstance(reply, BaseModel) else json.dumps(reply)
        return _with_parsed(AIMessage(text), reply)
    return _answer(route, reply)


def _with_parsed(message: AIMessage, parsed: Any) -> AIMessage:
    data = parsed.model_dump(mode="json") if isinstance(parsed, BaseModel) else parsed
    extra = {**message.additional_kwargs, "parsed": data}
    return message.model_copy(update={"additional_kwargs": extra})


def _answer(route: str, reply: Any) -> AIMessage:
    if isinstance(reply, str):
        return AIMessage(reply)
    if not isinstance(reply, AIMessage):
        raise DurableError(
            f"route {route!r} answered with a {type(reply).__name__}; a model returns an AIMessage "
            "or text"
        )
    return reply
