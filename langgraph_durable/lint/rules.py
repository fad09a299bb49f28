"""The rules: what must not stand between steps, and what steps must not look like."""

from __future__ import annotations

import ast
import datetime
import os
import random
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt

from langgraph_durable.lint.finding import CODES, Finding
from langgraph_durable.lint.sources import names_of, resolve, tree_of
from langgraph_durable.lint.writes import NETWORK, keyless_writes

STEPS = frozenset({"llm", "tool", "once", "ask", "now", "uuid", "random", "sleep", "wait_for"})
_PAUSES = frozenset({"ask", "tool", "sleep", "wait_for"})

_DATETIME = ("now", "utcnow", "today")
_CLOCK = (
    "time",
    "time_ns",
    "monotonic",
    "perf_counter",
    "localtime",
    "gmtime",
    "ctime",
    "process_time",
)
_UUID = ("uuid1", "uuid4", "uuid6", "uuid7", "uuid8")
_ASKS_MODEL = frozenset({"invoke", "ainvoke", "stream", "astream", "batch", "abatch", "predict"})


def check_function(function: FunctionType, node: str) -> list[Finding]:
    """Return the findings of one function; none if its source can't be read."""
    read = tree_of(function)
    if read is None:
        return []
    tree, lines, first = read
    reader = _Reader(names_of(function, tree))
    reader.visit(tree)
    found = []
    for line, code, what in reader.found:
        if not lines[line - 1].rstrip().endswith("# durable: ok"):
            said = f"{what} {CODES[code]}" if what else CODES[code]
            found.append(Finding(code, function.__code__.co_filename, first + line - 1, node, said))
    return found


