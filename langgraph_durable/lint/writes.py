"""Writes that a crash would repeat: no key reaches the other side, which can't tell a repeat."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from langgraph_durable.lint.finding import CODES, Finding
from langgraph_durable.lint.sources import names_of, plain, resolve, tree_of
from langgraph_durable.runs import Effect
from langgraph_durable.tools import KEY_ARGUMENT, ToolHub, ToolSpec

NETWORK = frozenset(
    {"requests", "httpx", "aiohttp", "urllib3", "socket", "smtplib", "ftplib", "boto3"}
)
_WRITES = frozenset({"post", "put", "patch", "delete", "sendmail", "send_message", "sendall"})


def check_tools(hub: ToolHub) -> list[Finding]:
    """Return the findings of the functions in a hub: of what they declare against what they do."""
    found: list[Finding] = []
    for spec in hub.specs():
        registered = hub.registered(spec.full_name)
        function = next(
            filter(None, (plain(getattr(registered, a, None)) for a in ("coroutine", "func"))),
            plain(registered),
        )
        if function is not None:
            found += _of_tool(spec, function)
    return found


def _of_tool(spec: ToolSpec, function: FunctionType) -> Iterator[Finding]:
    read = tree_of(function)
    if read is None:
        return
    tree, lines, first = read

    def finding(code: str, line: int, what: str) -> Iterator[Finding]:
        if not lines[line - 1].rstrip().endswith("# durable: ok"):
            said = f"{what} {CODES[code]}"
            file = function.__code__.co_filename
            yield Finding(code, file, first + line - 1, spec.full_name, said, "tool")

    if spec.effect is Effect.READ:
        for call in writes_in(tree, names_of(function, tree)):
            yield from finding("no-key", call.lineno, f"declared 'read': {ast.unparse(call.func)}")
    elif spec.effect is Effect.IDEMPOTENT and spec.key_argument:
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        takes_it = spec.key_argument in function.__code__.co_varnames
        if takes_it and spec.key_argument not in used:
            yield from finding("key-unused", _line_of_def(tree), spec.key_argument)


def _line_of_def(tree: ast.AST) -> int:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return next((node.lineno for node in ast.walk(tree) if isinstance(node, kinds)), 1)


def keyless_writes(argument: ast.AST, names: Mapping[str, Any]) -> list[ast.Call]:
    """Return the writes of what is handed to `ctx.once` with no key in sight."""
    if isinstance(argument, ast.Lambda):
        body: ast.AST | None = argument.body
    else:
        function = plain(resolve(argument, names))
        read = None if function is None else tree_of(function)
        body, names = (None, names) if read is None else (read[0], names_of(function, read[0]))  # type: ignore[arg-type]
    if body is None or KEY_ARGUMENT in ast.unparse(body).lower().replace("-", "_"):
        return []
    return writes_in(body, names)


def writes_in(tree: ast.AST, names: Mapping[str, Any]) -> list[ast.Call]:
    """Return the calls that write over the network."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _WRITES
        and is_network(resolve(node.func.value, names))
    ]


def is_network(owner: Any) -> bool:
    """Whether this is a module, class or object of a library for the network."""
    named = owner if isinstance(owner, ModuleType | type) else type(owner)
    module = named.__name__ if isinstance(named, ModuleType) else named.__module__
    return module.partition(".")[0] in NETWORK
