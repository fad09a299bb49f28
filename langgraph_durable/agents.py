"""What is registered: a graph or an async function, with its name, version, mode and ADR."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from typing_extensions import is_typeddict

from langgraph_durable.errors import BadInput
from langgraph_durable.runs import Budget, Mode, Retry

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
MODES: Sequence[Mode] = ("graph", "steps")


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent as a worker runs it.

    Exactly one of `graph` and `function` is set. `on_busy` says what a second run on a
    busy thread does. `deadline_seconds` limits one pass, so that a hung run does not live
    for ever on heartbeats. `context` is given to a graph that has a context schema of its
    own. `budget` is what one run may use before a person is asked.
    """

    name: str
    version: str
    mode: Mode
    graph: Pregel[Any, Any, Any, Any] | None = None
    function: Callable[..., Any] | None = None
    adr: str | None = None
    on_busy: Literal["queue", "refuse"] = "queue"
    max_attempts: int = 3
    deadline_seconds: float = 24 * 3600.0
    retry: Retry = field(default_factory=Retry)
    context: Any = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be run."""
        for what, value in (("an agent's name", self.name), ("an agent's version", self.version)):
            if not isinstance(value, str) or not _NAME.fullmatch(value):
                raise BadInput(f"{what} is letters, digits and _ . : -, up to 100, not {value!r}")
        if self.mode not in MODES:
            raise BadInput(f"agent {self.name!r}: mode is 'graph' or 'steps', not {self.mode!r}")
        if self.on_busy not in ("queue", "refuse"):
            raise BadInput(
                f"agent {self.name!r}: on_busy is 'queue' or 'refuse', not {self.on_busy!r}"
            )
        if self.max_attempts < 1 or self.deadline_seconds <= 0:
            raise BadInput(f"agent {self.name!r}: max_attempts >= 1 and deadline_seconds > 0")


def of_graph(name: str, graph: Any, **options: Any) -> Agent:
    """Build an agent of a compiled graph, a StateGraph or a functional entrypoint.

    Raises:
        BadInput: it isn't one, it has no nodes, or it doesn't fit the mode.
    """
    compiled = _compiled(name, graph)
    if options.get("mode") == "steps":
        _fits_steps(name, compiled)
    return Agent(name=name, graph=compiled, **options)


def of_function(name: str, function: Any, **options: Any) -> Agent:
    """Build an agent of a plain async function `(ctx, input)`.

    Raises:
        BadInput: it isn't async.
    """
    if not inspect.iscoroutinefunction(function):
        raise BadInput(f"agent {name!r}: a plain agent is an async function (ctx, input)")
    return Agent(name=name, function=function, mode="steps", **options)


def _compiled(name: str, graph: Any) -> Pregel[Any, Any, Any, Any]:
    if isinstance(graph, Pregel):
        return graph
    if not isinstance(graph, StateGraph):
        raise BadInput(
            f"agent {name!r}: give a compiled graph, a StateGraph or an @entrypoint, "
            f"not {type(graph).__name__}. A plain async function is registered with @durable.agent."
        )
    try:
        return graph.compile()
    except ValueError as error:
        raise BadInput(f"agent {name!r}: its graph can't be compiled: {error}") from error


def _fits_steps(name: str, graph: Pregel[Any, Any, Any, Any]) -> None:
    if graph.checkpointer not in (None, False):
        raise BadInput(
            f"agent {name!r}: in steps mode the journal keeps the run, so the graph must be compiled "
            "without a checkpointer. Compile it without, or register it with mode='graph'."
        )
    for node, inner in graph.get_subgraphs(recurse=True):
        if getattr(inner, "checkpointer", None) is True:
            raise BadInput(f"agent {name!r}: {kept_inside(node)}")
    if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
        raise BadInput(
            f"agent {name!r}: interrupt_before and interrupt_after need a checkpointer. Use "
            "ctx.ask or interrupt() in the node, or register it with mode='graph'."
        )


def kept_inside(node: str) -> str:
    """Say why a node can't call a graph that keeps its own state."""
    return (
        f"node {node!r} calls a graph that was compiled with checkpointer=True: it keeps its state "
        "from call to call in the checkpointer, and steps mode has none. Compile that graph "
        "without it, or register the agent with mode='graph'."
    )


def check_input(agent: Agent, given: Any) -> None:
    """Refuse an input that the graph could not start from, whoever runs it.

    Raises:
        BadInput: a graph takes a state, and this is none.
    """
    builder = getattr(agent.graph, "builder", None)
    schema = getattr(builder, "input_schema", None)
    if builder is None or (given is not None and not is_typeddict(schema)):
        return
    if given is None or not isinstance(given, Mapping):
        raise BadInput(
            f"input of agent {agent.name!r}: its graph starts from a state, a dict with the fields "
            f"of {getattr(schema, '__name__', 'its schema')}, not from {type(given).__name__}"
        )


# --- the ADR ---------------------------------------------------------------------------

_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*\n", re.DOTALL)


def adr_problem(agent: Agent, root: Path) -> str | None:
    """Return what is wrong with an agent's ADR, or None.

    The ADR is a Markdown file whose front matter has `agent: <name>` (or a list under
    `agents:`) and `mode: <mode>`; it must agree with the registration (S-24).
    """
    if agent.adr is None:
        return "names no ADR: register it with adr='docs/adr/….md'"
    path = root / agent.adr
    if not path.is_file():
        return f"its ADR {agent.adr} is not there (looked in {root})"
    matter = _FRONT_MATTER.match(path.read_text(encoding="utf-8"))
    fields = _fields(matter.group(1)) if matter else {}
    mode = fields.get("mode")
    if mode is None:
        return f"its ADR {agent.adr} has no front matter with a mode"
    if mode != agent.mode:
        return f"its ADR {agent.adr} says mode {mode!r}, but it is registered with {agent.mode!r}"
    named = fields.get("agent")
    if named is not None and named != agent.name:
        return f"its ADR {agent.adr} is about {named!r}"
    return None


def _fields(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and not line.startswith((" ", "-")):
            found[name.strip()] = value.strip().strip("\"'")
    return found