class _Reader(ast.NodeVisitor):
    """Walks a function, knowing the loops and handlers around each call."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._loops: list[set[str]] = []
        self._catching = 0
        self._async = False
        self._steps_here: set[str] = set()
        self.found: list[tuple[int, str, str]] = []

    def _report(self, node: ast.AST, code: str, what: str = "") -> None:
        self.found.append((getattr(node, "lineno", 1), code, what))

    # --- what surrounds a call ---------------------------------------------------------

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Enter an async function."""
        self._enter(node, is_async=True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Enter a function."""
        self._enter(node, is_async=False)

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef, *, is_async: bool) -> None:
        if node.name in self._steps_here:
            return  # handed to ctx.once by name: it is the inside of a step
        before, self._async = self._async, is_async
        self._steps_here |= set(_handed_to_once(node))
        self.generic_visit(node)
        self._async = before

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        """Enter a loop: its variables may tell its turns apart."""
        self.visit(node.iter)
        self._loop(node, _names_in(node.target))

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        """Enter a loop: what it assigns may tell its turns apart."""
        self.visit(node.test)
        self._loop(node, set())

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, names: set[str]) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
                targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                names |= set().union(*(_names_in(target) for target in targets))
        self._loops.append(names)
        for statement in [*node.body, *node.orelse]:
            self.visit(statement)
        self._loops.pop()

    def visit_ListComp(self, node: ast.ListComp) -> None:
        """A comprehension is a loop."""
        self._loops.append(set().union(*(_names_in(g.target) for g in node.generators)))
        self.generic_visit(node)
        self._loops.pop()

    def visit_Try(self, node: ast.Try) -> None:
        """Enter a `try`: does a handler swallow a pause?"""
        swallows = self._swallows(node.handlers)
        self._catching += swallows
        for statement in node.body:
            self.visit(statement)
        self._catching -= swallows
        for part in [*node.handlers, *node.orelse, *node.finalbody]:
            self.visit(part)

    def _swallows(self, handlers: list[ast.ExceptHandler]) -> bool:
        for handler in handlers:
            caught = handler.type
            kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
            resolved = [
                resolve(kind, self._names) if kind is not None else BaseException for kind in kinds
            ]
            resolved = [
                _builtin(kind) if r is None else r for kind, r in zip(kinds, resolved, strict=True)
            ]
            if any(isinstance(k, type) and issubclass(GraphBubbleUp, k) for k in resolved):
                return not any(isinstance(inner, ast.Raise) for inner in ast.walk(handler))
        return False

    # --- calls -------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        """Judge a call; what is handed to ctx.once is the inside of a step."""
        step = _step(node)
        if step is not None:
            self._judge_step(node, step)
            if step == "once" and _keyword(node, "effect") is None:
                for argument in [*node.args[1:], *filter(None, [_keyword(node, "call")])]:
                    for write in keyless_writes(argument, self._names):
                        self._report(node, "no-key", _dotted(write.func))
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                if step == "once" and isinstance(argument, ast.Lambda):
                    continue
                self.visit(argument)
            return
        called = resolve(node.func, self._names)
        if called is interrupt and self._catching:
            self._report(node, "swallowed")
        code = self._code_of(node, called)
        if code is not None:
            self._report(node, code, _dotted(node.func))
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """`os.environ[...]`."""
        if resolve(node.value, self._names) is os.environ:
            self._report(node, "environment", "os.environ")
        self.generic_visit(node)

    def _judge_step(self, node: ast.Call, step: str) -> None:
        if self._catching and step in _PAUSES:
            self._report(node, "swallowed")
        key = node.args[0] if node.args else _keyword(node, "key")
        if key is None:
            return
        if self._loops and not (_names_in(key) & set().union(*self._loops)) and not _calls_in(key):
            self._report(node, "loop-key", f"ctx.{step}")
        if any(_code(resolve(call.func, self._names)) for call in _calls_in(key)):
            self._report(node, "made-up-key", f"ctx.{step}")

    def _code_of(self, node: ast.Call, called: Any) -> str | None:
        if called is time.sleep:
            return "blocking" if self._async else None
        code = _code(called)
        if code is not None:
            return code
        if not isinstance(node.func, ast.Attribute):
            return None
        owner = resolve(node.func.value, self._names)
        if owner is os.environ:
            return "environment"
        if isinstance(owner, random.Random) or _is_random_module(owner):
            return "random"
        if isinstance(owner, ModuleType) and owner.__name__.partition(".")[0] in NETWORK:
            return "network"
        if isinstance(owner, BaseLanguageModel) and node.func.attr in _ASKS_MODEL:
            return "model"
        return None


def _code(called: Any) -> str | None:
    """Return the rule that a called object breaks."""
    if called is None:
        return None
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if isinstance(owner, type) and issubclass(owner, datetime.date) and name in _DATETIME:
        return "clock"
    if owner is time or called in [getattr(time, n) for n in _CLOCK]:
        return "clock" if name in _CLOCK else None
    if called in [getattr(uuid, n) for n in _UUID if hasattr(uuid, n)]:
        return "uuid"
    if called is os.getenv:
        return "environment"
    if called is os.urandom or getattr(called, "__module__", "") == secrets.__name__:
        return "random"
    if isinstance(owner, random.Random):
        return "random"
    module = str(getattr(called, "__module__", "") or "").partition(".")[0]
    if module in NETWORK or getattr(called, "__module__", "") == "urllib.request":
        return "network"
    return None


def _is_random_module(owner: Any) -> bool:
    return isinstance(owner, ModuleType) and owner.__name__ in ("random", "numpy.random", "secrets")


def _step(node: ast.Call) -> str | None:
    """Return the method of a step call: `….llm(...)` on something that reads like a context."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in STEPS:
        return None
    owner = _dotted(node.func.value).lower()
    return (
        node.func.attr if owner.rpartition(".")[2] in _CONTEXTS or "current_run" in owner else None
    )


_CONTEXTS = frozenset({"ctx", "context", "run", "durable", "blocking"})


def _dotted(node: ast.AST) -> str:
    return ast.unparse(node)


def _keyword(node: ast.Call, name: str) -> ast.AST | None:
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)


def _names_in(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _calls_in(node: ast.AST) -> list[ast.Call]:
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]


def _handed_to_once(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and _step(node) == "once":
            yield from (argument.id for argument in node.args if isinstance(argument, ast.Name))


def _builtin(kind: ast.AST | None) -> Any:
    import builtins

    return getattr(builtins, kind.id, None) if isinstance(kind, ast.Name) else None
