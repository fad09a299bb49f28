"""What a tool takes: its arguments as a JSON Schema, and the check of a call against it.

A tool comes as a function, as a LangChain tool or as a schema that a server sent. Each
becomes a `Signature`. Arguments that only the runtime may fill (the idempotency key, the
fencing token) are `hidden`: models never see them, and a caller that gives one is refused.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, get_type_hints

import jsonschema
import referencing
from langchain_core.tools import BaseTool, InjectedToolCallId
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from referencing.exceptions import Unresolvable
from typing_extensions import TypedDict

from langgraph_durable.errors import BadInput

Check = Callable[[Mapping[str, Any]], dict[str, Any]]
ANYTHING: Mapping[str, Any] = {"type": "object"}

# No retriever: a `$ref` in a server's schema must not make this process fetch a URL.
_NO_NETWORK: referencing.Registry[Any] = referencing.Registry()


@dataclass(frozen=True, slots=True)
class Signature:
    """What a tool takes: the schema that models see, and the check of a call.

    `check` returns the arguments as the tool wants them, or raises BadInput that names
    the tool and the field.
    """

    schema: Mapping[str, Any]
    check: Check


def parameters(tool: Any) -> tuple[frozenset[str], bool]:
    """Return the names of a tool's parameters, and whether it takes any other too."""
    if isinstance(tool, BaseTool):
        if isinstance(tool.args_schema, dict):
            return frozenset(tool.args_schema.get("properties", {})), False
        return frozenset(_fields(tool)), False
    found = inspect.signature(tool).parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in found)
    return frozenset(
        p.name for p in found if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ), takes_any


def of_function(tool: str, fn: Callable[..., Any], hidden: Collection[str]) -> Signature:
    """Read a function's signature.

    Raises:
        BadInput: a parameter that can't be given by name, or a type that has no schema.
    """
    found = inspect.signature(fn).parameters
    for p in found.values():
        if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            raise BadInput(f"tool {tool!r}: parameter {p.name!r} can't be given by name")
    shown = {n: p for n, p in found.items() if n not in hidden and p.kind is not p.VAR_KEYWORD}
    extra: Any = "forbid" if all(p.kind is not p.VAR_KEYWORD for p in found.values()) else "allow"
    try:
        adapter = _adapter(fn, shown, extra)
        schema = adapter.json_schema()
    except (NameError, TypeError, PydanticSchemaGenerationError, PydanticUserError) as unreadable:
        raise BadInput(
            f"tool {tool!r}: its annotations give no JSON Schema ({unreadable}). "
            "Annotate parameters with types that pydantic knows, importable where the tool is."
        ) from unreadable
    schema.pop("title", None)
    for name, p in shown.items():
        if p.default is None or isinstance(p.default, str | int | float | bool):
            schema["properties"][name].setdefault("default", p.default)

    def check(arguments: Mapping[str, Any]) -> dict[str, Any]:
        _refuse_hidden(tool, arguments, hidden)
        try:
            given: dict[str, Any] = adapter.validate_python(dict(arguments))
        except ValidationError as wrong:
            raise _bad(tool, wrong.errors()[0]) from wrong
        return given

    return Signature(schema, check)


def _adapter(fn: Callable[..., Any], shown: Mapping[str, inspect.Parameter], extra: Any) -> Any:
    """Build the type of the arguments.

    A TypedDict, not a model: its keys may have any name ("schema", "copy", "_id").
    """
    hints = get_type_hints(_annotated(fn), include_extras=True)
    fields: dict[str, Any] = {}
    for name, p in shown.items():
        kind = hints.get(name, Any)
        fields[name] = kind if p.default is p.empty else NotRequired[kind]
    arguments = TypedDict("arguments", fields)  # type: ignore[misc]  # made at run time
    return TypeAdapter(with_config(ConfigDict(extra=extra))(arguments))


def _annotated(fn: Callable[..., Any]) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    return fn if inspect.isroutine(fn) else type(fn).__call__


