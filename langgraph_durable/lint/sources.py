"""From a graph to the functions behind its nodes, and the helpers that they call."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from langgraph_durable.errors import BadInput

_MAX_DEPTH = 5


@dataclass(frozen=True, slots=True)
class NodeSource:
    """A node and its function (None: a node whose code is not a function, such as ToolNode)."""

    name: str
    function: FunctionType | None
    kind: str

    def reachable(self) -> Iterator[FunctionType]:
        """Yield the node's function and the helpers of the same package that it calls."""
        if self.function is None:
            return
        seen: set[Any] = set()
        waiting = [(self.function, 0)]
        while waiting:
            function, depth = waiting.pop()
            if function.__code__ in seen:
                continue
            seen.add(function.__code__)
            yield function
            if depth < _MAX_DEPTH:
                waiting += [(helper, depth + 1) for helper in _helpers(function)]


def nodes_of(target: object, prefix: str = "") -> list[NodeSource]:
    """Return the nodes of a graph (subgraphs included), or the one function.

    Raises:
        BadInput: the target is neither.
    """
    function = plain(target)
    if function is not None:
        return [NodeSource(prefix + function.__name__, function, "function")]
    if isinstance(target, StateGraph):
        target = target.compile()
    if not isinstance(target, Pregel):
        raise BadInput(
            f"a {type(target).__name__} can't be read: give a graph, a StateGraph, an @entrypoint or "
            "a function"
        )
    found = []
    for name, node in target.nodes.items():
        if name != "__start__":
            found += _of_runnable(prefix + name, node.bound)
    return found


def _of_runnable(name: str, runnable: Any) -> list[NodeSource]:
    if isinstance(runnable, Pregel):
        return nodes_of(runnable, f"{name}/")
    for attribute in ("afunc", "func", "bound"):
        inner = getattr(runnable, attribute, None)
        if isinstance(inner, Pregel):
            return nodes_of(inner, f"{name}/")
        function = plain(inner)
        if function is not None:
            own = function.__module__.partition(".")[0] not in ("langgraph", "langchain_core")
            if own:
                return [NodeSource(name, function, "function")]
    for step in getattr(runnable, "steps", ()):
        found = _of_runnable(name, step)
        if any(source.function is not None for source in found):
            return found
    return [NodeSource(name, None, type(runnable).__name__)]


def plain(value: Any) -> FunctionType | None:
    """Return the Python function behind a function, method, partial or callable object."""
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value) if callable(value) else value
    if isinstance(value, MethodType):
        value = value.__func__
    return value if isinstance(value, FunctionType) else None


def tree_of(function: FunctionType) -> tuple[ast.AST, list[str], int] | None:
    """Return a function's syntax tree, its source lines and its first line; None without source."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return None
    try:
        return ast.parse(textwrap.dedent("".join(lines))), lines, first
    except SyntaxError:  # a lambda inside a larger expression has no source of its own
        return None


def names_of(function: FunctionType, tree: ast.AST) -> Mapping[str, Any]:
    """Return what the names in a function stand for: globals, closure, local imports."""
    names = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for node in ast.walk(tree):
        names.update(_imported(node))
    return names


def _imported(node: ast.AST) -> dict[str, Any]:
    import sys

    found: dict[str, Any] = {}
    if isinstance(node, ast.Import):
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            module = sys.modules.get(alias.name if alias.asname else bound)
            if module is not None:
                found[bound] = module
    elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        module = sys.modules.get(node.module)
        for alias in node.names:
            if module is not None and hasattr(module, alias.name):
                found[alias.asname or alias.name] = getattr(module, alias.name)
    return found


def resolve(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Return the object that a name or a dotted name stands for, or None.

    Only modules and classes are looked into: an attribute of an instance may run code.
    """
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = resolve(node.value, names)
        if isinstance(owner, ModuleType | type):
            return getattr(owner, node.attr, None)
    return None


def _helpers(function: FunctionType) -> list[FunctionType]:
    read = tree_of(function)
    if read is None:
        return []
    names = names_of(function, read[0])
    package = function.__module__.partition(".")[0]
    found = []
    for node in ast.walk(read[0]):
        called = plain(resolve(node.func, names)) if isinstance(node, ast.Call) else None
        if called is not None and called.__module__.partition(".")[0] == package:
            found.append(called)
    return found
