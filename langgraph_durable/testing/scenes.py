"""What an agent under test runs in: its tools, models and rules, and how people answer."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from langgraph_durable.agents import Agent
from langgraph_durable.app import Durable
from langgraph_durable.context import Services
from langgraph_durable.errors import BadInput
from langgraph_durable.policy import Rule
from langgraph_durable.runs import Decision, Mode, Question
from langgraph_durable.testing.ledger import Ledger, RecordingTools
from langgraph_durable.tools import ToolHub

PERSON = "somebody"
NAME = "agent"

Decide = Callable[[Question], Decision | None]


def agree(question: Question) -> Decision:
    """Approve what can be approved, and answer True to what can't."""
    if question.kind == "interrupt" or "approve" not in question.allowed:
        return Decision.respond(PERSON, True)
    return Decision.approve(PERSON)


@dataclass(frozen=True, slots=True)
class Scene:
    """An agent with everything that it needs for one run.

    Args:
        agent: a graph, an async function `(ctx, input)`, or what `durable.graph` returned.
        mode: of a graph that isn't registered yet.
        decisions: what people answer; None says that nobody answers, until it expires.
        signals: by event, the payloads that are signalled in turn, each when the run waits for
            it; when none is left nobody signals, until the time is over.
        ledger: what the outside world saw; that of `RecordingTools` is found by itself.
        effects: returns what the outside world shows at the end, when that isn't a ledger.
    """

    agent: Any
    mode: Mode = "steps"
    tools: ToolHub | None = None
    models: Mapping[str, Any] = field(default_factory=dict)
    rules: Iterable[Rule] = ()
    types: Iterable[type] = ()
    decisions: Decide = agree
    signals: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    ledger: Ledger | None = None
    effects: Callable[[], Any] | None = None
    tenant: str = "default"
    context: Any = None
    services: Services | None = None  # instead of tools, models and rules

    @classmethod
    def of(cls, durable: Durable, agent: str, **more: Any) -> Scene:
        """Return the scene of an agent that is registered with its tools, models and rules.

        Raises:
            UnknownAgent: there is none of that name.
        """
        services = durable.services
        return cls(
            durable.find(agent),
            tools=services.tools,
            types=durable.types.classes,
            services=services,
            **more,
        )

    def shown(self) -> list[Any]:
        """Return what the outside world shows of the run's effects."""
        ledger = self.ledger
        if ledger is None and isinstance(self.tools, RecordingTools):
            ledger = self.tools.ledger
        lines = [] if ledger is None else ledger.effects()
        shown: list[Any] = [
            {"effect": line.what, "arguments": line.arguments, "from": line.place} for line in lines
        ]
        return shown if self.effects is None else [*shown, *self.effects()]


#: Builds the scene in a folder of its own: called once in each life of a process.
SceneFactory = Callable[[Path], Scene]


def named(path: str) -> SceneFactory:
    """Import the scene factory that `package.module:name` names.

    Raises:
        BadInput: there is none.
    """
    module, colon, name = path.partition(":")
    found = getattr(importlib.import_module(module), name, None) if colon else None
    if not callable(found):
        raise BadInput(f"a scene is named by package.module:name, not {path!r}")
    factory: SceneFactory = found
    return factory


def is_factory(agent: object) -> bool:
    """Whether this builds scenes, rather than being an agent itself."""
    return inspect.isfunction(agent) and not inspect.iscoroutinefunction(agent)


def enter(durable: Durable, scene: Scene) -> str:
    """Register the scene's agent; returns its name."""
    agent = scene.agent
    if isinstance(agent, Agent):
        kept = {f.name: getattr(agent, f.name) for f in fields(Agent)}
        name, graph, function = (kept.pop(part) for part in ("name", "graph", "function"))
        if function is None:
            durable.graph(name, graph, **kept)
        else:
            kept.pop("mode")
            durable.agent(name, **kept)(function)
        return str(name)
    if inspect.iscoroutinefunction(agent):
        durable.agent(NAME)(agent)
    else:
        durable.graph(NAME, agent, mode=scene.mode, context=scene.context)
    return NAME