def of_langchain(tool: str, made: BaseTool, hidden: Collection[str]) -> Signature:
    """Read a LangChain tool; what LangGraph injects is left out.

    Raises:
        BadInput: a required argument that only LangGraph's ToolNode can inject.
    """
    shown = convert_to_openai_tool(made)["function"].get("parameters", ANYTHING)
    schema = without(shown, hidden)
    model = made.tool_call_schema
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return of_schema(tool, schema, hidden)
    _refuse_injected(tool, made, {*model.model_fields, *hidden})
    names, takes_any = set(schema.get("properties", {})), model.model_config.get("extra") == "allow"

    def check(arguments: Mapping[str, Any]) -> dict[str, Any]:
        _refuse_hidden(tool, arguments, hidden)
        if not takes_any and (unknown := sorted(set(arguments) - names)):
            raise BadInput(
                f"tool {tool!r} has no argument {unknown[0]!r}; it takes {sorted(names)}"
            )
        try:
            model.model_validate(dict(arguments))
        except ValidationError as wrong:
            # the hidden ones are missing here; they are filled when the tool is called
            for error in wrong.errors():
                if not (error["loc"] and error["loc"][0] in hidden):
                    raise _bad(tool, error) from wrong
        return dict(arguments)

    return Signature(schema, check)


def takes_call_id(made: BaseTool) -> bool:
    """Return whether a LangChain tool takes the id of its tool call."""
    if isinstance(made.args_schema, dict):
        return False
    return any(map(_is_call_id, _fields(made).values()))


def _fields(made: BaseTool) -> dict[str, FieldInfo]:
    model = made.get_input_schema()
    if not issubclass(model, BaseModel):
        raise BadInput(f"tool {made.name!r}: its args_schema is a pydantic v1 model; use v2")
    return model.model_fields


def _is_call_id(field: Any) -> bool:
    return any(m is InjectedToolCallId or isinstance(m, InjectedToolCallId) for m in field.metadata)


def _refuse_injected(tool: str, made: BaseTool, given: Collection[str]) -> None:
    for name, field in _fields(made).items():
        if name not in given and field.is_required() and not _is_call_id(field):
            raise BadInput(
                f"tool {tool!r}: argument {name!r} is injected by LangGraph's ToolNode, and a step "
                "calls the tool without one. Make it a plain argument and pass what it needs."
            )


def of_schema(tool: str, schema: Mapping[str, Any], hidden: Collection[str]) -> Signature:
    """Read a JSON Schema, as a server sends it."""
    shown = without(schema, hidden)
    kind = jsonschema.validators.validator_for(shown, default=jsonschema.Draft202012Validator)
    validator = kind(shown, registry=_NO_NETWORK)

    def check(arguments: Mapping[str, Any]) -> dict[str, Any]:
        _refuse_hidden(tool, arguments, hidden)
        try:
            kind.check_schema(shown)
            wrong = jsonschema.exceptions.best_match(validator.iter_errors(dict(arguments)))
        except (jsonschema.SchemaError, Unresolvable) as unreadable:
            raise BadInput(
                f"tool {tool!r}: its JSON Schema can't be used: {unreadable}"
            ) from unreadable
        if wrong is not None:
            raise _bad(tool, {"loc": tuple(wrong.absolute_path), "msg": wrong.message})
        return dict(arguments)

    return Signature(shown, check)


def without(schema: Mapping[str, Any], hidden: Collection[str]) -> dict[str, Any]:
    """Return a JSON Schema of an object without some of its properties."""
    left = dict(schema)
    if "properties" in left:
        left["properties"] = {n: s for n, s in left["properties"].items() if n not in hidden}
    if "required" in left:
        left["required"] = [n for n in left["required"] if n not in hidden]
    return left


def _refuse_hidden(tool: str, arguments: Mapping[str, Any], hidden: Collection[str]) -> None:
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise BadInput(f"tool {tool!r} takes its arguments as an object with text names")
    if given := sorted(set(arguments) & set(hidden)):
        raise BadInput(
            f"tool {tool!r}: argument {given[0]!r} is made by the runtime, never by the caller or "
            "a model. Leave it out."
        )


def _bad(tool: str, error: Any) -> BadInput:
    path = ".".join(str(part) for part in error["loc"])
    where = f"argument {path!r}" if path else "its arguments"
    return BadInput(f"tool {tool!r}: {where}: {error['msg']}")
